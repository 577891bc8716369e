"""A group of tensors that share one codebook, and what tying does to it.

Takes     named parameters and how many values they may share.
Gives     the operations of the paper: first clusters, k-means, the pull to the centers, fixed
          zeros, hard tying.
Paper     section 3.1 (soft tying), section 3.2 (hard tying), equation 1.
Unaware   of optimizers, of step counts, and of which method calls it.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from reefknot.errors import TyingError
from reefknot.kernels import assignment_dtype
from reefknot.kernels.histogram import Countable, InMemory
from reefknot.kernels.kmeans1d import COUNTED_FROM, Clustering, kmeans1d_of_parts, nearest, refit
from reefknot.tying import ops
from reefknot.tying.clusters import Clusters
from reefknot.tying.counting import OnDevice, renumber_

Start = Literal["even", "kmeans"]
Shared = Literal["mean", "sum"]


class Group(Clusters):
    """Clusters with the operations of soft and hard tying.

    An empty cluster keeps its center until the next refit, which moves it to where it helps most.
    A group that is not `sparse` gets no L1 penalty.
    """

    # -- clustering -------------------------------------------------------------------------

    def start(self, how: Start) -> None:
        """First centers: evenly over the range of the weights (as in the paper), or by k-means."""
        if how == "kmeans":
            self._fit(None)
            return
        low, high = np.inf, -np.inf
        for piece, _ in self._pieces():
            low, high = min(low, float(piece.min())), max(high, float(piece.max()))
        low, high = self.peers.highest(np.array([-low, high])) * (-1, 1)
        even = np.linspace(low, high, self.num_clusters)
        self._allocate()
        for piece, assignment in self._pieces():
            assignment.copy_(torch.from_numpy(nearest(piece, even)))
        self.centers = even
        self._counts = None

    def start_sparse(self, how: Start) -> None:
        """Put zeros into a cluster at exactly 0, and run k-means with K - 1 clusters on the rest.

        Its centers start evenly over the range of the rest, or at the optimum.
        """
        if not self.sparse:
            self._fit(None)
            self._project()
            return
        weights = self._gather()
        self._part(weights, weights != 0, how)
        self._project()

    def start_distinct(self) -> None:
        """A cluster for each distinct value, and one at 0; with a fixed K, k-means.

        A group without a zero cluster may have more values than clusters.
        """
        if self._may_change:
            distinct, counts = np.unique(self._gather().astype(np.float64), return_counts=True)
            distinct, _ = self.peers.merged(distinct, counts)
            wanted = len(distinct) + (self.sparse and not np.any(distinct == 0))
            if self.sparse and wanted > self.most_clusters:
                raise TyingError(
                    f"group {self.name!r} has {len(distinct):,} values, more than "
                    f"{self.most_clusters}, so it is not tied yet; pack the network first, give "
                    'num_clusters or scope = "tensor", or begin with "trained"'
                )
            self.num_clusters = min(wanted, self.most_clusters)
        self.start_sparse("kmeans")

    def part_zeros(self, most: float, num_clusters: int) -> None:
        """Put weights up to this magnitude into the zero cluster, and run k-means on the others.

        The weights themselves stay as they are.
        """
        self.num_clusters = num_clusters
        if not self.sparse:
            self._fit(None)
            return
        weights = self._gather()
        self._part(weights, np.abs(weights) > most, "kmeans")

    def _part(self, weights: np.ndarray, alive: np.ndarray, how: Start) -> None:
        """Make a cluster at 0 for all but `alive`, and K - 1 clusters by k-means for `alive`."""
        values, wanted = weights[alive], self.num_clusters - 1
        assignment = np.zeros(len(weights), assignment_dtype(self.num_clusters))
        centers, zero = np.zeros(1), 0
        if self.peers.total(np.array([len(values)]))[0]:
            first = None
            if how == "even":
                low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
                low, high = self.peers.highest(np.array([-low, high])) * (-1, 1)
                first = np.linspace(values.dtype.type(low), values.dtype.type(high), wanted)
            found = self._kmeans(values, wanted, first)
            zero = int(np.searchsorted(found.centers, 0.0))
            centers = np.insert(found.centers, zero, 0.0)
            assignment[:] = zero
            places = found.assignment.astype(assignment.dtype)
            assignment[alive] = places + (places >= zero)
        self._set(centers, assignment)
        self.zero_cluster = zero
        self._ready = None

    def start_given(self, centers: np.ndarray, assignment: np.ndarray, zero_cluster: int) -> None:
        """Tie to given clusters, of which one is set to exactly 0.

        `assignment` is one vector, member after member, each in memory order.
        """
        self._set(centers, assignment)
        self.zero_cluster = zero_cluster
        self.centers[zero_cluster] = 0.0
        self._project()

    def refit(self) -> float:
        """Run 1-D k-means from the current centers; gives the fraction of changed assignments.

        Weights that are fixed at zero stay there, and the other K - 1 centers are for the rest.
        """
        if self.zero_cluster is not None:
            return self._refit_survivors() / self.num_weights
        return self._fit(self.centers) / self.num_weights

    def _fit(self, centers: np.ndarray | None) -> int:
        """Run k-means, from these centers if given; gives how many assignments changed.

        Weights that the compiled loops can reach are counted in place; others are copied.
        """
        if not self.assignments:
            self._allocate()
        numbers = self._countable()
        if self.distance == "l2" and self.num_weights >= COUNTED_FROM and numbers is not None:
            found = refit(numbers, self.num_clusters, centers, reducer=self.peers)
            if found is not None:
                self.centers = found.centers
                self._counts = None
                return found.changed
        before = self._gather_assignment()
        copied = self._kmeans(self._gather(), self.num_clusters, centers)
        self._set(copied.centers, copied.assignment)
        return self._total(before != copied.assignment)

    def _countable(self) -> Countable | None:
        """The weights where they lie, if they can be counted there."""
        tensors = self.tensors()
        if all(tensors.reached):
            return InMemory(tensors.work, np.dtype(tensors.types[0]), torch.get_num_threads())
        return self._on_device(None)

    def _on_device(self, without: int | None) -> OnDevice | None:
        """The weights, but for those of a cluster, where they are all on an accelerator."""
        held = self.tensors().held
        devices = {weights.device for weights, _, _ in held}
        if len(devices) > 1 or devices.pop().type in ("cpu", "mps"):  # mps has no float64
            return None
        return OnDevice(held, without)

    def _kmeans(self, values: np.ndarray, k: int, centers: np.ndarray | None) -> Clustering:
        """k-means on some of the weights here, and those that the others have."""
        return kmeans1d_of_parts(values, k, self.peers, centers=centers, distance=self.distance)

    def _total(self, found: np.ndarray) -> int:
        """How many are found here and by the others."""
        return int(self.peers.total(np.array([np.count_nonzero(found)]))[0])

    def _refit_survivors(self) -> int:
        """Like `_fit`, but the zero cluster keeps its weights."""
        old = self.zero_cluster
        assert old is not None
        others = np.delete(self.centers, old)
        changed = self._refit_on_device(old, others)
        if changed is not None:
            return changed
        before = self._gather_assignment()
        alive = before != old
        if not self._total(alive) or not len(others):
            return 0
        found = self._kmeans(self._gather()[alive], len(others), others)
        zero = int(np.searchsorted(found.centers, 0.0))
        own = before[alive] - (before[alive] > old)  # the clusters as if there were no zero cluster
        after = np.full(len(before), zero, before.dtype)
        places = found.assignment.astype(before.dtype)
        after[alive] = places + (places >= zero)
        self._set(np.insert(found.centers, zero, 0.0), after)
        self.zero_cluster = zero
        return self._total(own != found.assignment)

    def _refit_on_device(self, old: int, others: np.ndarray) -> int | None:
        """The same without a copy on the host, where the weights are many on an accelerator."""
        numbers = self._on_device(old)
        many = int(self.counts.sum() - self.counts[old]) >= COUNTED_FROM
        if numbers is None or not many or self.distance != "l2":
            return None
        found = refit(numbers, len(others), others, reducer=self.peers)
        if found is None:
            return None
        zero, places = int(np.searchsorted(found.centers, 0.0)), np.arange(len(found.centers))
        renumber_(numbers.held, np.append(places + (places >= zero), zero))
        self.centers = np.insert(found.centers, zero, 0.0)
        self.zero_cluster, self._counts = zero, None
        return found.changed

    def refresh(self) -> None:
        """Set centers to the means (or medians) of their clusters; the assignment is kept.

        They are computed lazily, right before the pull that uses them, so that two passes over the
        weights follow each other.
        """
        self._stale = True

    # -- soft tying -------------------------------------------------------------------------

    def add_pull_(
        self, grads: Mapping[str, Tensor], tying_strength: float, l1_strength: float
    ) -> None:
        """Add the gradient of the penalties to the gradients of some members."""
        ops.add_pull_(
            self.tensors(),
            [grads.get(name) for name in self.members],
            self.centers,
            tying_strength=tying_strength,
            l1_strength=l1_strength if self.sparse else 0.0,
            to_medians=self.distance == "l1",
        )

    def fix_zeros(self) -> None:
        """Set the weights of the smallest cluster to zero, and keep them there."""
        if not self.sparse:
            return
        self.zero_cluster = self.smallest_center()
        self._ready = None  # blocks of zeros can be skipped from now on
        self.hold_zeros()

    def hold_zeros(self) -> None:
        """After an optimizer step: set the fixed zeros back to zero."""
        if self.zero_cluster is None:
            return
        for weights, assignment, _ in self.tensors().held:
            ops.zero_(weights, assignment, self.zero_cluster)
        self._centers[self.zero_cluster] = 0.0

    def release_zeros(self) -> None:
        """Let weights leave the zero cluster again, until hard tying."""
        self._zeros_stay, self._ready = False, None

    def renew_centers(self, centers: np.ndarray) -> None:
        """Set the centers, rounded as the weights are; clusters and weights are the caller's."""
        self.centers = self._as_held(centers)
        self._counts = None

    # -- hard tying -------------------------------------------------------------------------

    def harden(self, *, zero_cluster: bool) -> None:
        """Set each weight to its center; with `zero_cluster`, the smallest center to exactly 0."""
        if zero_cluster and self.sparse:
            if self.zero_cluster is None:
                self.zero_cluster = self.smallest_center()
            self.centers[self.zero_cluster] = 0.0
            self._zeros_stay, self._ready = True, None  # blocks can be skipped from now on
        self._project()

    def share_gradients_(self, grads: Mapping[str, Tensor], how: Shared) -> None:
        """Replace gradients by their cluster's mean or sum, and by zero in the zero cluster.

        Gradients below 1e-9 of the largest one are rounded to zero.
        """
        tensors, copies = self._with_gradients(grads)
        shared = ops.cluster_totals(tensors, len(self.centers))
        if how == "mean":
            counts = self.counts
            if len(tensors.held) < len(self.members):
                there = [name for name in self.members if name in grads]
                counts = self.peers.total(self._counted(there).sum(0))
            shared /= np.maximum(counts, 1)
        if self.zero_cluster is not None:
            shared[self.zero_cluster] = 0.0
        ops.project_(tensors, shared)
        for grad, same in copies:
            grad.copy_(same)

    def _with_gradients(
        self, grads: Mapping[str, Tensor]
    ) -> tuple[ops.Tensors, list[tuple[Tensor, Tensor]]]:
        """These gradients with their clusters; and pairs of gradient and copy, where copied."""
        found, own = [grads.get(name) for name in self.members], self.tensors()
        together = own.on(found)
        if together is not None:
            return together, []
        held, copies = [], []
        for grad, (weights, assignment, dead) in zip(found, own.held, strict=True):
            if grad is not None:
                copy = grad.to(self.dtype)
                still = dead if ops.in_same_order(copy, weights) else None
                held.append(ops.Held(copy, ops.like(assignment, copy), still))
                copies += [(grad, copy)] if copy is not grad else []
        return ops.Tensors(held, self.num_weights, self.peers), copies

    def retie(self) -> None:
        """After an optimizer step: set each weight to its cluster's mean; zeros stay zero."""
        tensors = self.tensors()
        centers = ops.cluster_means(tensors, self.centers, self.counts)
        if self.zero_cluster is not None:
            centers[self.zero_cluster] = 0.0
        self.centers = self._as_held(centers)
        ops.project_(tensors, self.centers)

    def move_centers(self, centers: np.ndarray) -> None:
        """Set the centers, and the weights with them."""
        self.centers = centers
        self._project()

    def _project(self) -> None:
        self.centers = self._as_held(self.centers)
        ops.project_(self.tensors(), self.centers)
