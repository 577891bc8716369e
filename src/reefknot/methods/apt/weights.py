"""What phases do to all tied weights at once.

Takes     the groups of a method.
Gives     verbs on all of them: first clusters, k-means, zeros that stay, clusters that stay.
Unaware   of phases and their order.
"""

from torch import Tensor

from reefknot.methods.tied import TyingMethod
from reefknot.tying.group import Start


class TiedWeights(TyingMethod):
    """A tying method whose phases are objects of their own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.changed: float | None = None  # share of assignments that the last refit changed

    def start_clusters(self, how: Start) -> None:
        """First centers, unless there are some."""
        for group in self.groups:
            if not group.assignments:
                group.start(how)
                self.moved()

    def tie_distinct(self) -> None:
        """The clusters are the values that the weights have, unless there are some."""
        for group in self.groups:
            if not group.assignments:
                group.start_distinct()
                self.moved()

    def refit(self) -> None:
        """k-means on all groups."""
        self._check_copies()
        changed = [group.refit() * group.num_weights for group in self.groups]
        self.changed = sum(changed) / sum(group.num_weights for group in self.groups)
        self.moved()

    def refresh(self) -> None:
        """Each center to the mean of its cluster."""
        for group in self.groups:
            group.refresh()
        self.moved()

    def fix_zeros(self) -> None:
        """The zero cluster of each group goes to zero, and stays there."""
        for group in self.groups:
            group.fix_zeros()

    def hold_zeros(self) -> None:
        """What is fixed at zero goes back to it."""
        for group in self.groups:
            group.hold_zeros()

    def zeros(self) -> dict[str, Tensor]:
        """By name, which elements are in a zero cluster."""
        held = [group for group in self.groups if group.zero_cluster is not None]
        return {name: ~group.alive(name) for group in held for name in group.members}

    def freeze(self, *, zero_cluster: bool) -> None:
        """Each weight to its center, for good."""
        for group in self.groups:
            group.harden(zero_cluster=zero_cluster)

    def moved(self) -> None:
        """The clusters have changed, and with them what a file would weigh."""
        self._predicted_bytes = None
