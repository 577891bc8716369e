"""Automatic parameter tying: plain, random and sparse APT, the paper's method.

Takes     a model, K, and the strengths of the two penalties; or a target size and a number of
          steps.
Gives     the list of phases in which weights come to share K values, most of them exactly zero for
          sparse APT.
Paper     sections 3 to 3.3; equation 3.
Unaware   of the training loop, the data and the file.

Soft tying adds the gradient of the penalties before each step and moves the centers after it. Hard
tying gives each weight the mean gradient of its cluster before each step, and the mean weight after
it.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from reefknot.batchnorm import filled, has_statistics
from reefknot.errors import ConfigError, TyingError
from reefknot.kernels.kmeans1d import Distance
from reefknot.methods.method import NORMS_DOC, RENAMED_NORMS, Stats, TyingMethod, WithoutZeroCluster
from reefknot.methods.plan import Bought
from reefknot.methods.settings import are_clusters, is_choice, is_count, is_number, setting
from reefknot.phases.budget import TIED, Begin, begin_of, phases_for
from reefknot.phases.frozen import Frozen
from reefknot.phases.phase import Phase
from reefknot.phases.prune import Pruning, with_zeros
from reefknot.phases.sparsify import L1Step, Sparsify
from reefknot.phases.target import Target
from reefknot.tying.kmeans import Start
from reefknot.tying.selection import Norms
from reefknot.tying.tying import NumClusters, Tying

log = logging.getLogger("reefknot")

NUM_CLUSTERS, TYING, L1, REFIT_EVERY = 17, 1e-5, 1e-4, 1000  # the paper's: defaults without budget
FIRST_CLUSTERS, MOST_CLUSTERS = 9, 33  # if K is chosen: the first and the largest
MOST_VALUES = 256  # of a group that is already tied
_CENTER_BITS = 8  # significant bits of each center in the file, with a budget
_WITHOUT_BUDGET = {
    "tying_strength": None,
    "l1_strength": None,
    "refit_every": None,
    "l1_step": "subgradient",
    "init": "even",
    "distance": "l2",
    "hard_tying": "shared",
}
_BEGIN = "plan.begin"  # in a saved state
_REFIT_DOC = "steps between full k-means runs; 0 never refits (random tying)"
_INIT_DOC = 'first centers, "even" over the range of the weights or by "kmeans"'
_DISTANCE_DOC = '"l2" (k-means) or "l1" (k-medians)'
HardTying = Literal["shared", "literal"]
_HARD_TYING_DOC = (
    '"shared": harden() runs k-means once more, and then all weights of a cluster get its mean '
    'gradient; "literal": as the paper writes it, no such k-means, and each optimizer step is '
    "followed by a projection alone"
)
_is_hard_tying = is_choice(*get_args(HardTying))
_is_interval = is_count("a whole number of steps, or 0", optional=True)


def _frozen(tying: Tying, hard_tying: HardTying, refit_every: int) -> Frozen:
    """The paper's hard tying."""
    if hard_tying == "literal":
        return Frozen(tying, shared=None)
    return Frozen(tying, prepare=tying.refit if refit_every else None)


class APT(WithoutZeroCluster):
    """Plain APT: the k-means prior alone, no zero cluster."""

    name: ClassVar[str] = "apt"

    hard_tying: HardTying = setting(default="shared", doc=_HARD_TYING_DOC, check=_is_hard_tying)
    tying_strength: float = setting(
        default=TYING,
        doc="the paper's lambda 1, weight of the k-means penalty",
        check=is_number(),
        kw_only=False,
    )
    refit_every: int = setting(default=REFIT_EVERY, doc=_REFIT_DOC, check=_is_interval)
    init: Start = setting(default="even", doc=_INIT_DOC, check=is_choice(*get_args(Start)))
    distance: Distance = setting(
        default="l2", doc=_DISTANCE_DOC, check=is_choice(*get_args(Distance))
    )

    def make_tying(self, **options: Any) -> Tying:
        """The tying of the model, by the settings."""
        return super().make_tying(distance=self.distance, shards=True, **options)

    def phases_of(self, tying: Tying) -> Sequence[Phase]:
        """Soft tying until `harden()`, then hard tying."""
        soft = Sparsify(
            tying,
            tying_strength=self.tying_strength,
            refit_every=self.refit_every,
            init=self.init,
        )
        return [soft, _frozen(tying, self.hard_tying, self.refit_every)]


class RandomTying(WithoutZeroCluster):
    """Random tying: plain APT without k-means, so that the clusters of the random start stay.

    It is t = 20000 in the paper's appendix, and close to tying by hashing (Chen et al., 2015). On a
    trained network the clusters would not be random.
    """

    name: ClassVar[str] = "random_tying"

    hard_tying: HardTying = setting(default="shared", doc=_HARD_TYING_DOC, check=_is_hard_tying)
    tying_strength: float = setting(
        default=TYING, doc="weight of the pull to the own center", check=is_number(), kw_only=False
    )

    def make_tying(self, **options: Any) -> Tying:
        """The tying of the model, by the settings."""
        return super().make_tying(shards=True, **options)

    def phases_of(self, tying: Tying) -> Sequence[Phase]:
        """Soft tying to the first clusters until `harden()`, then hard tying."""
        soft = Sparsify(tying, tying_strength=self.tying_strength, refit_every=0)
        return [soft, _frozen(tying, self.hard_tying, 0)]


