"""Automatic parameter tying: plain and sparse APT, the paper's method.

Takes     a model, K, and the strengths of the two penalties.
Gives     weights that share K values, most of them exactly zero for sparse APT.
Paper     sections 3 to 3.3; equation 3.
Unaware   of the training loop, the data and the file.

Soft tying adds the penalties' gradient before each step and moves the centers after it; hard
tying replaces each weight by its cluster's mean after each step. Averaging the gradients alone
would not do: what an optimizer remembers per weight differs inside a cluster.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from reefknot.dtypes import DTYPES
from reefknot.errors import ConfigError, TyingError
from reefknot.methods.hooks import Step, dense_grad
from reefknot.methods.method import Method, Saved, Stats, log
from reefknot.rates import predicted_bytes
from reefknot.state import MAX_CODEBOOK, Codebook, TiedState
from reefknot.tensors import dtype_for, to_array
from reefknot.tying import ops
from reefknot.tying.cost import TYPICAL_BITS, nonzero_bits
from reefknot.tying.group import Group, Start
from reefknot.tying.selection import NETWORK, TENSOR, Scope, original_name, select

NumClusters = int | Mapping[str, int]
L1Step = Literal["subgradient", "proximal"]


class _ParameterTying(Method):
    """What plain and sparse APT share."""

    has_zero_cluster: ClassVar[bool]

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        found = self.mistakes(settings)
        if found:
            raise ConfigError(*found)
        self.settings = settings
        self.tying_strength = float(settings["tying_strength"])
        self.l1_strength = float(settings.get("l1_strength", 0.0))
        self.l1_step = settings.get("l1_step", "subgradient")
        self.refit_every = int(settings["refit_every"])
        self.relax_from = int(settings.get("relax_from", 0))
        self.relax_steps = int(settings.get("relax_steps", 0))
        self.relax_tying = settings.get("relax_tying")
        self.center_bits = settings.get("center_bits")
        self.rate_power = float(settings.get("rate_power", 0.0))
        self._l1_factors: dict[str, Tensor] = {}  # by name; none before the first refit
        self.changed: float | None = None  # share of assignments that the last refit changed
        self._predicted_bytes: int | None = None
        super().__init__(model)
        selection = select(
            self.model,
            include=_patterns(settings["include"]),
            exclude=_patterns(settings["exclude"]),
            scope=settings["scope"],
        )
        self.skipped = dict(selection.skipped)
        clusters = _clusters_by_group(settings["num_clusters"], list(selection.groups))
        self.groups = [
            Group(name, members, clusters[name], settings["distance"])
            for name, members in selection.groups.items()
        ]
        self._home = {
            id(p): (group, name) for group in self.groups for name, p in group.members.items()
        }
        if self.skipped:
            log.warning(
                "not tied: %s", "; ".join(f"{n} ({why})" for n, why in self.skipped.items())
            )

    @classmethod
    def mistakes(cls, settings: Mapping[str, Any]) -> list[str]:
        """All that is wrong with these settings."""
        return list(_mistakes(settings, 2 if cls.has_zero_cluster else 1))

    # -- training ---------------------------------------------------------------------------

    def attach(self, *optimizers: Optimizer) -> "_ParameterTying":
        """Begin soft tying with these optimizers; see `Method.attach`."""
        self._check_members()
        super().attach(*optimizers)
        self._start()
        moved = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
        idle = [name for key, (_, name) in self._home.items() if key not in moved]
        if idle:
            log.warning("tied, but no attached optimizer trains them: %s", ", ".join(idle))
        return self

    def _check_members(self) -> None:
        """The model must still have the parameters that are tied, and each group one type."""
        present = {original_name(name): p for name, p in self.model.named_parameters()}
        for group in self.groups:
            for name, parameter in group.members.items():
                if present.get(name) is not parameter:
                    raise TyingError(
                        f"the model has another parameter {name!r} than when it was given to "
                        f"{type(self).__name__}; make the method after the last change of the model"
                    )
                if parameter.dtype != group.dtype:
                    raise TyingError(
                        f"{name!r} is now {parameter.dtype}, others of its group {group.dtype}; "
                        "convert the model before it is given to the method"
                    )

    def _start(self) -> None:
        for group in self.groups:
            if not group.assignments:
                group.start(self.settings["init"])

    def before_step(self, step: Step) -> None:
        """Soft tying: add the pull to the own center and to zero."""
        if self.hard:
            return
        tying = self._tying_now() * step.grad_scale
        l1 = self.l1_strength * step.grad_scale
        if self.relaxed or self.l1_step == "proximal":
            l1 = 0.0
        for _, group, name, parameter in self._held_by(step):
            grad = dense_grad(name, parameter)
            if grad is None:
                continue
            factors = self._l1_factors.get(name) if l1 else None
            if factors is None:
                group.add_pull_(name, grad, tying, l1)
            else:
                group.add_pull_(name, grad, tying, 0.0)
                grad.addcmul_(parameter.detach().sign().to(grad.dtype), factors, value=l1)

    def after_step(self, step: Step) -> None:
        """Soft tying: move the centers, now and then refit. Hard tying: tie again."""
        super().after_step(step)
        if self.hard:
            for group in self.groups:
                group.retie()
            return
        if self.l1_step == "proximal" and self.l1_strength and not self.relaxed:
            for rate, _, _, parameter in self._held_by(step):
                if parameter.grad is not None:
                    ops.soft_threshold_(parameter.detach(), rate * self.l1_strength)
        if not step.ends_round:
            return
        if self.relax_from and self.step == self.relax_from:
            self._relax()
            return
        if self.relaxed:
            for group in self.groups:
                group.hold_zeros()
        if self.refit_every and self.step % self.refit_every == 0:
            self._refit()
        else:
            for group in self.groups:
                group.refresh()

    @property
    def relaxed(self) -> bool:
        """Whether the zeros are fixed and the L1 penalty is off; see `relax_from`."""
        return not self.hard and bool(self.relax_from) and self.step >= self.relax_from

    def _relax(self) -> None:
        if self.refit_every:
            self._refit()
        for group in self.groups:
            group.fix_zeros()
        self._predicted_bytes = None

    def _tying_now(self) -> float:
        """The tying strength, which grows by the same factor at each relaxed step if asked to."""
        if self.relax_tying is None or not self.relaxed:
            return self.tying_strength
        done = min(1.0, (self.step - self.relax_from) / max(self.relax_steps, 1))
        return self.tying_strength * (float(self.relax_tying) / self.tying_strength) ** done

    def _held_by(self, step: Step) -> list[tuple[float, Group, str, nn.Parameter]]:
        """The tied parameters that the stepping optimizer moves, with their rates."""
        return [
            (float(param_group["lr"]), *self._home[id(parameter)], parameter)
            for param_group in step.optimizer.param_groups
            for parameter in param_group["params"]
            if id(parameter) in self._home
        ]

    def _refit(self) -> None:
        total = sum(group.num_weights for group in self.groups)
        changed = [group.refit() * group.num_weights for group in self.groups]
        self.changed = sum(changed) / total
        self._weigh()
        self._predicted_bytes = None

    def _weigh(self) -> None:
        """Renew what each weight's L1 strength is multiplied with; the assignment decides it."""
        if not self.rate_power:
            return
        for group in self.groups:
            zero = group.smallest_center()
            for name, parameter in group.members.items():
                bits = nonzero_bits(group.assignment(name) != zero)
                factors = (bits / TYPICAL_BITS) ** self.rate_power
                self._l1_factors[name] = ops.like(factors.to(parameter.dtype), parameter)

    def harden(self) -> None:
        """Refit once more, project, make the zero cluster exactly zero, freeze the assignment."""
        if self.hard:
            raise TyingError("the weights are hard already; harden() is called once")
        self._check_members()
        self._start()
        if self.refit_every:
            self._refit()
        for group in self.groups:
            group.harden(zero_cluster=self.has_zero_cluster)
        self.hard = True
        self._predicted_bytes = None

    # -- the result -------------------------------------------------------------------------

    def finish(self) -> TiedState:
        """The tied state; the weights must still be exactly tied."""
        self._require_hard()
        self._check_members()
        codebooks: list[Codebook] = []
        tied: dict[str, tuple[int, np.ndarray]] = {}
        for group in self.groups:
            for name in group.untied():
                raise TyingError(
                    f"{name!r} is no longer tied to its centers; were weights loaded or changed "
                    "after the last optimizer step?"
                )
            if self.center_bits is not None:
                group.round_centers(self.center_bits)
            codebook, renamed = _codebook(group)
            for name, parameter in group.members.items():
                index = to_array(group.assignment(name).contiguous().view(parameter.shape))
                tied[name] = (len(codebooks), renamed[index])
            codebooks.append(codebook)
        self.detach()
        return self._state(tied, tuple(codebooks))

    def state_dict(self) -> Saved:
        """Phase, step, centers and assignments."""
        saved = super().state_dict() | {"changed": -1.0 if self.changed is None else self.changed}
        for group in self.groups:
            if group.assignments:
                saved.update({f"{group.name}/{key}": v for key, v in group.state_dict().items()})
        return saved

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Go on exactly where `state_dict` was called; before or after `attach`."""
        super().load_state_dict(state)
        changed = float(state["changed"])
        self.changed = None if changed < 0 else changed
        for group in self.groups:
            prefix = f"{group.name}/"
            own = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            if not own and len(state) > 3:
                raise TyingError(
                    f"the saved state has no group {group.name!r}; was the scope another?"
                )
            if own:
                group.load_state_dict(own)
        if self.changed is not None:
            self._weigh()
        self._predicted_bytes = None

    def stats(self) -> Stats:
        """Density, k-means penalty, predicted bytes, and each group's clusters."""
        self._start()
        penalty, spreads = 0.0, {}
        for group in self.groups:
            absolute, square = group.deviations()
            penalty += float(absolute.sum() if group.distance == "l1" else square.sum() / 2)
            spreads[group.name] = np.sqrt(square / np.maximum(group.counts, 1)).tolist()
        if self._predicted_bytes is None:
            self._predicted_bytes = self._predict()
        return super().stats() | {
            "density": self._density(),
            "kmeans_penalty": penalty,
            "predicted_bytes": self._predicted_bytes,
            "changed": self.changed,
            "centers": {group.name: group.centers.tolist() for group in self.groups},
            "counts": {group.name: group.counts.tolist() for group in self.groups},
            "spreads": spreads,
        }

    def _density(self) -> float:
        """The non-zero fraction of the trainable parameters, as hardening now would leave it."""
        others = [p for p in self.model.parameters() if p.requires_grad and id(p) not in self._home]
        total = sum(group.num_weights for group in self.groups) + sum(p.numel() for p in others)
        nonzero = sum(int(torch.count_nonzero(p.detach())) for p in others)
        for group in self.groups:
            alive = group.centers != 0
            if self.has_zero_cluster:
                alive[group.smallest_center()] = False
            nonzero += int(group.counts[alive].sum())
        return nonzero / total

    def _predict(self) -> int:
        kept = sum(
            tensor.nbytes
            for tensor in {
                id(t): t for t in self.model.state_dict(keep_vars=True).values()
            }.values()
            if id(tensor) not in self._home
        )
        counts = [counts for group in self.groups for _, counts in group.tensor_counts()]
        codebooks = sum(len(group.centers) * group.dtype.itemsize for group in self.groups)
        return predicted_bytes(counts, codebooks, kept)


