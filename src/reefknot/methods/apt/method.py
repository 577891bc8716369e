"""Automatic parameter tying: plain, random and sparse APT, the paper's method.

Takes     a model, K, and the strengths of the two penalties.
Gives     weights that share K values, most of them exactly zero for sparse APT.
Paper     sections 3 to 3.3; equation 3.
Unaware   of the training loop, the data and the file.

Soft tying adds the gradient of the penalties before each step and moves the centers after it. Hard
tying gives each weight the mean gradient of its cluster before each step, and the mean weight after
it.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from reefknot.dtypes import significant
from reefknot.errors import ReefknotError, TyingError
from reefknot.kernels.kmeans1d import Distance
from reefknot.methods.apt.budget import Begin, lr_factor, phases_for
from reefknot.methods.apt.frozen import Frozen, Projected
from reefknot.methods.apt.phase import Phase
from reefknot.methods.apt.prune import Pruning, require_reachable
from reefknot.methods.apt.sparsify import L1Step, Sparsify
from reefknot.methods.apt.target import Target
from reefknot.methods.apt.weights import TiedWeights
from reefknot.methods.hooks import Step
from reefknot.methods.method import Method, Saved, Stats, log
from reefknot.methods.settings import are_clusters, is_choice, is_count, is_number, setting
from reefknot.methods.tied import NumClusters, WithoutZeroCluster
from reefknot.tying.group import Group, Start
from reefknot.tying.saved import saved_count, saved_number

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
_REFIT_DOC = "steps between full k-means runs; 0 never refits (random tying)"
_INIT_DOC = 'first centers, "even" over the range of the weights or by "kmeans"'
_DISTANCE_DOC = '"l2" (k-means) or "l1" (k-medians)'
HardTying = Literal["shared", "literal"]
_is_interval = is_count("a whole number of steps, or 0", optional=True)


class _ParameterTying(TiedWeights):
    """The common part of plain, random and sparse APT: a list of phases, and the current one."""

    works_on_shards: ClassVar[bool] = True

    hard_tying: HardTying = setting(
        default="shared",
        doc='"shared": harden() runs k-means once more, and then all weights of a cluster get its '
        'mean gradient; "literal": as the paper writes it, no such k-means, and each optimizer '
        "step is followed by a projection alone",
        check=is_choice(*get_args(HardTying)),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.peers.several and self._distance() == "l1":
            raise TyingError(
                'distance = "l1" needs all weights of a cluster in one process, and they are '
                'sharded; use "l2", or DistributedDataParallel'
            )
        self.pruning = self._pruning()
        self.phases = self._phases()
        self.phase = self.phases[0]
        self._entered = False

    def _pruning(self) -> Pruning | None:
        """How to prune to the budget; None without one."""
        return None

    @abstractmethod
    def _phases(self) -> list[Phase]:
        """All phases in order."""

    def _soft_and_hard(
        self,
        tying_strength: float,
        refit_every: int,
        *,
        l1_strength: float = 0.0,
        l1_step: L1Step = "subgradient",
        init: Start = "even",
    ) -> list[Phase]:
        """The paper's two phases: soft tying until `harden()`, then hard tying."""
        soft = Sparsify(
            self,
            tying_strength=tying_strength,
            l1_strength=l1_strength,
            refit_every=refit_every,
            init=init,
            l1_step=l1_step,
        )
        zero_cluster = self.has_zero_cluster
        if self.hard_tying == "literal":
            return [soft, Projected(self, zero_cluster=zero_cluster, prepare=_nothing)]
        refit = self.refit if refit_every else _nothing
        return [soft, Frozen(self, zero_cluster=zero_cluster, prepare=refit)]

    # -- training ---------------------------------------------------------------------------

    def attach(self, *optimizers: Optimizer) -> Self:
        """Follow these optimizers and enter the first phase; see `Method.attach`."""
        super().attach(*optimizers)
        try:
            if self.pruning and not self._entered:
                require_reachable(self.groups, self.pruning.target)
            self._enter_first()
        except ReefknotError:
            self.detach()
            raise
        return self

    def _enter_first(self) -> None:
        if not self._entered:
            self.phase.enter()
            self._entered = True

    def before_step(self, step: Step) -> None:
        """The current phase's work before an optimizer step."""
        self._follow_slots()
        self._follow_members()
        self._enter_first()
        self.phase.before_step(step)

    def after_step(self, step: Step) -> None:
        """The current phase's work after an optimizer step; then the next phase, if it is due."""
        Method.after_step(self, step)
        self.phase.after_step(step)
        if step.ends_round and self.phase_is_over and self.advances:
            self.advance()

    @property
    def is_tied(self) -> bool:
        """Whether the model currently runs on tied values."""
        return self.phase.is_tied

    @property
    def phase_is_over(self) -> bool:
        """Whether `advance()` is due."""
        return self.phase.over and self.phase is not self.phases[-1]

    def advance(self) -> None:
        """Enter the next phase."""
        self._check_copies()
        density = self._density()
        before, self.phase = self.phase, self.phases[self.phases.index(self.phase) + 1]
        self.phase.step = 0  # it may have run before, if an earlier state was loaded since
        self.phase.enter()
        self.hard = self.phase is self.phases[-1]
        self.moved()
        log.info(
            "step %d: %s ends at a density of %.4f, %s begins at %.4f",
            self.step,
            before.name,
            density,
            self.phase.name,
            self._density(),
        )

    def fixed_zeros(self) -> dict[str, Tensor]:
        """The zeros that the phase has fixed."""
        return self.phase.fixed_zeros()

    def harden(self) -> None:
        """Skip to the last phase, in which clusters are frozen."""
        self._require_soft()
        if not self._entered:
            raise TyingError(
                f"harden() ends a training that has not begun; call {type(self).__name__}."
                "attach(optimizer) first, or tie without training by reefknot.cluster(...)"
            )
        skipped = self.phases[self.phases.index(self.phase) + 1 : -1]
        if self.pruning:
            log.warning(
                "harden() after %d steps: %s is cut short, left out: %s",
                self.step,
                self.phase.name,
                ", ".join(phase.name for phase in skipped) or "none",
            )
        if self.pruning and any(g.zero_cluster is None for g in self.pruning.groups):
            self.pruning.prune()
        self.phase = self.phases[-2]
        self.advance()

    def settle(self) -> None:
        """Leave the weights as the file will have them; a budget's steps must all be done."""
        if self.pruning and not self.hard:
            left = sum(phase.steps or 0 for phase in self.phases) - self.step
            raise TyingError(
                f"training is in its phase {self.phase.name!r} with {left:,} steps left; train on, "
                "or call harden() to end it now"
            )
        self.copies = ()  # each process may finish for itself, or one of them alone
        if self.pruning:
            self.pruning.trim()
            self.freeze(zero_cluster=True)
        super().settle()

    def lr_factor(self, step: int) -> float:
        """The factor on the learning rate after this many steps."""
        return lr_factor(self.phases, step)

    def _written(self, group: Group) -> np.ndarray:
        if self.pruning is None:
            return super()._written(group)
        return significant(group.centers, _CENTER_BITS)

    # -- reading and saving -----------------------------------------------------------------

    def state_dict(self) -> Saved:
        """The phase and its state, the step, centers and assignments."""
        return (
            super().state_dict()
            | {"phase": self.phases.index(self.phase), "entered": int(self._entered)}
            | {"changed": -1.0 if self.changed is None else self.changed}
            | self.phase.state_dict()
        )

    def _load(self, state: Mapping[str, Tensor | int | float]) -> None:
        super()._load(state)
        changed = saved_number(state, "changed", least=-1.0, most=1.0)
        self.changed = None if changed < 0 else changed
        self.phase = self.phases[saved_count(state, "phase", most=len(self.phases) - 1)]
        self._entered = bool(saved_count(state, "entered", most=1))
        if self.phase is not self.phases[0]:
            for group in self.groups:
                group.require_zero_cluster()
        self.phase.load_state_dict(state)

    def stats(self) -> Stats:
        """Phase, density, k-means penalty, predicted bytes, and each group's clusters."""
        penalty = 0.0
        for group in self.groups:
            if group.assignments:
                absolute, square = group.deviations()
                penalty += float(absolute.sum() if group.distance == "l1" else square.sum() / 2)
        return (
            super().stats()
            | {"phase": self.phase.name, "kmeans_penalty": penalty, "changed": self.changed}
            | self._target_stats()
            | self.phase.stats()
        )

    def _target_stats(self) -> Stats:
        if self.pruning is None:
            return {}
        target = self.pruning.target
        return {"target_density" if target.is_density else "target_bytes": target.value}

    def _alive(self, group: Group) -> np.ndarray:
        alive = super()._alive(group)
        if group.sparse:
            alive[group.smallest_center()] = False
        return alive


