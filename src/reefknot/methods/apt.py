"""Automatic parameter tying: plain, random and sparse APT, the paper's method.

Takes     a model, K, and the strengths of the two penalties.
Gives     weights that share K values, most of them exactly zero for sparse APT.
Paper     sections 3 to 3.3; equation 3.
Unaware   of the training loop, the data and the file.

Soft tying adds the penalties' gradient before each step and moves the centers after it; hard
tying gives each weight its cluster's mean gradient before each step, and the mean weight after it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Literal, Self

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from reefknot.format import encode
from reefknot.methods.hooks import Step
from reefknot.methods.method import Saved, Stats, log
from reefknot.methods.schedule import Price, Schedule, schedule_mistakes
from reefknot.methods.settings import (
    choice_mistakes,
    clusters_mistakes,
    count_mistakes,
    number_mistakes,
    selection_mistakes,
)
from reefknot.methods.sized import choose_zeros, require_reachable
from reefknot.methods.tied import NumClusters, TyingMethod, saved_of
from reefknot.tying import ops
from reefknot.tying.cost import TYPICAL_BITS, nonzero_bits
from reefknot.tying.group import Group, Start
from reefknot.tying.saved import saved_number
from reefknot.tying.selection import NETWORK, Norms, Scope
from reefknot.tying.through import FreeWeights

L1Step = Literal["subgradient", "proximal"]

_FRACTION_BITS = 52  # of a float64; narrower types have fewer
_CHOICES = {
    "init": ("even", "kmeans"),
    "l1_step": ("subgradient", "proximal"),
    "distance": ("l2", "l1"),
}


class _ParameterTying(TyingMethod):
    """What plain and sparse APT share."""

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        super().__init__(model, settings)
        self.tying_strength = float(settings["tying_strength"])
        own = {f.name for f in fields(Schedule)} & settings.keys()
        self.schedule = Schedule(**{key: settings[key] for key in own})
        self.l1_strength = float(settings.get("l1_strength", 0.0))
        self.l1_step = settings.get("l1_step", "subgradient")
        self.refit_every = int(settings["refit_every"])
        self._price = Price(self.schedule)
        self._free: list[FreeWeights] = []  # one for each group from `through_from` to `harden`
        self.center_bits = settings.get("center_bits")
        self.rate_power = float(settings.get("rate_power", 0.0))
        self._l1_factors: dict[str, Tensor] = {}  # by name; none before the first refit
        self.changed: float | None = None  # share of assignments that the last refit changed

    @classmethod
    def mistakes(cls, settings: Mapping[str, Any]) -> list[str]:
        """All that is wrong with these settings."""
        return [
            *clusters_mistakes(settings, least=2 if cls.has_zero_cluster else 1),
            *number_mistakes(settings, "l1_strength", "rate_power"),
            *count_mistakes(settings, "refit_every", meaning="a whole number of steps, or 0"),
            *schedule_mistakes(settings),
            *_small_file_mistakes(settings),
            *choice_mistakes(settings, _CHOICES),
            *selection_mistakes(settings),
        ]

    # -- training ---------------------------------------------------------------------------

    def attach(self, *optimizers: Optimizer) -> Self:
        """Begin soft tying with these optimizers; see `Method.attach`."""
        if self.schedule.target_bytes and not any(group.assignments for group in self.groups):
            require_reachable(self.groups, self.schedule.target_bytes, self._file_bytes)
        super().attach(*optimizers)
        self._start()
        return self

    def _start(self) -> None:
        for group in self.groups:
            if not group.assignments:
                group.start(self.settings["init"])
                self._predicted_bytes = None

    def before_step(self, step: Step) -> None:
        """Soft tying: add the pull to the own center and to zero. Hard tying: share gradients."""
        super().before_step(step)
        if self.hard:
            return
        self._start()  # again, if a state from before the start was loaded
        found = list(self._grads(step))  # before the weights are touched, since it may refuse some
        for free in self._free:
            free.put()
        tying = self.schedule.tying(self.step, self.tying_strength) * step.grad_scale
        l1 = self.l1_strength * step.grad_scale
        if self.relaxed or self.l1_step == "proximal":
            l1 = 0.0
        for group, grads in found:
            if not l1 or not self._l1_factors or not group.sparse:
                group.add_pull_(grads, tying, l1)
                continue
            group.add_pull_(grads, tying, 0.0)
            for name, grad in grads.items():
                sign = group.members[name].detach().sign().to(grad.dtype)
                grad.addcmul_(sign, self._l1_factors[name], value=l1)

    def after_step(self, step: Step) -> None:
        """Soft tying: move the centers, now and then refit. Hard tying: tie again."""
        super().after_step(step)
        if self.hard:
            return
        if self.l1_step == "proximal" and self.l1_strength and not self.relaxed:
            for rate, group, _, parameter in self._held_by(step):
                if parameter.grad is not None and group.sparse:
                    ops.soft_threshold_(parameter.detach(), rate * self.l1_strength)
        for free in self._free:
            free.take()
            free.tie(self._price.now)
        if not step.ends_round:
            return
        if self._free:
            self._weigh_through()
            return
        if self.schedule.relax_from and self.step == self.schedule.relax_from:
            self._relax()
        else:
            self._follow()
        if self.schedule.through_from and self.step == self.schedule.through_from:
            self._start_through()

    def _follow(self) -> None:
        """Soft tying: the centers follow the weights, and the assignment now and then."""
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
        return not self.hard and self.schedule.relaxed(self.step)

    def _relax(self) -> None:
        density = self._density()
        if self.refit_every:
            self._refit()
        for group in self.groups:
            if not self.refit_every:
                group.refresh()
        if self.schedule.target_bytes:
            choose_zeros(self.groups, self.schedule.bytes_to_relax, self._file_bytes)
        for group in self.groups:
            group.fix_zeros()
        self._predicted_bytes = None
        log.info("zeros are fixed: density %.4f before, %.4f after", density, self._density())

    def _start_through(self) -> None:
        self._free = [FreeWeights(group) for group in self.groups]
        for free in self._free:
            free.tie(0.0)
        self._predicted_bytes = None
        if self.schedule.target_bytes:
            sparse = [free for free in self._free if free.group.sparse]
            weights = [w for free in sparse for w in free.weights.values()]
            squares = sum(float(w.double().square().sum()) for w in weights)
            self._price.start(self._file_bytes(), squares / max(sum(len(w) for w in weights), 1))

    def _file_bytes(self) -> int:
        return len(encode(self._tied_state()))

    def _weigh_through(self) -> None:
        if self.schedule.looks_at_size(self.step):
            self._price.follow(self.step, self._file_bytes())
        self._predicted_bytes = None  # assignments change at every step
        if self.refit_every and self.step % self.refit_every == 0:
            for free in self._free:
                free.weigh()

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
        self._require_soft()
        self._start()
        if self.refit_every and not self._free:
            self._refit()
        self._free = []
        for group in self.groups:
            group.harden(zero_cluster=self.has_zero_cluster)
        self._hardened()

    def _written(self, group: Group) -> np.ndarray:
        if self.center_bits is None:
            return super()._written(group)
        mantissa, exponent = np.frexp(group.centers)  # a mantissa has its first bit at 1/2
        whole = np.round(np.ldexp(mantissa, self.center_bits + 1))
        return np.ldexp(whole, exponent - self.center_bits - 1)

    # -- reading and saving -----------------------------------------------------------------

    def state_dict(self) -> Saved:
        """Phase, step, centers, assignments, and free weights if there are any."""
        saved = super().state_dict()
        for free in self._free:
            saved.update({f"{free.group.name}/{k}": v for k, v in free.state_dict().items()})
        saved |= self._price.state_dict()
        return saved | {"changed": -1.0 if self.changed is None else self.changed}

    def _load(self, state: Mapping[str, Tensor | int | float]) -> None:
        super()._load(state)
        changed = saved_number(state, "changed", least=-1.0, most=1.0)
        self.changed = None if changed < 0 else changed
        self._price.load_state_dict(state)
        self._l1_factors = {}
        if self.changed is not None:
            self._weigh()
        self._free = []
        for group in self.groups:
            if self.hard or self.relaxed:
                group.require_zero_cluster()
            own = saved_of(group, state)
            if any(key.startswith("free.") for key in own):
                self._free.append(FreeWeights(group))
                self._free[-1].load_state_dict(own)

    def stats(self) -> Stats:
        """Density, k-means penalty, predicted bytes, and each group's clusters."""
        penalty = 0.0
        for group in self.groups:
            if not group.assignments:
                continue
            absolute, square = group.deviations()
            penalty += float(absolute.sum() if group.distance == "l1" else square.sum() / 2)
        return super().stats() | {"kmeans_penalty": penalty, "changed": self.changed}

    def _alive(self, group: Group) -> np.ndarray:
        alive = super()._alive(group)
        if group.sparse:
            alive[group.smallest_center()] = False
        return alive


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
        norms: scales and shifts of norm layers: with a codebook of their "own" and never pruned,
            "tied" with everything else, or "kept" exact.
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
        norms: Norms = "own",
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
            norms=norms,
            init=init,
            distance=distance,
        )


