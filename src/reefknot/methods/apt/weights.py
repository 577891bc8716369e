"""Operations of the phases on all tied weights at once.

Takes     the groups of a method.
Gives     operations on all of them: first clusters, k-means, fixed zeros, frozen clusters.
Unaware   of phases and their order.
"""

from torch import Tensor

from reefknot.methods.tied import TyingMethod
from reefknot.tying.group import Start


class TiedWeights(TyingMethod):
    """A tying method whose phases are objects of their own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.changed: float | None = None  # the fraction of assignments changed by the last refit

    def start_clusters(self, how: Start) -> None:
        """Choose first centers for groups that have none."""
        for group in self.groups:
            if not group.assignments:
                group.start(how)
                self.moved()

    def tie_distinct(self) -> None:
        """Make each distinct value a cluster, in groups that have no clusters yet."""
        for group in self.groups:
            if not group.assignments:
                group.start_distinct()
                self.moved()

    def refit(self) -> None:
        """Run k-means on all groups."""
        self._check_copies()
        changed = [group.refit() * group.num_weights for group in self.groups]
        self.changed = sum(changed) / sum(group.num_weights for group in self.groups)
        self.moved()

    def refresh(self) -> None:
        """Set each center to the mean of its cluster."""
        for group in self.groups:
            group.refresh()
        self.moved()

    def fix_zeros(self) -> None:
        """Set the zero cluster of each group to zero, and keep it there."""
        for group in self.groups:
            group.fix_zeros()

    def hold_zeros(self) -> None:
        """Set the fixed zeros back to zero."""
        for group in self.groups:
            group.hold_zeros()

    def zeros(self) -> dict[str, Tensor]:
        """Masks by parameter name: the elements in a zero cluster."""
        held = [group for group in self.groups if group.zero_cluster is not None]
        return {name: ~group.alive(name) for group in held for name in group.members}

    def freeze(self, *, zero_cluster: bool) -> None:
        """Set each weight to its center for good."""
        for group in self.groups:
            group.harden(zero_cluster=zero_cluster)

    def moved(self) -> None:
        """Note that the clusters have changed, and with them the size of the file."""
        self._predicted_bytes = None
