"""What the methods share that end in groups of weights, each group with one codebook.

Takes     a model and settings: which parameters, which of them share values, and how many values.
Gives     the groups; in the hard phase weights that stay tied; and at the end their state.
Paper     section 3.2.
Unaware   of how a method brings its weights to their clusters.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from reefknot.dtypes import DTYPES
from reefknot.errors import ConfigError, TyingError
from reefknot.methods.hooks import Step, dense_grad, trained_by
from reefknot.methods.method import Method, Saved, Stats, log
from reefknot.rates import predicted_bytes
from reefknot.state import Codebook, TiedState
from reefknot.tensors import dtype_for, to_array
from reefknot.tying.group import Group, Shared
from reefknot.tying.selection import NETWORK, original_name, select

NumClusters = int | Mapping[str, int]


class TyingMethod(Method):
    """A method whose weights end in clusters: `groups` holds them.

    A group may wait for its clusters until `harden`. From then on every weight has the gradient
    that its cluster has in the mean (`shared`), and goes to the cluster's mean after each optimizer
    step; zeros stay zero. The gradients alone would not do, since what an optimizer remembers
    differs inside a cluster; nor would the means, since the mean of steps that an optimizer has
    scaled for each weight need not lead downhill.
    """

    shared: ClassVar[Shared] = "mean"
    has_zero_cluster: ClassVar[bool] = True

    def __init__(self, model: nn.Module, settings: Mapping[str, Any]) -> None:
        found = self.mistakes(settings)
        if found:
            raise ConfigError(*found)
        self.settings = dict(settings)
        self._predicted_bytes: int | None = None
        super().__init__(model)
        selection = select(
            self.model,
            include=_patterns(settings.get("include", "*")),
            exclude=_patterns(settings.get("exclude", ())),
            scope=settings.get("scope", NETWORK),
            norms=settings.get("norms", "own"),
        )
        self.skipped = dict(selection.skipped)
        clusters = _clusters_by_group(settings["num_clusters"], list(selection.groups))
        self.groups = [
            Group(
                name,
                members,
                clusters[name],
                settings.get("distance", "l2"),
                sparse=self.has_zero_cluster and name not in selection.dense,
            )
            for name, members in selection.groups.items()
        ]
        self._home = {
            p: (group, name) for group in self.groups for name, p in group.members.items()
        }
        if self.skipped:
            log.warning(
                "not tied: %s", "; ".join(f"{n} ({why})" for n, why in self.skipped.items())
            )

    # -- training ---------------------------------------------------------------------------

    def attach(self, *optimizers: Optimizer) -> Self:
        """Follow these optimizers from now on; see `Method.attach`."""
        self._check_members()
        return super().attach(*optimizers)

    def _check_trained(self, optimizers: tuple[Optimizer, ...]) -> None:
        super()._check_trained(optimizers)
        moved = trained_by(*optimizers)
        idle = [name for parameter, (_, name) in self._home.items() if parameter not in moved]
        if len(idle) == len(self._home):
            raise TyingError(
                f"no attached optimizer trains a tied parameter ({', '.join(idle[:3])}, ...); make "
                "it from method.parameter_groups(), or tie what it trains (include, exclude)"
            )
        if idle:
            log.warning("tied, but no attached optimizer trains them: %s", ", ".join(idle))

    def before_step(self, step: Step) -> None:
        """Hard phase: all weights of a cluster get the same gradient."""
        self._follow_members()
        super().before_step(step)
        if not self.hard or (self.shared == "mean" and type(step.optimizer) is SGD):
            return  # the mean of the steps of SGD is the step of the mean
        for group, grads in self._grads(step):
            group.share_gradients_(grads, self.shared)

    def after_step(self, step: Step) -> None:
        """Hard phase: tie again."""
        self._follow_members()
        super().after_step(step)
        if self.hard:
            for group in self.groups:
                group.retie()

    def _held_by(self, step: Step) -> Iterator[tuple[float, Group, str, nn.Parameter]]:
        """The tied parameters that the stepping optimizer moves, with their rates."""
        for param_group in step.optimizer.param_groups:
            for parameter in param_group["params"]:
                if parameter in self._home:
                    yield float(param_group["lr"]), *self._home[parameter], parameter

    def _grads(self, step: Step) -> Iterator[tuple[Group, dict[str, Tensor]]]:
        """For each group the gradients of those of its members that the optimizer will move."""
        found: dict[str, dict[str, Tensor]] = {}
        for _, group, name, parameter in self._held_by(step):
            grad = dense_grad(name, parameter)
            if grad is not None:
                found.setdefault(group.name, {})[name] = grad
        for group in self.groups:
            if group.name in found:
                yield group, found[group.name]

    def _check_members(self) -> None:
        """The model must still have the parameters that are tied, in a layout that can be."""
        present = {original_name(name): p for name, p in self.model.named_parameters()}
        for group in self.groups:
            for name, parameter in group.members.items():
                if present.get(name) is not parameter:
                    raise TyingError(
                        f"the model has another parameter {name!r} than when it was given to "
                        f"{type(self).__name__}; make the method after the last change of the model"
                    )
        self._follow_members()

    def _follow_members(self) -> None:
        """Before any of them is read or written."""
        for group in self.groups:
            group.follow()

    def _require_soft(self) -> None:
        """What `harden` begins with."""
        if self.hard:
            raise TyingError("the weights are hard already; harden() is called once")
        self._check_members()

    def _hardened(self) -> None:
        """What `harden` ends with, when all groups have clusters and all weights their values."""
        self.hard = True
        self._predicted_bytes = None

    # -- the result -------------------------------------------------------------------------

    def finish(self) -> TiedState:
        """The tied state; the weights must still be exactly tied."""
        self._require_hard()
        self._check_members()
        for group in self.groups:
            for name in group.untied():
                raise TyingError(
                    f"{name!r} is no longer tied to its centers; were weights loaded or changed "
                    "after the last optimizer step?"
                )
            group.move_centers(self._written(group))
        self.detach()
        return self._tied_state()

    def _tied_state(self) -> TiedState:
        """The clusters as they are now, with the values that are written."""
        codebooks: list[Codebook] = []
        tied: dict[str, tuple[int, np.ndarray]] = {}
        for group in self.groups:
            codebook, renamed = _codebook(group, self._written(group))
            for name, parameter in group.members.items():
                index = to_array(group.assignment(name).contiguous().view(parameter.shape))
                tied[name] = (len(codebooks), renamed[index])
            codebooks.append(codebook)
        return self._state(tied, tuple(codebooks))

    def _written(self, group: Group) -> np.ndarray:
        """The values of a group's clusters in the file."""
        return group.centers

    # -- reading and saving -----------------------------------------------------------------

    def state_dict(self) -> Saved:
        """Phase, step, centers and assignments."""
        self._follow_members()
        saved = super().state_dict()
        for group in self.groups:
            if group.assignments:
                saved.update({f"{group.name}/{key}": v for key, v in group.state_dict().items()})
        return saved

    def _load(self, state: Mapping[str, Tensor | int | float]) -> None:
        super()._load(state)
        saved = self.hard or any("/" in str(key) for key in state)
        for group in self.groups:
            own = saved_of(group, state)
            if not own and saved:
                raise TyingError(
                    f"the saved state has no group {group.name!r}; was the scope another?"
                )
            if own:
                group.load_state_dict(own)
            else:
                group.forget()
        self._predicted_bytes = None

    def stats(self) -> Stats:
        """Density, predicted bytes, and each group's clusters as far as it has them."""
        self._follow_members()
        if self._predicted_bytes is None:
            self._predicted_bytes = self._predict()
        started = [group for group in self.groups if group.assignments]
        return super().stats() | {
            "density": self._density(),
            "predicted_bytes": self._predicted_bytes,
            "centers": {group.name: group.centers.tolist() for group in started},
            "counts": {group.name: group.counts.tolist() for group in started},
            "spreads": {group.name: group.spreads().tolist() for group in started},
        }

    def _density(self) -> float:
        """The non-zero fraction of the trainable parameters, as hardening now would leave it."""
        others = [p for p in self.model.parameters() if p.requires_grad and p not in self._home]
        total = sum(group.num_weights for group in self.groups) + sum(p.numel() for p in others)
        nonzero = sum(int(torch.count_nonzero(p.detach())) for p in others)
        for group in self.groups:
            if group.assignments:
                nonzero += int(group.counts[self._alive(group)].sum())
            else:
                nonzero += sum(int(torch.count_nonzero(p)) for p in group.members.values())
        return nonzero / total

    def _alive(self, group: Group) -> np.ndarray:
        """Which clusters of a group are not zero."""
        return group.centers != 0

    def _predict(self) -> int:
        waiting = {p for g in self.groups if not g.assignments for p in g.members.values()}
        kept = sum(
            tensor.nbytes
            for tensor in set(filter(_is_tensor, self.model.state_dict(keep_vars=True).values()))
            if tensor not in self._home or tensor in waiting
        )
        started = [group for group in self.groups if group.assignments]
        counts = [counts for group in started for _, counts in group.tensor_counts()]
        codebooks = sum(len(group.centers) * group.dtype.itemsize for group in started)
        return predicted_bytes(counts, codebooks, kept)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)  # a module may save something else


