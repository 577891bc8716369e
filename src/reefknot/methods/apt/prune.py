"""Pruning to a size: how many weights survive in a file of this size, and with how many values.

Takes     groups, and a target that says how large the network would be now.
Gives     clusters in which the smallest weights of all groups are zero; the number of clusters that
          suits the size.
Paper     ours; the number of clusters is the paper's future work.
Unaware   of optimizers, of step counts, and of how a size is counted.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from reefknot.errors import ConfigError, TyingError
from reefknot.kernels.kmeans1d import counted
from reefknot.kernels.order import order_statistic
from reefknot.kernels.parts import ONE_PLACE
from reefknot.methods.apt.num_clusters import better_num_clusters
from reefknot.methods.apt.target import Target
from reefknot.methods.method import log
from reefknot.tying import ops
from reefknot.tying.collectives import NO_PEERS
from reefknot.tying.group import Group
from reefknot.tying.saved import saved_count


class Pruning:
    """How many of the largest weights fit the target, and how much energy the others hold.

    The number is found by measuring pruned networks. Each search starts from the last result.
    """

    def __init__(
        self, groups: Sequence[Group], target: Target, *, choose_num_clusters: bool
    ) -> None:
        self.groups, self.target = groups, target
        self.peers = groups[0].peers if groups else NO_PEERS
        self.choose_num_clusters = choose_num_clusters
        self.num_clusters = [group.num_clusters for group in groups]  # once the zeros are fixed
        self.num_weights = sum(group.num_weights for group in groups)
        self.survivors = target.first_guess(self.num_weights)
        self.checked = False  # whether the target was checked again after training started

    def energy_lost(self) -> float:
        """The share of the sum of squares that pruning to the target would lose now.

        Leaves the groups as they were.
        """
        before = [group.state_dict() for group in self.groups]
        if not self.checked:  # only now have kept tensors (running statistics) realistic contents
            self.checked = True
            if (least := self._size_with(0)) > self.target.value:
                raise TyingError(self._too_small(least))
        size = self._size_with(self.survivors)
        if self.choose_num_clusters:
            self._choose_num_clusters(size)
        for group, state in zip(self.groups, before, strict=True):
            group.load_state_dict(state)
        self.survivors = self._clipped(self.survivors * self.target.value / max(size, 1e-12))
        magnitudes, lost = self._magnitudes(), self.num_weights - self.survivors
        if lost <= 0:
            return 0.0
        squares, most = (
            np.square(magnitudes, dtype=np.float64),
            self._order_statistic(magnitudes, lost - 1),
        )
        smaller = squares[magnitudes < most]
        ties = lost - int(self.peers.total(np.array([len(smaller)]))[0])
        small = self._total(smaller) + ties * most * most
        return small / max(self._total(squares), 1e-300)

    def prune(self, slack: float = 1.0) -> None:
        """Keep as many of the largest weights as fit `slack` times the target; zero the others."""
        size = slack * self.target.value
        few, many = 0, self._clipped(1.2 * self.survivors)
        while self._size_with(many) <= size:
            few, many = many, self._clipped(1.5 * many)
            if few == many:
                break
        while many - few > max(1, many // 2000):  # bisection: `few` fit, `many` do not
            middle = (few + many) // 2
            few, many = (middle, many) if self._size_with(middle) <= size else (few, middle)
        if self._size_with(few) > size:
            log.warning("no choice of zeros gives a network of size %g", size)
        self.survivors = self._clipped(few)
        for group in self.groups:
            if not survivors_of(group):
                log.warning("all weights of group %r are zero now", group.name)

    def trim(self) -> None:
        """Zero tied weights until the file fits, those worth least per bit first.

        Does nothing if it fits already.
        """
        if self.target.measure() <= self.target.value:
            return
        worth = [group.worth_of_bits() for group in self.groups]
        alive = np.concatenate(worth)
        alive = alive[np.isfinite(alive)]
        num_alive = int(self.peers.total(np.array([len(alive)]))[0])
        if not num_alive:
            raise TyingError(self._too_small(self.target.measure()))
        before = [group.clusters() for group in self.groups]

        def fits(zeros: int) -> bool:
            most = self._order_statistic(alive, zeros - 1)
            for group, clusters, own in zip(self.groups, before, worth, strict=True):
                small = own <= most
                group.give_clusters(np.where(small, group.smallest_center(), clusters))
            return self.target.measure() <= self.target.value

        few, many = 0, 1
        while many < num_alive and not fits(many):
            few, many = many, min(2 * many, num_alive)
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (few, middle) if fits(middle) else (middle, many)
        if not fits(many):
            raise TyingError(self._too_small(self.target.measure()))
        log.info("%d more weights became zero, so that the network has its size", many)

    def _too_small(self, least: float) -> str:
        return (
            f"the target is {self.target.value:,g}, but with all tied weights at zero the network "
            f"still has {least:,g}; raise it, or tie more parameters (include, exclude, norms)"
        )

    def sum_of_magnitudes(self) -> float:
        """Of all weights that may be pruned."""
        return self._total(self._magnitudes())

    def _magnitudes(self) -> np.ndarray:
        """Of all weights here."""
        return np.concatenate([group.magnitudes() for group in self.groups])

    def _order_statistic(self, magnitudes: np.ndarray, place: int) -> float:
        """What stands at a place among these and those that the others have, if sorted."""
        return order_statistic(magnitudes, place, self.peers if self.peers.several else ONE_PLACE)

    def _total(self, numbers: np.ndarray) -> float:
        """The sum of these and those that the others have; the same for any order."""
        return ops.total([torch.from_numpy(numbers)], self.num_weights, self.peers)

    def _clipped(self, survivors: float) -> int:
        return max(1, min(round(survivors), self.num_weights))

    def _size_with(self, survivors: int) -> float:
        """Prune all groups to this many survivors, and measure."""
        place = self.num_weights - survivors - 1
        most = self._order_statistic(self._magnitudes(), place) if place >= 0 else 0.0
        for group, num_clusters in zip(self.groups, self.num_clusters, strict=True):
            group.part_zeros(most, num_clusters)
        return self.target.measure()

    def _choose_num_clusters(self, size: float) -> None:
        """Give each group one value more or fewer if that loses less; the groups are pruned."""
        total = sum(map(survivors_of, self.groups))
        for number, group in enumerate(self.groups):
            if (alive := survivors_of(group)) > 1:
                bits = 8 * size * alive / total
                self.num_clusters[number] = better_num_clusters(
                    counted(group.weights(), group.peers), alive, self.num_clusters[number], bits
                )

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


def survivors_of(group: Group) -> int:
    """How many weights are not in the zero cluster."""
    return int(group.counts.sum() - group.counts[group.smallest_center()])


def require_reachable(groups: Sequence[Group], target: Target) -> None:
    """Refuse a size that cannot be met even with all tied weights at zero.

    The groups have no clusters before or after this.
    """
    for group in groups:
        group.part_zeros(np.inf, group.num_clusters)
    least = target.measure()
    for group in groups:
        group.forget()
    if least > target.value:
        name = "target_density" if target.is_density else "target_bytes"
        raise ConfigError(
            f"{name} is {target.value:,}, but with all tied weights at zero the network still has "
            f"{least:,}; raise it, or tie more parameters (include, exclude, norms)"
        )