class APT(_ParameterTying):
    """Plain APT: the k-means prior alone, no zero cluster.

    Args:
        model: any module; its state-dict keys stay as they are.
        num_clusters: K, or a mapping from group name to K.
        tying_strength: the paper's lambda 1, weight of the k-means penalty.
        refit_every: steps between full k-means runs; 0 never refits (random tying).
        scope: which parameters share a codebook: "network", "tensor", or a mapping from group
            names to name patterns, of which the first match counts.
        include: patterns of the parameters to tie.
        exclude: patterns of the parameters not to tie.
        init: first centers, "even" over the range of the weights or by "kmeans" (better from a
            trained parent).
        distance: "l2" (k-means) or "l1" (k-medians).
    """

    name: ClassVar[str] = "apt"
    has_zero_cluster: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        num_clusters: NumClusters = 16,
        tying_strength: float = 1e-5,
        *,
        refit_every: int = 1000,
        scope: Scope = NETWORK,
        include: Sequence[str] | str = ("*",),
        exclude: Sequence[str] | str = (),
        init: Start = "even",
        distance: Literal["l2", "l1"] = "l2",
    ) -> None:
        super().__init__(
            model,
            num_clusters=num_clusters,
            tying_strength=tying_strength,
            refit_every=refit_every,
            scope=scope,
            include=include,
            exclude=exclude,
            init=init,
            distance=distance,
        )


