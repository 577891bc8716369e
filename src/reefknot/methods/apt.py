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

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

from reefknot.kernels.kmeans1d import Distance
from reefknot.methods.method import Stats, TyingMethod, WithoutZeroCluster
from reefknot.methods.settings import are_clusters, is_choice, is_count, is_number, setting
from reefknot.phases.budget import FROM_SCRATCH, TIED, Begin, phases_for
from reefknot.phases.frozen import Frozen
from reefknot.phases.phase import Phase
from reefknot.phases.prune import Pruning, require_reachable
from reefknot.phases.sparsify import L1Step, Sparsify
from reefknot.phases.target import Target
from reefknot.tying.kmeans import Start
from reefknot.tying.tying import NumClusters, Tying

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
    begin: Begin = setting(
        default=FROM_SCRATCH,
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

    def make_tying(self, **options: Any) -> Tying:
        """The tying of the model, by the settings; with a budget it may choose K."""
        has_budget = self.target_bytes is not None or self.target_density is not None
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

    def phases_of(self, tying: Tying) -> Sequence[Phase]:
        """Those of the budget; without one, the paper's two."""
        self._target = self._the_target(tying)
        if self._target is not None:
            assert self.steps is not None  # checked with the other settings
            sparse = [group for group in tying.groups if group.sparse]
            pruning = Pruning(
                sparse, self._target, choose_num_clusters=self.num_clusters in (None, "auto")
            )
            return phases_for(tying, pruning, self.steps, self.begin)
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

    def _the_target(self, tying: Tying) -> Target | None:
        if self.target_bytes is not None:
            return Target(self.target_bytes, self._file_bytes)
        if self.target_density is not None:
            return Target(self.target_density, tying.density, is_density=True)
        return None

    def _begin(self) -> None:
        if self._target is not None and not self._has_begun:
            require_reachable(self.tying.groups, self._target)
        super()._begin()

    def plan(self) -> dict[str, int | float]:
        """What a saved state must agree in: the target, the phases and their steps."""
        target = {f"plan.{key}": value for key, value in self._told_target().items()}
        return target | super().plan()

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
    if not targets and settings.get("begin", FROM_SCRATCH) != FROM_SCRATCH:
        yield "begin needs target_bytes or target_density"
    for key, default in _WITHOUT_BUDGET.items():
        if targets and settings.get(key, default) != default:
            yield f"{key} is set by the budget; give {targets[0]} and steps, or the strengths"
