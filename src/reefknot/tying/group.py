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

    def refit(self) -> float:
        """Full 1-D k-means from the present centers; gives the share of changed assignments.

        Weights that are fixed at zero stay there, and the other K - 1 centers are for the rest.
        """
        weights = self._gather()
        before = self._gather_assignment()
        if self.zero_cluster is not None:
            return self._refit_survivors(weights, before)
        found = kmeans1d(weights, self.num_clusters, centers=self.centers, distance=self.distance)
        self._set(found.centers, found.assignment)
        return float(np.mean(before != found.assignment))

    def refresh(self) -> None:
        """Centers become the means (or medians) of their clusters; the assignment is kept."""
        if self.distance == "l1":
            self.centers = self._medians()
        else:
            self.centers = ops.cluster_means(self._pairs(), self.centers, self.counts)

    def _refit_survivors(self, weights: np.ndarray, before: np.ndarray) -> float:
        """As `refit`, with the zero cluster left as it is."""
        old = self.zero_cluster
        assert old is not None
        alive = before != old
        others = np.delete(self.centers, old)
        if not alive.any() or not len(others):
            return 0.0
        found = kmeans1d(weights[alive], len(others), centers=others, distance=self.distance)
        zero = int(np.searchsorted(found.centers, 0.0))
        own = before - (before > old)  # the clusters as if there were no zero cluster
        changed = float(np.mean(alive)) * float(np.mean(own[alive] != found.assignment))
        after = np.full(len(weights), zero, np.int64)
        after[alive] = found.assignment + (found.assignment >= zero)
        self._set(np.insert(found.centers, zero, 0.0), after)
        self.zero_cluster = zero
        return changed

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

    def fix_zeros(self) -> None:
        """The weights of the cluster of smallest magnitude become zero, and stay in it."""
        self.zero_cluster = self.smallest_center()
        self.hold_zeros()

    def hold_zeros(self) -> None:
        """After an optimizer step: what is fixed at zero goes back to it."""
        assert self.zero_cluster is not None
        self.centers[self.zero_cluster] = 0.0
        for weights, assignment in self._pairs():
            ops.zero_(weights, assignment, self.zero_cluster)

    # -- hard tying -------------------------------------------------------------------------

    def harden(self, *, zero_cluster: bool) -> None:
        """Each weight to its center; the center of smallest magnitude to exactly 0 if asked."""
        if zero_cluster:
            if self.zero_cluster is None:
                self.zero_cluster = self.smallest_center()
            self.centers[self.zero_cluster] = 0.0
        self._project()

    def retie(self) -> None:
        """After an optimizer step: each weight becomes its cluster's mean, zeros stay zero."""
        self.centers = ops.cluster_means(self._pairs(), self.centers, self.counts)
        if self.zero_cluster is not None:
            self.centers[self.zero_cluster] = 0.0
        self._project()

    def round_centers(self, bits: int) -> None:
        """Keep so many bits of each center's fraction, and move the weights along."""
        mantissa, exponent = np.frexp(self.centers)  # a mantissa has its first bit at 1/2
        self.centers = np.ldexp(np.round(np.ldexp(mantissa, bits + 1)), exponent - bits - 1)
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
        """The zero cluster, or what would become it: the smallest in magnitude with weights."""
        if self.zero_cluster is not None:
            return self.zero_cluster
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