class SparseAPT(_ParameterTying):
    """Sparse APT: the k-means prior and an L1 penalty, with a cluster at exactly zero.

    Args:
        model: any module; its state-dict keys stay as they are.
        num_clusters: K, zero included, or a mapping from group name to K.
        tying_strength: the paper's lambda 1, weight of the k-means penalty.
        l1_strength: the paper's lambda 2, weight of the L1 penalty; controls the sparsity.
        refit_every: steps between full k-means runs; 0 never refits (random tying).
        l1_step: "subgradient" adds l1_strength·sign(w) to the gradient, as the paper does;
            "proximal" moves each weight by rate·l1_strength towards zero after the step and
            reaches zero exactly. See docs/method.md for how the two compare.
        scope: which parameters share a codebook: "network", "tensor", or a mapping from group
            names to name patterns, of which the first match counts.
        include: patterns of the parameters to tie.
        exclude: patterns of the parameters not to tie.
        init: first centers, "even" over the range of the weights or by "kmeans" (better from a
            trained parent).
        distance: "l2" (k-means) or "l1" (k-medians).
        rate_power: the L1 strength of each weight is multiplied with (bits / 9) to this power,
            where bits is what a non-zero in its place costs in the file, roughly; renewed at each
            refit. 0 is the same strength for all.
        relax_from: the soft step after which the zero cluster is fixed at zero and the L1 penalty
            ends, so that it no longer shrinks what survives; 0 for never.
        relax_tying: the tying strength that is reached `relax_steps` steps after that, growing by
            the same factor each step; None leaves it as it is.
        relax_steps: see `relax_tying`.
        center_bits: how many bits of each center's fraction `finish` keeps, which makes the
            codebook smaller; None keeps all.
    """

    name: ClassVar[str] = "sparse_apt"
    has_zero_cluster: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        num_clusters: NumClusters = 17,
        tying_strength: float = 1e-5,
        l1_strength: float = 1e-4,
        refit_every: int = 1000,
        *,
        l1_step: L1Step = "subgradient",
        scope: Scope = NETWORK,
        include: Sequence[str] | str = ("*",),
        exclude: Sequence[str] | str = (),
        init: Start = "even",
        distance: Literal["l2", "l1"] = "l2",
        rate_power: float = 0.0,
        relax_from: int = 0,
        relax_tying: float | None = None,
        relax_steps: int = 0,
        center_bits: int | None = None,
    ) -> None:
        super().__init__(
            model,
            num_clusters=num_clusters,
            tying_strength=tying_strength,
            l1_strength=l1_strength,
            refit_every=refit_every,
            l1_step=l1_step,
            scope=scope,
            include=include,
            exclude=exclude,
            init=init,
            distance=distance,
            rate_power=rate_power,
            relax_from=relax_from,
            relax_tying=relax_tying,
            relax_steps=relax_steps,
            center_bits=center_bits,
        )


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