def _patterns(patterns: Sequence[str] | str) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _clusters_by_group(num_clusters: NumClusters, names: list[str]) -> dict[str, int]:
    if isinstance(num_clusters, int):
        return dict.fromkeys(names, num_clusters)
    unknown = [name for name in num_clusters if name not in names]
    missing = [name for name in names if name not in num_clusters]
    mistakes = [f"num_clusters names a group {name!r}; groups are {names}" for name in unknown]
    mistakes += [f"num_clusters has no entry for the group {name!r}" for name in missing]
    if mistakes:
        raise ConfigError(*mistakes)
    return dict(num_clusters)


def _codebook(group: Group, centers: np.ndarray) -> tuple[Codebook, np.ndarray]:
    """The values a group's weights have, equal ones merged, and the new index of each cluster."""
    dtype = dtype_for(group.dtype)
    values = to_array(torch.from_numpy(centers + 0.0).to(group.dtype))  # -0.0 becomes +0.0
    used = np.flatnonzero(group.counts)
    ordered = used[np.argsort(centers[used], kind="stable")]
    bits = values.view(f"u{DTYPES[dtype.tag].item_bytes}")
    kept: list[int] = []
    renamed = np.zeros(len(values), np.int64)
    for k in ordered:
        if not kept or bits[kept[-1]] != bits[k]:
            kept.append(int(k))
        renamed[k] = len(kept) - 1
    return Codebook(dtype, values[kept]), renamed


def saved_of(group: Group, state: Mapping[str, Tensor | int | float]) -> Saved:
    """What a saved state has of one group, under the group's own names."""
    prefix = f"{group.name}/"
    return {k.removeprefix(prefix): v for k, v in state.items() if str(k).startswith(prefix)}