class SparseAPT(TyingMethod):
    """Sparse APT: the k-means prior and an L1 penalty, with a cluster at exactly zero.

    With a budget (`target_bytes` or `target_density`, and `steps`) it runs through four phases by
    itself: sparsify, recover, commit, frozen. Without one it is the paper's own method: soft tying
    until `harden()`, then hard tying.
    """

    name: ClassVar[str] = "sparse_apt"

    hard_tying: HardTying = setting(default="shared", doc=_HARD_TYING_DOC, check=_is_hard_tying)
    num_clusters: NumClusters | Literal["auto"] | None = setting(  # type: ignore[assignment]
        default=None,
        doc='K, zero included, or a table from group names to K; "auto" with a budget, else 17',
        check=are_clusters(least=2, auto=True),
        kw_only=False,
    )
    tying_strength: float | None = setting(
        default=None,
        doc=f"the paper's lambda 1, weight of the k-means penalty; {TYING:g} without a budget",
        check=is_number(optional=True),
        kw_only=False,
    )
    l1_strength: float | None = setting(
        default=None,
        doc=f"the paper's lambda 2, weight of the L1 penalty, which sets the sparsity; {L1:g} "
        "without a budget",
        check=is_number(optional=True),
        kw_only=False,
    )
    refit_every: int | None = setting(
        default=None,
        doc=f"{_REFIT_DOC}; {REFIT_EVERY} without a budget",
        check=_is_interval,
        kw_only=False,
    )
    target_bytes: int | None = setting(
        default=None,
        doc="the most that the file may take up; needs `steps`",
        check=is_count("a whole number of bytes above 0", least=1, optional=True),
    )
    target_density: float | None = setting(
        default=None,
        doc="the most that may be left of the weights, from 0 to 1; needs `steps`",
        check=is_number(least=1e-9, most=1.0, optional=True),
    )
    steps: int | None = setting(
        default=None,
        doc="how many optimizer steps the whole training has, with a budget",
        check=is_count("a whole number of steps, at least 10", least=10, optional=True),
    )
    norms: Norms | None = setting(  # type: ignore[assignment]
        default=None,
        doc=f'{NORMS_DOC}; by default "folded" with a budget, if there is a BatchNorm, else '
        '"separate"',
        check=is_choice(*get_args(Norms), None, renamed=RENAMED_NORMS),
    )
    begin: Begin | None = setting(
        default=None,
        doc='with a budget: "sparsify" from a random start; "trained" from a trained one, which '
        'has a shorter first phase; "commit" from one that is tied already, such as a packed file, '
        "whose values are the first centers; by default the weights decide between the first two",
        check=is_choice(*get_args(Begin), None),
    )
    l1_step: L1Step = setting(
        default="subgradient",
        doc='"subgradient" adds l1_strength·sign(w) to the gradient, as the paper does; "proximal" '
        "moves each weight by lr·l1_strength towards zero after the step and reaches zero exactly",
        check=is_choice(*get_args(L1Step)),
    )
    init: Start = setting(default="even", doc=_INIT_DOC, check=is_choice(*get_args(Start)))
    distance: Distance = setting(
        default="l2", doc=_DISTANCE_DOC, check=is_choice(*get_args(Distance))
    )

    @classmethod
    def mistakes(cls, settings: Mapping[str, Any]) -> list[str]:
        """All that is wrong with these settings, including combinations that are not allowed."""
        return [*super().mistakes(settings), *_budget_mistakes(settings)]

    def make_tying(self, **options: Any) -> Tying:
        """The tying of the model, by the settings; with a budget it may choose K."""
        has_budget = self._has_budget
        given, most = self.num_clusters, None
        if given is None or isinstance(given, str):
            given = FIRST_CLUSTERS if has_budget else NUM_CLUSTERS
            if has_budget:
                most = MOST_VALUES if self.begin == TIED else MOST_CLUSTERS
        return super().make_tying(
            num_clusters=given,
            most_clusters=most,
            distance=self.distance,
            shards=True,
            center_bits=_CENTER_BITS if has_budget else None,
            **options,
        )

    @property
    def _has_budget(self) -> bool:
        return self.target_bytes is not None or self.target_density is not None

    @property
    def norm_form(self) -> Norms:
        """What becomes of norm layers."""
        if self.norms is not None:
            return self.norms
        return "folded" if self._has_budget and has_statistics(self.model) else "separate"

    def phases_of(self, tying: Tying) -> Sequence[Phase]:
        """Those of the budget; without one, the paper's two."""
        self._target = self._the_target(tying)
        if self._target is not None:
            return self._budget_phases(self.begin or begin_of(tying))
        refit_every = REFIT_EVERY if self.refit_every is None else self.refit_every
        soft = Sparsify(
            tying,
            tying_strength=TYING if self.tying_strength is None else self.tying_strength,
            l1_strength=L1 if self.l1_strength is None else self.l1_strength,
            refit_every=refit_every,
            init=self.init,
            l1_step=self.l1_step,
        )
        return [soft, _frozen(tying, self.hard_tying, refit_every)]

    def _budget_phases(self, begin: Begin) -> Sequence[Phase]:
        assert self._target is not None and self.steps is not None  # checked with other settings
        self._begins_with = begin
        sparse = [group for group in self.tying.groups if group.sparse]
        choose = self.num_clusters in (None, "auto")
        self._pruning = Pruning(sparse, self._target, choose_num_clusters=choose)
        return phases_for(self.tying, self._pruning, self.steps, begin)

    def _the_target(self, tying: Tying) -> Target | None:
        if self.target_bytes is not None:
            return Target(
                self.target_bytes, self._file_bytes, lambda: self._fixed_bytes().way_out()
            )
        if self.target_density is not None:
            return Target(self.target_density, tying.density, is_density=True)
        return None

    def _begin(self) -> None:
        if self._target is not None and not self._has_begun:
            self._plan_budget(self._target)
        super()._begin()

    def _plan_budget(self, target: Target) -> None:
        """Refuse a target that cannot be met; log what it buys, and warn if that is little."""
        groups, fixed = self.tying.groups, None
        with filled(self.model):
            if target.is_density:
                least = with_zeros(groups, target.measure)
            else:
                fixed = with_zeros(groups, self._fixed_bytes)
                least = fixed.least
            if least > target.value:
                way_out = fixed.way_out() if fixed else ""
                raise ConfigError(target.too_small(least) + way_out)
            survivors = with_zeros(groups, self._pruning.expected)
        how = "as set" if self.begin else "as the weights look; set begin if they are not"
        lengths = ", ".join(f"{phase.name} {phase.steps:,}" for phase in self.phases)
        log.info("plan: begin = %r (%s); steps: %s", self._begins_with, how, lengths)
        bought = Bought(survivors, self._pruning.num_weights, target, fixed)
        for line in bought.lines():
            log.info("plan: %s", line)
        if self._begins_with != TIED and (told := bought.too_few(self.steps or 0)):
            log.warning("plan: %s", told)

    def finalize(self) -> None:
        """What `finish` does to the model; a network that cannot work is refused."""
        super().finalize()
        if self._target is None:
            return
        if not any(parameter.any() for parameter in self.model.parameters()):
            what = "all weights are zero"
        elif not self.tying.processes.is_distributed and self.first_inputs.are_ignored():
            what = "its outputs are the same for all inputs"
        else:
            return
        raise TyingError(
            f"this network has been pruned to death: {what}; train again with a larger "
            f"{'target_density' if self._target.is_density else 'target_bytes'} or more steps "
            f"(it had {self._target.value:,g} and {self.steps:,})"
        )

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved; where it began is taken from it unless it is set."""
        saved = state.get(_BEGIN) if isinstance(state, Mapping) else None
        may_change = self._target is not None and self.begin is None and not self.step
        if not may_change or type(saved) is not int or saved not in (0, 1):
            super().load_state_dict(state)
            return
        before = self.phases, self._begins_with, self._pruning
        if saved != self.plan()[_BEGIN]:
            self.phases = list(self._budget_phases(get_args(Begin)[saved]))
        try:
            super().load_state_dict(state)
        except TyingError:
            self.phases, self._begins_with, self._pruning = before
            raise

    def plan(self) -> dict[str, int | float]:
        """What a saved state must agree in: the target, the phases and their steps."""
        if self._target is None:
            return super().plan()
        target = {f"plan.{key}": value for key, value in self._told_target().items()}
        return target | {_BEGIN: get_args(Begin).index(self._begins_with)} | super().plan()

    def stats(self) -> Stats:
        """Phase, density, k-means penalty, predicted bytes, each group's clusters, the target."""
        return super().stats() | self._told_target()

    def _told_target(self) -> dict[str, int | float]:
        if self._target is None:
            return {}
        key = "target_density" if self._target.is_density else "target_bytes"
        return {key: self._target.value}


def _budget_mistakes(settings: Mapping[str, Any]) -> Iterator[str]:
    targets = [key for key in ("target_bytes", "target_density") if settings.get(key) is not None]
    if len(targets) > 1:
        yield "target_bytes and target_density are both given; choose one"
    if targets and settings.get("steps") is None:
        yield f"{targets[0]} needs steps: how many optimizer steps the training has"
    if not targets and settings.get("steps") is not None:
        yield "steps needs target_bytes or target_density: how small the network should be"
    if not targets and settings.get("num_clusters") == "auto":
        yield 'num_clusters = "auto" needs target_bytes or target_density'
    if not targets and settings.get("begin") is not None:
        yield "begin needs target_bytes or target_density"
    for key, default in _WITHOUT_BUDGET.items():
        if targets and settings.get(key, default) != default:
            yield f"{key} is set by the budget; give {targets[0]} and steps, or the strengths"