def _codebook(group: Group) -> tuple[Codebook, np.ndarray]:
    """The values a group's weights have, equal ones merged, and the new index of each cluster."""
    dtype = dtype_for(group.dtype)
    values = to_array(torch.from_numpy(group.centers).to(group.dtype))
    used = np.flatnonzero(group.counts)
    ordered = used[np.argsort(group.centers[used], kind="stable")]
    bits = values.view(f"u{DTYPES[dtype.tag].item_bytes}")
    kept: list[int] = []
    renamed = np.zeros(len(values), np.int64)
    for k in ordered:
        if not kept or bits[kept[-1]] != bits[k]:
            kept.append(int(k))
        renamed[k] = len(kept) - 1
    return Codebook(dtype, values[kept]), renamed


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_strength(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _relax_mistakes(settings: Mapping[str, Any]) -> Any:
    steps = settings.get("relax_steps", 0)
    if not _is_count(steps):
        yield f"relax_steps must be a whole number of steps, found {steps!r}"
    reached = settings.get("relax_tying")
    if reached is not None:
        if not _is_strength(reached) or reached == 0:
            yield f"relax_tying must be a number above 0, found {reached!r}"
        if not settings.get("relax_from", 0):
            yield "relax_tying needs relax_from, the step at which the strength begins to grow"
        if settings.get("tying_strength", 1e-5) == 0:
            yield "relax_tying grows from tying_strength, which must then be above 0"
    bits = settings.get("center_bits")
    if bits is not None and not _is_count(bits):
        yield f"center_bits must be a whole number of bits, found {bits!r}"


def _mistakes(settings: Mapping[str, Any], least: int) -> Any:
    """One sentence for each setting that cannot be used."""
    clusters = settings.get("num_clusters", least)
    for k in clusters.values() if isinstance(clusters, Mapping) else [clusters]:
        if not isinstance(k, int) or isinstance(k, bool) or not least <= k <= MAX_CODEBOOK:
            yield (
                f"num_clusters must be a whole number from {least} to {MAX_CODEBOOK:,}, found {k!r}"
            )
    for key in ("tying_strength", "l1_strength", "rate_power"):
        value = settings.get(key, 0.0)
        if not _is_strength(value):
            yield f"{key} must be a number of at least 0, found {value!r}"
    for key in ("refit_every", "relax_from"):
        every = settings.get(key, 0)
        if not _is_count(every):
            yield f"{key} must be a whole number of steps, or 0 for never, found {every!r}"
    yield from _relax_mistakes(settings)
    if settings.get("rate_power") and settings.get("l1_step", "subgradient") != "subgradient":
        yield 'rate_power needs l1_step = "subgradient": a proximal step has one strength for all'
    choices = {
        "init": ("even", "kmeans"),
        "l1_step": ("subgradient", "proximal"),
        "distance": ("l2", "l1"),
    }
    for key, allowed in choices.items():
        if settings.get(key, allowed[0]) not in allowed:
            yield f"{key} must be one of {', '.join(allowed)}, found {settings[key]!r}"
    scope = settings.get("scope", NETWORK)
    if not isinstance(scope, Mapping) and scope not in (NETWORK, TENSOR):
        yield (
            f"scope must be {NETWORK!r}, {TENSOR!r} or a table from group names to name patterns, "
            f"found {scope!r}"
        )
    groups = scope if isinstance(scope, Mapping) else {}
    patterns = {f"scope.{group}": found for group, found in groups.items()}
    patterns |= {key: settings.get(key, ()) for key in ("include", "exclude")}
    for key, found in patterns.items():
        if isinstance(found, str):
            continue
        if not isinstance(found, Sequence) or not all(isinstance(p, str) for p in found):
            yield f"{key} must be a name pattern or a list of them, found {found!r}"
