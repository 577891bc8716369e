"""A group of tensors that share one codebook, and what happens to it in soft and in hard tying.

Takes     named parameters and how many values they may share.
Gives     centers (mu), assignment (C), and the steps of the paper on them.
Paper     section 3.1 (soft tying), section 3.2 (hard tying), equation 1.
Unaware   of optimizers, of step counts, and of which method calls it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from reefknot.errors import DivergedError, TyingError
from reefknot.kernels import assignment_dtype
from reefknot.kernels.kmeans1d import Distance, kmeans1d, nearest
from reefknot.tying import ops
from reefknot.tying.selection import Named

Start = Literal["even", "kmeans"]


class Group:
    """Parameters, their K centers (ascending until hard tying, float64) and their assignment.

    The assignment of a parameter has its shape and memory layout. An empty cluster keeps its
    center until the next refit, which moves it to where it helps most.
    """

    def __init__(
        self, name: str, members: Iterable[Named], num_clusters: int, distance: Distance = "l2"
    ) -> None:
        self.name = name
        self.members: dict[str, Tensor] = dict(members)
        self.num_clusters = num_clusters
        self.distance: Distance = distance
        self.centers = np.zeros(0)
        self.counts = np.zeros(0, np.int64)
        self.zero_cluster: int | None = None
        self.assignments: dict[str, Tensor] = {}

    @property
    def num_weights(self) -> int:
        """Elements of all members."""
        return sum(parameter.numel() for parameter in self.members.values())

    @property
    def dtype(self) -> torch.dtype:
        """The one type that all members have."""
        return next(iter(self.members.values())).dtype

    # -- clustering -------------------------------------------------------------------------

    def start(self, how: Start) -> None:
        """First centers: evenly over the range of the weights (the paper), or k-means on them."""
        weights = self._gather()
        if how == "kmeans":
            found = kmeans1d(weights, self.num_clusters, distance=self.distance)
            self._set(found.centers, found.assignment)
            return
        even = np.linspace(weights.min(), weights.max(), self.num_clusters)
        self._set(even, nearest(weights, even))

    def start_sparse(self, how: Start) -> None:
        """Zeros get a cluster of their own at exactly 0, k-means on the others the rest.

        The others' centers start evenly over their range, or where k-means finds the optimum.
        """
        weights = self._gather()
        alive = weights != 0
        values, wanted = weights[alive], self.num_clusters - 1
        assignment = np.zeros(len(weights), assignment_dtype(self.num_clusters))
        centers, zero = np.zeros(1), 0
        if len(values):
            first = None if how == "kmeans" else np.linspace(values.min(), values.max(), wanted)
            found = kmeans1d(values, wanted, centers=first, distance=self.distance)
            zero = int(np.searchsorted(found.centers, 0.0))
            centers = np.insert(found.centers, zero, 0.0)
            assignment[:] = zero
            places = found.assignment.astype(assignment.dtype)
            assignment[alive] = places + (places >= zero)
        self._set(centers, assignment)
        self.zero_cluster = zero
        self._project()

    def start_given(self, centers: np.ndarray, assignment: np.ndarray, zero_cluster: int) -> None:
        """Clusters that were found elsewhere, of which one is exactly 0; ties to them.

        `assignment` has all weights in one row, members in turn, each in the order of memory.
        """
        self._set(centers, assignment)
        self.zero_cluster = zero_cluster
        self.centers[zero_cluster] = 0.0
        self._project()

    def refit(self) -> float:
        """Full 1-D k-means from the present centers; gives the share of changed assignments."""
        weights = self._gather()
        before = self._gather_assignment()
        found = kmeans1d(weights, self.num_clusters, centers=self.centers, distance=self.distance)
        self._set(found.centers, found.assignment)
        return float(np.mean(before != found.assignment))

    def refresh(self) -> None:
        """Centers become the means (or medians) of their clusters; the assignment is kept."""
        if self.distance == "l1":
            self.centers = self._medians()
        else:
            self.centers = ops.cluster_means(self._pairs(), self.centers, self.counts)

    # -- soft tying -------------------------------------------------------------------------

    def add_pull_(self, name: str, grad: Tensor, tying_strength: float, l1_strength: float) -> None:
        """Add the penalties' gradient to the gradient of one member."""
        ops.add_pull_(
            grad,
            self.members[name].detach(),
            self.assignment(name),
            self.centers,
            tying_strength=tying_strength,
            l1_strength=l1_strength,
            to_medians=self.distance == "l1",
        )

    # -- hard tying -------------------------------------------------------------------------

    def harden(self, *, zero_cluster: bool) -> None:
        """Each weight to its center; the center of smallest magnitude to exactly 0 if asked."""
        if zero_cluster:
            self.zero_cluster = self.smallest_center()
            self.centers[self.zero_cluster] = 0.0
        self._project()

    def sum_gradients_(self, grads: Mapping[str, Tensor]) -> None:
        """Each of these gradients becomes the sum over its cluster; in the zero cluster, zero."""
        pairs = [(grad, ops.like(self.assignment(name), grad)) for name, grad in grads.items()]
        means = ops.cluster_means(pairs, np.zeros(len(self.centers)), self.counts)
        sums = means * self.counts
        if self.zero_cluster is not None:
            sums[self.zero_cluster] = 0.0
        for grad, assignment in pairs:
            ops.project_(grad, assignment, sums)

    def retie(self) -> None:
        """After an optimizer step: each weight becomes its cluster's mean, zeros stay zero."""
        self.centers = ops.cluster_means(self._pairs(), self.centers, self.counts)
        if self.zero_cluster is not None:
            self.centers[self.zero_cluster] = 0.0
        self._project()

    def _project(self) -> None:
        # Held as the weights will hold them, so that a cluster that does not move stays as it is.
        rounded = torch.from_numpy(self.centers).to(self.dtype).double().numpy()
        self.centers = rounded + 0.0  # -0.0 becomes +0.0
        for weights, assignment in self._pairs():
            ops.project_(weights, assignment, self.centers)

    # -- reading ----------------------------------------------------------------------------

    def assignment(self, name: str) -> Tensor:
        """A member's assignment, moved along if the parameter was moved or laid out anew."""
        self.assignments[name] = ops.like(self.assignments[name], self.members[name])
        return self.assignments[name]

    def smallest_center(self) -> int:
        """The cluster of smallest magnitude that has weights: the zero cluster."""
        magnitude = np.where(self.counts > 0, np.abs(self.centers), np.inf)
        return int(np.argmin(magnitude))

    def tensor_counts(self) -> Iterator[tuple[str, np.ndarray]]:
        """How many elements of each member are in each cluster."""
        for name in self.members:
            index = ops.flat(self.assignment(name)).cpu().numpy()
            yield name, np.bincount(index, minlength=len(self.centers))

    def deviations(self) -> tuple[np.ndarray, np.ndarray]:
        """The sums of |w - own center| and of its square in each cluster."""
        absolute, square = np.zeros((2, len(self.centers)))
        for weights, assignment in self._pairs():
            index = ops.flat(assignment).cpu().numpy()
            away = np.abs(ops.flat(weights).double().cpu().numpy() - self.centers[index])
            absolute += np.bincount(index, away, minlength=len(absolute))
            square += np.bincount(index, away * away, minlength=len(square))
        return absolute, square

    def spreads(self) -> np.ndarray:
        """The root mean square of (w - own center) in each cluster."""
        _, square = self.deviations()
        return np.sqrt(square / np.maximum(self.counts, 1))

    def untied(self) -> Iterator[str]:
        """Members with a weight that is not its center."""
        for name, parameter in self.members.items():
            expected = torch.from_numpy(self.centers)[ops.flat(self.assignment(name)).long().cpu()]
            if not torch.equal(ops.flat(parameter).double().cpu(), expected):
                yield name

    # -- holding ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor | int]:
        """Centers, the zero cluster (-1: none) and every member's assignment."""
        state: dict[str, Tensor | int] = {
            "centers": torch.from_numpy(self.centers.copy()),
            "zero_cluster": -1 if self.zero_cluster is None else self.zero_cluster,
        }
        state.update({f"assignment.{n}": a.clone() for n, a in self.assignments.items()})
        return state

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Take up where `state_dict` was called."""
        centers, zero = state["centers"], int(state["zero_cluster"])
        assert isinstance(centers, Tensor)
        self.centers = centers.double().cpu().numpy().copy()
        self.zero_cluster = None if zero < 0 else zero
        for name, parameter in self.members.items():
            assignment = state[f"assignment.{name}"]
            assert isinstance(assignment, Tensor)
            if assignment.shape != parameter.shape:
                raise TyingError(
                    f"the saved assignment of {name!r} has shape {tuple(assignment.shape)}, the "
                    f"parameter {tuple(parameter.shape)}; was it saved for another model?"
                )
            self.assignments[name] = torch.empty_like(parameter, dtype=assignment.dtype)
            self.assignments[name].copy_(assignment)
        self._count()

    def _set(self, centers: np.ndarray, assignment: np.ndarray) -> None:
        self.centers = np.array(centers, np.float64)
        dtype = assignment_dtype(max(self.num_clusters, len(centers)))
        begin = 0
        for name, parameter in self.members.items():
            part = assignment[begin : begin + parameter.numel()].astype(dtype)
            begin += parameter.numel()
            held = torch.empty_like(
                parameter, dtype=torch.uint8 if dtype == np.uint8 else torch.int32
            )
            ops.flat(held).copy_(torch.from_numpy(part))
            self.assignments[name] = held
        self._count()

    def _count(self) -> None:
        zeros = np.zeros(len(self.centers), np.int64)
        self.counts = sum((counts for _, counts in self.tensor_counts()), zeros)

    def _gather(self) -> np.ndarray:
        """A copy of all weights in one row."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        rows = [ops.flat(parameter).to(wide).cpu().numpy() for parameter in self.members.values()]
        for name, row in zip(self.members, rows, strict=True):
            if not np.all(np.isfinite(row)):
                raise DivergedError(
                    f"weights of {name!r} are not finite, so they cannot be clustered; lower the "
                    "rate or the strengths, or start from a sound checkpoint"
                )
        return np.concatenate(rows)

    def _gather_assignment(self) -> np.ndarray:
        return np.concatenate([ops.flat(self.assignment(n)).cpu().numpy() for n in self.members])

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return [(p.detach(), self.assignment(n)) for n, p in self.members.items()]

    def _medians(self) -> np.ndarray:
        """The lower median of each cluster, an empty one keeping its center."""
        weights = self._gather()[np.argsort(self._gather_assignment(), kind="stable")]
        centers, end = self.centers.copy(), 0
        for k, count in enumerate(self.counts):
            begin, end = end, end + int(count)
            if count:
                middle = (int(count) - 1) // 2
                centers[k] = np.partition(weights[begin:end], middle)[middle]
        return centers