class RandomTying(_ParameterTying):
    """Random tying: plain APT without k-means, so that the clusters of the random start stay.

    The appendix of the paper has it as t = 20000; it is close to tying by hashing (Chen and others,
    2015). On a trained network the clusters would not be random.

    Args:
        model: any module with random weights; its state-dict keys stay as they are.
        num_clusters: K, or a mapping from group name to K.
        tying_strength: weight of the pull to the own center.
        scope: which parameters share a codebook: "network", "tensor", or a mapping from group
            names to name patterns, of which the first match counts.
        include: patterns of the parameters to tie.
        exclude: patterns of the parameters not to tie.
        norms: scales and shifts of norm layers: with a codebook of their "own" and never pruned,
            "tied" with everything else, or "kept" exact.
    """

    name: ClassVar[str] = "random_tying"
    has_zero_cluster: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        num_clusters: NumClusters = 16,
        tying_strength: float = 1e-5,
        *,
        scope: Scope = NETWORK,
        include: Sequence[str] | str = ("*",),
        exclude: Sequence[str] | str = (),
        norms: Norms = "own",
    ) -> None:
        super().__init__(
            model,
            num_clusters=num_clusters,
            tying_strength=tying_strength,
            refit_every=0,
            scope=scope,
            include=include,
            exclude=exclude,
            norms=norms,
            init="even",
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
        norms: scales and shifts of norm layers: with a codebook of their "own" and never pruned,
            "tied" with everything else, or "kept" exact.
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
        through_from: the soft step, not before `relax_from`, after which the model runs on tied
            values while the optimizer moves free weights behind them, which may still change
            their clusters; 0 for never.
        target_bytes: the size that the file shall have. At `relax_from` the smallest weights become
            zero, so many that the coder would write 5 % more; up to as many as survive L1 come
            back if there is room. From `through_from` on a weight goes to the value with the least
            distance² + price · bits, where bits is what value and place cost in the file, roughly,
            and nothing for zero. The price follows what the coder would write, which is looked at
            a hundred times until `relax_steps` after `relax_from`, and as often from then on. What
            a place costs is renewed every `refit_every` steps. 0 for none, and the nearest value.
        center_bits: how many bits of each center's fraction `finish` keeps, which makes the
            codebook smaller; None keeps all.
    """

    name: ClassVar[str] = "sparse_apt"

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
        norms: Norms = "own",
        init: Start = "even",
        distance: Literal["l2", "l1"] = "l2",
        rate_power: float = 0.0,
        relax_from: int = 0,
        relax_tying: float | None = None,
        relax_steps: int = 0,
        through_from: int = 0,
        target_bytes: int = 0,
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
            norms=norms,
            init=init,
            distance=distance,
            rate_power=rate_power,
            relax_from=relax_from,
            relax_tying=relax_tying,
            relax_steps=relax_steps,
            through_from=through_from,
            target_bytes=target_bytes,
            center_bits=center_bits,
        )


def _small_file_mistakes(settings: Mapping[str, Any]) -> Iterator[str]:
    if settings.get("center_bits") is not None:
        meaning = f"a whole number of bits from 0 to {_FRACTION_BITS}"
        yield from count_mistakes(settings, "center_bits", most=_FRACTION_BITS, meaning=meaning)
    if settings.get("rate_power") and settings.get("l1_step", "subgradient") != "subgradient":
        yield 'rate_power needs l1_step = "subgradient": a proximal step has one strength for all'