def _nothing() -> None:
    """For phases that have nothing to prepare."""


class APT(WithoutZeroCluster, _ParameterTying):
    """Plain APT: the k-means prior alone, no zero cluster."""

    name: ClassVar[str] = "apt"

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

    def _distance(self) -> Distance:
        return self.distance

    def _phases(self) -> list[Phase]:
        return self._soft_and_hard(self.tying_strength, self.refit_every, init=self.init)


class RandomTying(WithoutZeroCluster, _ParameterTying):
    """Random tying: plain APT without k-means, so that the clusters of the random start stay.

    It is t = 20000 in the paper's appendix, and close to tying by hashing (Chen et al., 2015). On a
    trained network the clusters would not be random.
    """

    name: ClassVar[str] = "random_tying"

    tying_strength: float = setting(
        default=TYING, doc="weight of the pull to the own center", check=is_number(), kw_only=False
    )

    def _phases(self) -> list[Phase]:
        return self._soft_and_hard(self.tying_strength, refit_every=0)


class SparseAPT(_ParameterTying):
    """Sparse APT: the k-means prior and an L1 penalty, with a cluster at exactly zero.

    With a budget (`target_bytes` or `target_density`, and `steps`) it runs through four phases by
    itself: sparsify, recover, commit, frozen. Without one it is the paper's own method: soft tying
    until `harden()`, then hard tying.
    """

    name: ClassVar[str] = "sparse_apt"

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
    begin: Begin = setting(
        default="sparsify",
        doc='with a budget: "sparsify" from a random start; "trained" from a trained one, which '
        'has a shorter first phase; "commit" from one that is tied already, such as a packed file, '
        "whose values are the first centers",
        check=is_choice(*get_args(Begin)),
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

    def _distance(self) -> Distance:
        return self.distance

    def _first_clusters(self) -> NumClusters:
        if self.num_clusters is None or isinstance(self.num_clusters, str):
            return FIRST_CLUSTERS if self._has_budget else NUM_CLUSTERS
        return self.num_clusters

    def _most_clusters(self) -> int | None:
        if not self._chooses_clusters:
            return None
        return MOST_VALUES if self.begin == "commit" else MOST_CLUSTERS

    @property
    def _has_budget(self) -> bool:
        return self.target_bytes is not None or self.target_density is not None

    @property
    def _chooses_clusters(self) -> bool:
        return self._has_budget and self.num_clusters in (None, "auto")

    def _pruning(self) -> Pruning | None:
        if self.target_bytes is not None:
            target = Target(self.target_bytes, self.file_bytes)
        elif self.target_density is not None:
            target = Target(self.target_density, self._density, is_density=True)
        else:
            return None
        sparse = [group for group in self.groups if group.sparse]
        return Pruning(sparse, target, choose_num_clusters=self._chooses_clusters)

    def _phases(self) -> list[Phase]:
        if self.pruning is not None:
            assert self.steps is not None  # checked with the other settings
            return phases_for(self, self.pruning, self.steps, self.begin)
        return self._soft_and_hard(
            TYING if self.tying_strength is None else self.tying_strength,
            REFIT_EVERY if self.refit_every is None else self.refit_every,
            l1_strength=L1 if self.l1_strength is None else self.l1_strength,
            l1_step=self.l1_step,
            init=self.init,
        )


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
    if not targets and settings.get("begin", "sparsify") != "sparsify":
        yield "begin needs target_bytes or target_density"
    for key, default in _WITHOUT_BUDGET.items():
        if targets and settings.get(key, default) != default:
            yield f"{key} is set by the budget; give {targets[0]} and steps, or the strengths"
