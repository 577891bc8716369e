"""The base class of methods whose weights end in groups that share a codebook each.

Takes     a model and settings: which parameters, which of them share values, and how many values.
Gives     the groups; in the hard phase weights that stay tied; and at the end their state.
Paper     section 3.2.
Unaware   of how a method finds its clusters.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Optimizer

from reefknot.batchnorm import inference_form
from reefknot.errors import ConfigError, TyingError
from reefknot.kernels.kmeans1d import Distance
from reefknot.methods.content import Content, codebook_of, indices_of
from reefknot.methods.hooks import Step, dense_grad, trained_by
from reefknot.methods.method import Indices, Method, Saved, Stats, file_bytes, log
from reefknot.methods.settings import (
    are_clusters,
    are_patterns,
    is_choice,
    is_scope,
    setting,
    settings_of,
)
from reefknot.shrinking.graph import dead_elements
from reefknot.state import Codebook, TiedState
from reefknot.tying.agreement import fingerprint, require_alike
from reefknot.tying.collectives import Peers, is_divided, local, nonzeros, peers_of, reshard
from reefknot.tying.group import Group, Shared
from reefknot.tying.selection import NETWORK, Norms, Scope, original_name, select

NumClusters = int | Mapping[str, int]


class TyingMethod(Method):
    """A method whose weights end in clusters: `groups` holds them.

    A group may have no clusters before `harden`. From then on, gradients are shared before each
    optimizer step (every weight gets its cluster's mean, or sum: `shared`), and weights are
    projected after it (every weight becomes its cluster's mean); zeros stay zero. Both are needed.
    Optimizer state differs within a cluster, so shared gradients alone do not keep weights equal.
    Adaptive optimizers scale each weight's step, so the mean of those steps need not be a descent
    direction.
    """

    shared: ClassVar[Shared] = "mean"
    has_zero_cluster: ClassVar[bool] = True
    works_on_shards: ClassVar[bool] = False  # of tensors that no process has as a whole

    num_clusters: NumClusters = setting(
        default=17,
        doc="K, zero included, or a table from group names to K",
        check=are_clusters(least=2),
        kw_only=False,
    )
    scope: Scope = setting(
        default=NETWORK,
        doc='which parameters share a codebook: "network", "tensor", or a table from group names '
        "to name patterns, of which the first match counts",
        check=is_scope,
    )
    include: Sequence[str] | str = setting(
        default="*", doc="patterns of the parameters to tie", check=are_patterns
    )
    exclude: Sequence[str] | str = setting(
        default=(), doc="patterns of the parameters not to tie", check=are_patterns
    )
    norms: Norms = setting(
        default="own",
        doc='scales and shifts of norm layers: with a codebook of their "own" and never pruned, '
        '"tied" with everything else, "kept" exact, or "inference": when training ends the '
        "statistics of BatchNorm become part of scale and shift, two numbers of 8 bits a channel, "
        "in a file to be trained on only after `update_batchnorm`",
        check=is_choice(*get_args(Norms)),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._predicted_bytes: int | None = None  # None: not known, ask the coder
        selection = select(
            self.model,
            include=_patterns(self.include),
            exclude=_patterns(self._excluded()),
            scope=self.scope,
            norms=self.norms,
        )
        self.skipped = dict(selection.skipped)
        clusters = _clusters_by_group(self._first_clusters(), list(selection.groups))
        self.groups = [
            Group(
                name,
                members,
                clusters[name],
                self._distance(),
                sparse=self.has_zero_cluster and name not in selection.dense,
                most_clusters=self._most_clusters(),
            )
            for name, members in selection.groups.items()
        ]
        self._home = {
            p: (group, name) for group in self.groups for name, p in group.members.items()
        }
        self._slots = _slots(self.model, self._home)
        self.peers = peers_of((name, p) for p, (_, name) in self._home.items())
        if self.peers.several and not self.works_on_shards:
            first = next(iter(self.groups[0].members))
            raise TyingError(
                f"{type(self).__name__} needs whole tensors, and {first!r} "
                "is sharded; train it with DistributedDataParallel, or take SparseAPT or APT"
            )
        if self.skipped:
            log.warning("not tied: %s", "; ".join(_by_reason(self.skipped)))

    def _excluded(self) -> Sequence[str] | str:
        return self.exclude

    def _distance(self) -> Distance:
        return "l2"

    def _first_clusters(self) -> NumClusters:
        return self.num_clusters

    def _most_clusters(self) -> int | None:
        """The largest K, if the method chooses it."""
        return None

    # -- training ---------------------------------------------------------------------------

    def attach(self, *optimizers: Optimizer) -> Self:
        """Follow these optimizers from now on; see `Method.attach`."""
        self._check_members()
        return super().attach(*optimizers)

    def _check_trained(self, optimizers: tuple[Optimizer, ...]) -> None:
        self._check_alike()
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

    def _check_alike(self) -> None:
        """All processes must tie the same model in the same way."""
        groups = (*self.copies, *self.peers.groups)
        if not groups:
            return
        facts = {f.name: str(getattr(self, f.name)) for f in settings_of(type(self))}
        for group in self.groups:
            facts[f"num_clusters of group {group.name!r}"] = str(group.num_clusters)
            for name, parameter in group.members.items():
                facts[f"the type of {name!r}"] = str(parameter.dtype)
                facts[f"the shape of {name!r}"] = str(tuple(parameter.shape))
        facts = {"the method": type(self).__name__} | facts
        require_alike(facts, groups, self.device(), "what is tied")
        self._check_copies()

    def _check_copies(self) -> None:
        """Processes that hold the same weights must not drift apart."""
        if not self.copies:
            return
        members = {n: group.here(n) for group in self.groups for n in group.members}
        prints = {
            f"the sum over the bits of {name!r}": str(row.tolist())
            for name, row in zip(members, fingerprint(members.values()), strict=True)
        }
        require_alike(prints, self.copies, self.device(), f"weights after step {self.step:,}")

    def before_step(self, step: Step) -> None:
        """Hard phase: give all weights of a cluster the same gradient."""
        self._follow_slots()
        self._follow_members()
        super().before_step(step)
        if self.hard:
            self.share_gradients(step)

    def after_step(self, step: Step) -> None:
        """Hard phase: tie again."""
        self._follow_members()
        super().after_step(step)
        if self.hard:
            self.retie()

    def share_gradients(self, step: Step) -> None:
        """Give all weights of a cluster the mean, or the sum, of their gradients."""
        if self.shared == "mean" and type(step.optimizer) is SGD:
            return  # SGD is linear: `retie` averages the steps to the same result
        for group, grads in self.gradients(step):
            group.share_gradients_(grads, self.shared)

    def retie(self) -> None:
        """Set each weight to the mean of its cluster."""
        for group in self.groups:
            group.retie()
        self._predicted_bytes = None

    def held_by(self, step: Step) -> Iterator[tuple[float, Group, str, nn.Parameter]]:
        """The tied parameters that the stepping optimizer moves, with their learning rates."""
        for param_group in step.optimizer.param_groups:
            for parameter in param_group["params"]:
                if parameter in self._home:
                    yield float(param_group["lr"]), *self._home[parameter], parameter

    def gradients(self, step: Step) -> Iterator[tuple[Group, dict[str, Tensor]]]:
        """For each group, the gradients of its members that the stepping optimizer moves."""
        found: dict[str, dict[str, Tensor]] = {}
        for _, group, name, parameter in self.held_by(step):
            grad = dense_grad(name, parameter)
            if grad is not None:
                found.setdefault(group.name, {})[name] = grad
        for group in self.groups:
            if group.name in found:
                yield group, found[group.name]

    def _check_members(self) -> None:
        """Check that the model still has the tied parameters, in a layout that can be tied."""
        reshard(self.model)
        present = {original_name(name): p for name, p in self.model.named_parameters()}
        for group in self.groups:
            for name, parameter in group.members.items():
                if present.get(name) is not parameter:
                    raise TyingError(self._replaced(name))
        self._follow_members()

    def _follow_slots(self) -> None:
        """The same before each step, which must be quick."""
        for slots, key, parameter in self._slots:
            if slots.get(key) is not parameter:
                raise TyingError(self._replaced(self._home[parameter][1]))

    def _replaced(self, name: str) -> str:
        return (
            f"the model has another parameter {name!r} than when it was given to "
            f"{type(self).__name__}; make the method after the last change of the model (to() with "
            "a new type, FSDP), and the optimizer after the method"
        )

    def _follow_members(self) -> None:
        """Notice moved parameters; called before any of them is read or written."""
        for group in self.groups:
            group.follow()

    def _require_soft(self) -> None:
        """Checks at the start of `harden`."""
        if self.hard:
            raise TyingError("the weights are hard already; harden() is called once")
        self._check_members()

    def _hardened(self) -> None:
        """The end of `harden`: all groups have clusters, and all weights are tied."""
        self.hard = True
        self._predicted_bytes = None

    # -- the result -------------------------------------------------------------------------

    def finish(self) -> TiedState:
        """The tied state; the weights must still be exactly tied.

        Where they are sharded every process must call it, and has all of the state then.
        """
        self.settle()
        return self.tied_state()

    def settle(self) -> None:
        """What `finish` does to the model: the weights are as the file will have them, for good."""
        self._require_hard()
        self._check_members()
        for group in self.groups:
            for name in group.untied():
                raise TyingError(
                    f"{name!r} is no longer tied to its centers; were weights loaded or changed "
                    "after the last optimizer step?"
                )
            group.move_centers(self._written(group))
        self._replace_values()
        self.detach()

    def _replaced_values(self) -> dict[str, Tensor]:
        """BatchNorm in its form for inference, if that is asked for."""
        if self.norms != "inference":
            return {}
        return {
            f"{original_name(name)}.{key}".removeprefix("."): value
            for name, module in self.model.named_modules()
            if isinstance(module, _BatchNorm)
            for key, value in inference_form(module).items()
        }

    @torch.no_grad()
    def _replace_values(self) -> None:
        """Give the model what `_replaced_values` has for it."""
        replaced = self._replaced_values()
        if replaced and self.example_input is not None:
            for name, dead in dead_elements(self.model, self.example_input).items():
                if name in replaced and not name.endswith("running_var"):
                    replaced[name].masked_fill_(dead, 0.0)
        entries = self._entries()
        for name, value in replaced.items():
            entries[name].copy_(value)

    def tied_state(self) -> TiedState:
        """The current clusters, with the values that a file would hold."""
        content = self.content()
        return TiedState(content.codebooks, tuple(content.tensors), content.aliases)

    def num_elements(self) -> int:
        """Of all tensors that a file of the model has."""
        return sum(value.numel() for value in self._owned().values())

    def device(self) -> str:
        """Where the tied weights are."""
        return str(local(next(iter(self._home))).device)

    def content(self) -> Content:
        """The same in parts: tensors come one at a time, so that no process must hold all."""
        codebooks: list[Codebook] = []
        tied: dict[str, tuple[int, Indices]] = {}
        for group in self.groups:
            codebook, renamed = codebook_of(group, self._written(group))
            for name in group.members:
                tied[name] = len(codebooks), partial(indices_of, group, name, renamed)
            codebooks.append(codebook)
        return Content(tuple(codebooks), self._stored(tied), self._aliases())

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
        """Density, predicted bytes, and the clusters of each group that has some."""
        self._follow_members()
        if self._predicted_bytes is None:
            self._predicted_bytes = self._predict()
        started = [group for group in self.groups if group.assignments]
        return super().stats() | {
            "density": self._density(),
            "predicted_bytes": self._predicted_bytes,
            "num_clusters": max(group.num_clusters for group in self.groups),
            "centers": {group.name: group.centers.tolist() for group in started},
            "counts": {group.name: group.counts.tolist() for group in started},
            "spreads": {group.name: group.spreads().tolist() for group in started},
        }

    def _density(self) -> float:
        """The non-zero fraction of the trainable parameters, as hardening now would leave it."""
        others = [p for p in self.model.parameters() if p.requires_grad and p not in self._home]
        total = sum(group.num_weights for group in self.groups) + sum(p.numel() for p in others)
        nonzero = sum(nonzeros(p) for p in others)
        for group in self.groups:
            if group.assignments:
                nonzero += int(group.counts[self._alive(group)].sum())
            else:
                nonzero += sum(nonzeros(p) for p in group.members.values())
        return nonzero / total

    def _alive(self, group: Group) -> np.ndarray:
        """Which clusters of a group are not zero."""
        return group.centers != 0

    def file_bytes(self) -> int:
        """The size of a file with the current clusters, the same in all processes.

        One process measures it: buffers, such as statistics of BatchNorm, may differ in the
        others, and all must steer alike.
        """
        return self._size_among(Peers((*self.copies, *self.peers.groups), self.device()))

    def _size_among(self, peers: Peers) -> int:
        content = self.content()
        held = [tensor for tensor in content.tensors if peers.first]
        return peers.told(
            lambda: file_bytes(TiedState(content.codebooks, tuple(held), content.aliases))
        )

    def _predict(self) -> int:
        """The size of the file; before there are clusters, that of the uncompressed tensors.

        Where weights are replicated, each process may measure it for itself.
        """
        if all(group.assignments for group in self.groups):
            return self._size_among(self.peers)
        tensors = self.model.state_dict(keep_vars=True).values()
        return sum(t.nbytes for t in {id(t): t for t in tensors if isinstance(t, Tensor)}.values())


class WithoutZeroCluster(TyingMethod):
    """A tying method that makes no weight zero."""

    has_zero_cluster: ClassVar[bool] = False

    num_clusters: NumClusters = setting(
        default=16,
        doc="K, or a table from group names to K",
        check=are_clusters(least=1),
        kw_only=False,
    )


_NAMED = 4  # parameters that a warning names for each reason; `skipped` has all


def _by_reason(skipped: Mapping[str, str]) -> Iterator[str]:
    """What is not tied, one part of a sentence for each reason."""
    for reason in dict.fromkeys(skipped.values()):
        names = [name for name, why in skipped.items() if why == reason]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"{', '.join(names[:_NAMED])}{more} ({reason})"


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


def _slots(
    model: nn.Module, tied: Iterable[Tensor]
) -> list[tuple[dict[str, Any], str, nn.Parameter]]:
    """Where modules hold these parameters, but for those that FSDP takes out and puts back."""
    wanted = {parameter for parameter in tied if not is_divided(parameter)}
    return [
        (module._parameters, key, parameter)
        for module in model.modules()
        for key, parameter in module._parameters.items()
        if parameter is not None and parameter in wanted
    ]


def saved_of(group: Group, state: Mapping[str, Tensor | int | float]) -> Saved:
    """The entries of one group in a saved state, without the group's prefix."""
    prefix = f"{group.name}/"
    return {k.removeprefix(prefix): v for k, v in state.items() if str(k).startswith(prefix)}
