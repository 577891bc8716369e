"""A group: tensors that share one codebook, and which cluster each weight is in.

Takes     named parameters and how many values they may share.
Gives     centers (mu), assignment (C) and counts, which follow the parameters when these are moved;
          weights at their centers, zeros that stay zero; and their saved state.
Paper     section 3.1, equation 1; section 3.2 (hard tying).
Unaware   of how weights come to their clusters (`kmeans.py`), of optimizers and of methods.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from reefknot.errors import TyingError
from reefknot.kernels import assignment_dtype
from reefknot.kernels.kmeans1d import Distance
from reefknot.tying import ops
from reefknot.tying.collectives import as_dtensor, local_shard
from reefknot.tying.members import Members
from reefknot.tying.saved import saved_count, saved_tensor
from reefknot.tying.selection import Named


class Group:
    """Parameters, their K centers (ascending until hard tying, float64) and their assignment.

    The assignment of a parameter has its shape and memory layout. A group that is not `sparse` has
    no zero cluster, and gets no L1 penalty. An empty cluster keeps its center until the next refit,
    which moves it to where it helps most. A member that is sharded over several processes has only
    its part here; centers and counts are those of all parts.
    """

    def __init__(
        self,
        name: str,
        members: Iterable[Named],
        num_clusters: int,
        distance: Distance = "l2",
        *,
        sparse: bool = True,
        most_clusters: int | None = None,
    ) -> None:
        self.name = name
        self.members = Members(members)
        self.num_clusters = num_clusters
        self.may_change = most_clusters is not None  # K, up to `most_clusters`
        self.most_clusters = most_clusters or num_clusters
        self.distance: Distance = distance
        self.sparse = sparse
        self.zero_cluster: int | None = None
        self.assignments: dict[str, Tensor] = {}  # none before the start
        self._centers = np.zeros(0)
        self._stale = False  # whether the centers must be computed again
        self._counts: np.ndarray | None = np.zeros(0, np.int64)  # None: must be counted again
        self._zeros_stay = True  # blocks of zeros can be skipped
        self._ready: ops.Tensors | None = None  # see `tensors`

    # -- reading ----------------------------------------------------------------------------

    @property
    def centers(self) -> np.ndarray:
        """The K shared values: means (or medians) of their clusters."""
        if self._stale:
            self._stale = False
            if self.distance == "l1":
                self._centers = _medians(self)
            else:
                self._centers = ops.cluster_means(self.tensors(), self._centers, self.counts)
        return self._centers

    @property
    def counts(self) -> np.ndarray:
        """How many weights each cluster has."""
        if self._counts is None:
            held = [self.assignment(name) for name in self.members]
            counted = ops.cluster_counts(held, len(self._centers)).sum(0)
            self._counts = self.members.processes.total(counted)
        return self._counts

    def assignment(self, name: str) -> Tensor:
        """A member's assignment, in its memory layout."""
        self.follow(name)
        return self.assignments[name]

    def clusters(self) -> np.ndarray:
        """The cluster of each weight here, member after member."""
        return np.concatenate([ops.flat(self.assignment(n)).cpu().numpy() for n in self.members])

    def alive(self, name: str) -> Tensor:
        """A mask: where a member is not in the zero cluster."""
        assignment = self.assignment(name)
        if self.zero_cluster is None:
            return torch.ones_like(assignment, dtype=torch.bool)
        return assignment != self.zero_cluster

    def has_room(self) -> bool:
        """Whether K may grow."""
        return self.may_change and self.num_clusters < self.most_clusters

    def smallest_center(self) -> int:
        """The zero cluster, or the one that would become it: the smallest non-empty one."""
        if self.zero_cluster is not None:
            return self.zero_cluster
        magnitude = np.where(self.counts > 0, np.abs(self.centers), np.inf)
        return int(np.argmin(magnitude))

    def follow(self, *names: str) -> None:
        """Notice members (all, or these) with another memory layout; assignments move along.

        Everything that reads or writes the memory of a member calls this first.
        """
        for name in self.members.moved(*names):
            self._ready = None
            if name in self.assignments:
                here = self.members.here(name)
                self.assignments[name] = ops.like(self.assignments[name], here)

    def tensors(self) -> ops.Tensors:
        """The members prepared for the compiled loops; prepared again if a layout changes."""
        self.follow()
        if self._ready is None:
            held = []
            for name in self.members:
                weights, assignment = self.members.here(name).detach(), self.assignments[name]
                dead = None
                if self.zero_cluster is not None and self._zeros_stay:
                    dead = ops.dead_blocks(weights, assignment, self.zero_cluster)
                held.append(ops.Held(weights, assignment, dead))
            self._ready = ops.Tensors(held, self.members.num_weights, self.members.processes)
        return self._ready

    # -- clusters ---------------------------------------------------------------------------

    def allocate(self) -> None:
        """Make room for the assignment of each member, in the memory layout of its weights."""
        for name in self.members:
            here = self.members.here(name)
            self.assignments[name] = torch.zeros_like(here, dtype=_index_dtype(self))
        self._ready = None

    def assign(
        self, centers: np.ndarray, assignment: np.ndarray, zero_cluster: int | None = None
    ) -> None:
        """Set centers and assignment, one vector, member after member; weights stay.

        Without a `zero_cluster` the group keeps the one it has.
        """
        self.allocate()
        begin = 0
        for name in self.members:
            held = ops.flat(self.assignments[name])
            part = assignment[begin : begin + held.numel()]
            begin += held.numel()
            held.copy_(torch.from_numpy(np.asarray(part)))
        self.set_centers(np.array(centers, np.float64), recount=True)
        if zero_cluster is not None:
            self.zero_cluster = zero_cluster

    def set_centers(self, centers: np.ndarray, *, recount: bool = False) -> None:
        """Set the centers; `recount` if the caller has changed the assignment as well."""
        self._centers, self._stale = centers, False
        if recount:
            self._counts = None

    def refresh(self) -> None:
        """Set centers to the means (or medians) of their clusters; the assignment is kept.

        They are computed lazily, right before the pull that uses them, so that two passes over the
        weights follow each other.
        """
        self._stale = True

    def forget(self) -> None:
        """Drop all clusters, as before the start."""
        self.assignments, self.zero_cluster = {}, None
        self._zeros_stay, self._ready = True, None

    # -- weights ----------------------------------------------------------------------------

    def move_to(self, centers: np.ndarray) -> None:
        """Set the centers, rounded as the weights are, and each weight to its own."""
        self.set_centers(self.members.rounded(centers))
        ops.project_(self.tensors(), self.centers)

    def adopt(self, trust: float = 1.0) -> None:
        """Move each center by this part of the way to its cluster's mean; the weights stay.

        The center of fixed zeros is 0.
        """
        means = ops.cluster_means(self.tensors(), self.centers, self.counts)
        centers = means if trust == 1 else self.centers + trust * (means - self.centers)
        if self.zero_cluster is not None:
            centers[self.zero_cluster] = 0.0
        self.set_centers(self.members.rounded(centers))

    def project(self, trust: float = 1.0) -> None:
        """Set each weight to its center, which moves towards the mean; zeros stay zero."""
        self.adopt(trust)
        ops.project_(self.tensors(), self.centers)

    def freeze(self) -> None:
        """Set each weight to its center; if the group is sparse, the smallest center to 0."""
        if self.sparse:
            if self.zero_cluster is None:
                self.zero_cluster = self.smallest_center()
            self.centers[self.zero_cluster] = 0.0
            self._zeros_stay, self._ready = True, None  # blocks can be skipped from now on
        self.move_to(self.centers)

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
        """Let weights leave the zero cluster again, until they are frozen."""
        self._zeros_stay, self._ready = False, None

    # -- saving -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor | int]:
        """Centers, the zero cluster (-1: none) and every member's assignment."""
        state: dict[str, Tensor | int] = {
            "centers": torch.from_numpy(self.centers.copy()),
            "zero_cluster": -1 if self.zero_cluster is None else self.zero_cluster,
        }
        for name, assignment in self.assignments.items():
            state[f"assignment.{name}"] = as_dtensor(assignment.clone(), self.members[name])
        return state

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved; everything is checked before any of it is used."""
        centers = saved_tensor(state, "centers", dtype=torch.float64)
        if centers.dim() != 1 or not 1 <= len(centers) <= self.most_clusters:
            raise TyingError(
                f"the saved state of group {self.name!r} has centers of shape "
                f"{tuple(centers.shape)}, for {self.most_clusters:,} clusters; was num_clusters "
                "another?"
            )
        zero = saved_count(state, "zero_cluster", least=-1, most=len(centers) - 1)
        assignments = {}
        for name, parameter in self.members.items():
            key = f"assignment.{name}"
            saved = saved_tensor(state, key, dtype=_index_dtype(self), shape=parameter.shape)
            saved = local_shard(saved, parameter)
            if saved.numel() and not 0 <= int(saved.min()) <= int(saved.max()) < len(centers):
                raise TyingError(
                    f"the saved assignment of {name!r} names clusters from {int(saved.min())} to "
                    f"{int(saved.max())}, but there are {len(centers):,}; was it damaged?"
                )
            here = self.members.here(name)
            assignments[name] = torch.empty_like(here, dtype=saved.dtype).copy_(saved)
        self.set_centers(centers.cpu().numpy().copy(), recount=True)
        self.assignments = assignments
        if self.may_change:
            self.num_clusters = len(self.centers)
        self.zero_cluster = None if zero < 0 else zero
        self._zeros_stay, self._ready = True, None


def _index_dtype(group: Group) -> torch.dtype:
    narrow = assignment_dtype(group.most_clusters) == np.uint8
    return torch.uint8 if narrow else torch.int32


def _medians(group: Group) -> np.ndarray:
    """The lower median of each cluster; an empty one keeps its center."""
    weights = group.members.weights()[np.argsort(group.clusters(), kind="stable")]
    centers, end = group.centers.copy(), 0
    for k, count in enumerate(group.counts):
        begin, end = end, end + int(count)
        if count:
            middle = (int(count) - 1) // 2
            centers[k] = np.partition(weights[begin:end], middle)[middle]
    return centers
