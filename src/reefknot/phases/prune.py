"""Pruning to a size: how many weights survive in a file of this size, and with how many values.

Takes     groups, and a target that says how large the network would be now.
Gives     clusters in which the smallest weights of all groups are zero; the number of clusters that
          suits the size.
Paper     ours; the number of clusters is the paper's future work.
Unaware   of optimizers, of step counts, and of how a size is counted.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from reefknot.errors import TyingError
from reefknot.kernels.kmeans1d import counted
from reefknot.kernels.reducer import SINGLE, order_statistic
from reefknot.phases.num_clusters import better_num_clusters
from reefknot.phases.target import Target
from reefknot.tying import kmeans, ops
from reefknot.tying.collectives import ONE_PROCESS
from reefknot.tying.group import Group
from reefknot.tying.saved import saved_count
from reefknot.tying.statistics import worth_per_bit

log = logging.getLogger("reefknot")

MUCH_LOST = 0.3  # of the sum of squares when zeros are fixed; planned are a few percent
_STEPS, _CLOSE = 3, 0.1  # of `measure`, and when the size is close enough
_PRECISION = 1 / 100  # of the size when the zeros are fixed; commit does the rest


class Pruning:
    """How many of the largest weights fit the target, and how much energy the others hold.

    The number is found by measuring pruned networks. Each search starts from the last result.
    """

    def __init__(
        self, groups: Sequence[Group], target: Target, *, choose_num_clusters: bool
    ) -> None:
        self.groups, self.target = groups, target
        self.processes = groups[0].members.processes if groups else ONE_PROCESS
        self.choose_num_clusters = choose_num_clusters
        self.num_clusters = [group.num_clusters for group in groups]  # once the zeros are fixed
        self.num_weights = sum(group.members.num_weights for group in groups)
        self.survivors = target.first_guess(self.num_weights)
        self.checked = False  # whether the target was checked again after training started

    def measure(self, *, is_often: bool = True) -> None:
        """Measure how many weights fit the target, and which K suits it.

        A step towards both if that is done often, some steps if not. Leaves the groups as they
        were.
        """
        steps = 1 if is_often else _STEPS
        before = [group.state_dict() for group in self.groups]
        if not self.checked:  # only now have kept tensors (running statistics) realistic contents
            self.checked = True
            if (least := self._size_with(0)) > self.target.value:
                raise TyingError(self.target.too_small(least) + self.target.way_out())
        for _ in range(steps):
            relative = self._size_with(self.survivors) / self.target.value
            self.survivors = self._clipped(self.survivors / max(relative, 1e-12))
            if abs(relative - 1) < _CLOSE:
                break
        if self.choose_num_clusters:
            self._choose_num_clusters(relative * self.target.value, steps)
        for group, state in zip(self.groups, before, strict=True):
            group.load_state_dict(state)

    def expected(self) -> int:
        """How many weights would survive in a file of the target's size; changes the groups."""
        fits, _ = most_that_fit(
            lambda n: self._size_with(n) / self.target.value, self.survivors, self.num_weights,
            precision=_CLOSE,
        )  # fmt: skip
        return self._clipped(fits)

    def energy_lost(self) -> float:
        """The share of the sum of squares that pruning to the target would lose now."""
        magnitudes, lost = self._magnitudes(), self.num_weights - self.survivors
        if lost <= 0:
            return 0.0
        most = self._order_statistic(magnitudes, lost - 1)
        is_small = magnitudes < most
        smaller = np.square(magnitudes[is_small], dtype=np.float64)
        ties = lost - int(self.processes.total(np.array([len(smaller)]))[0])
        whole = self._total(np.square(magnitudes, dtype=np.float64))
        return (self._total(smaller) + ties * most * most) / max(whole, 1e-300)

    def prune(self, slack: float = 1.0) -> None:
        """Keep as many of the largest weights as fit `slack` times the target; zero the others."""
        size = slack * self.target.value
        fits, relative = most_that_fit(
            lambda n: self._size_with(n) / size, self._clipped(slack * self.survivors),
            self.num_weights, precision=_PRECISION,
        )  # fmt: skip
        if relative > 1:
            log.warning("no choice of zeros gives a network of size %g", size)
        self.survivors = self._clipped(fits)
        if (lost := self.energy_lost()) > MUCH_LOST:
            log.warning(
                "pruning to the target takes %.0f %% of the weights' sum of squares, more than "
                "training recovers as a rule; take more steps, a larger target, or a learning rate "
                "that does not fall before the zeros are fixed",
                100 * lost,
            )
        log.info("pruning takes %.1f %% of the weights' sum of squares", 100 * lost)
        for group in self.groups:
            if not survivors_of(group):
                log.warning("all weights of group %r are zero now", group.name)

    def prune_if_not_yet(self) -> None:
        """Prune to the target unless zeros are fixed already: training may have been cut short."""
        if any(group.zero_cluster is None for group in self.groups):
            self.prune()

    def trim(self) -> None:
        """Zero tied weights until the file fits, those worth least per bit first.

        Does nothing if it fits already.
        """
        if (relative := self.target.measure() / self.target.value) <= 1:
            return
        worth = [worth_per_bit(group) for group in self.groups]
        alive = np.concatenate(worth)
        alive = alive[np.isfinite(alive)]
        num_alive = int(self.processes.total(np.array([len(alive)]))[0])
        if not num_alive:
            raise TyingError(self.target.too_small(self.target.measure()) + self.target.way_out())
        before = [group.clusters() for group in self.groups]

        def relative_size(survivors: int) -> float:
            place = num_alive - survivors - 1
            most = self._order_statistic(alive, place) if place >= 0 else -np.inf
            for group, clusters, own in zip(self.groups, before, worth, strict=True):
                small = own <= most
                group.assign(group.centers, np.where(small, group.smallest_center(), clusters))
            return self.target.measure() / self.target.value

        first = min(int(num_alive / relative), num_alive - 1)
        fits, relative = most_that_fit(relative_size, first, num_alive)
        if relative > 1:
            raise TyingError(self.target.too_small(self.target.measure()) + self.target.way_out())
        log.info("%d more weights became zero, so that the network has its size", num_alive - fits)

    def sum_of_magnitudes(self) -> float:
        """Of all weights that may be pruned."""
        return self._total(self._magnitudes())

    def _magnitudes(self) -> np.ndarray:
        """Of all weights here."""
        return np.concatenate([np.abs(group.members.weights()) for group in self.groups])

    def _order_statistic(self, magnitudes: np.ndarray, place: int) -> float:
        """What stands at a place among these and those that the others have, if sorted."""
        return order_statistic(
            magnitudes, place, self.processes if self.processes.is_distributed else SINGLE
        )

    def _total(self, numbers: np.ndarray) -> float:
        """The sum of these and those that the others have; the same for any order."""
        return ops.total([torch.from_numpy(numbers)], self.num_weights, self.processes)

    def _clipped(self, survivors: float) -> int:
        return max(1, min(round(survivors), self.num_weights))

    def _size_with(self, survivors: int) -> float:
        """Prune all groups to this many survivors, and measure."""
        place = self.num_weights - survivors - 1
        most = self._order_statistic(self._magnitudes(), place) if place >= 0 else 0.0
        for group, num_clusters in zip(self.groups, self.num_clusters, strict=True):
            kmeans.prune(group, most, num_clusters)
        return self.target.measure()

    def _choose_num_clusters(self, size: float, steps: int) -> None:
        """Give each group more or fewer values if that loses less; the groups are pruned."""
        total = sum(map(survivors_of, self.groups))
        for number, group in enumerate(self.groups):
            if (alive := survivors_of(group)) > 1:
                weights = counted(group.members.weights(), group.members.processes)
                bits = 8 * size * alive / total
                for _ in range(steps):
                    before = self.num_clusters[number]
                    better = better_num_clusters(weights, alive, before, bits)
                    self.num_clusters[number] = better
                    if better == before:
                        break

    def state_dict(self) -> dict[str, int]:
        """Where the next search starts."""
        saved = {f"num_clusters.{n}": k for n, k in enumerate(self.num_clusters)}
        return saved | {"survivors": self.survivors, "checked": int(self.checked)}

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved."""
        self.survivors = saved_count(state, "survivors", least=1, most=self.num_weights)
        self.checked = bool(saved_count(state, "checked", most=1))
        self.num_clusters = [
            saved_count(state, f"num_clusters.{n}", least=1, most=group.most_clusters)
            for n, group in enumerate(self.groups)
        ]


def most_that_fit(
    size: Callable[[int], float], first: int, most: int, precision: float = 0.0
) -> tuple[int, float]:
    """How many weights fit, at most, and their size relative to the goal, which was asked for last.

    `size` gives that of a number of weights, from 1 to `most`. It is nearly linear, so a try is
    interpolated between two that lie on either side of the goal, and aims a little beyond it. A
    size that lacks less than `precision` of the goal is good enough.
    """
    fits, over = 0, most + 1
    sizes: dict[int, float] = {}
    guess, was_over, same_side = first, None, 0
    while True:
        sizes[guess] = size(guess)
        is_over = sizes[guess] > 1
        fits, over = (fits, guess) if is_over else (guess, over)
        step = max(1, int(guess * precision))
        if over - fits <= 1 or 1 - precision < sizes[guess] <= 1:
            if guess != fits:
                sizes[fits] = size(fits)
            return fits, sizes[fits]
        same_side = same_side + 1 if is_over == was_over else 0
        was_over = is_over
        if fits in sizes and over in sizes:
            share = (1 - sizes[fits]) / (sizes[over] - sizes[fits])
            aim = fits + share * (over - fits)
        else:
            aim = guess + (guess / sizes[guess] - guess) * 2**same_side
        aim += (-1 if is_over else 1) * step / 2 * 2**same_side
        guess = round(min(max(aim, fits + 1), over - 1))


def survivors_of(group: Group) -> int:
    """How many weights are not in the zero cluster."""
    return int(group.counts.sum() - group.counts[group.smallest_center()])


Measured = TypeVar("Measured")


def with_zeros(groups: Sequence[Group], measure: Callable[[], Measured]) -> Measured:
    """What is measured while all tied weights are zero. The groups are left as they were."""
    before = [group.state_dict() if group.assignments else None for group in groups]
    for group in groups:
        kmeans.prune(group, np.inf, group.num_clusters)
    found = measure()
    for group, state in zip(groups, before, strict=True):
        if state is None:
            group.forget()
        else:
            group.load_state_dict(state)
    return found
