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
from reefknot.kernels.kmeans1d import MANY, Distance, kmeans1d, nearest, refit
from reefknot.tying import ops
from reefknot.tying.saved import saved_count, saved_tensor
from reefknot.tying.selection import Named, is_trainable

Start = Literal["even", "kmeans"]
Shared = Literal["mean", "sum"]
PIECE = 1 << 20


class Group:
    """Parameters, their K centers (ascending until hard tying, float64) and their assignment.

    The assignment of a parameter has its shape and memory layout. An empty cluster keeps its
    center until the next refit, which moves it to where it helps most. A group that is not `sparse`
    has no zero cluster, and no L1 penalty pulls it to zero, whatever the others do.
    """

    def __init__(
        self,
        name: str,
        members: Iterable[Named],
        num_clusters: int,
        distance: Distance = "l2",
        *,
        sparse: bool = True,
    ) -> None:
        self.name = name
        self.members: dict[str, Tensor] = dict(members)
        self.num_clusters = num_clusters
        self.distance: Distance = distance
        self.sparse = sparse
        self._centers = np.zeros(0)
        self._stale = False  # the weights have moved since the centers were their means
        self._ready: ops.Tensors | None = None  # see `_tensors`
        self._shapes = {name: parameter.shape for name, parameter in self.members.items()}
        self._layouts: dict[str, ops.Layout] = {}  # as last seen; see `follow`
        self.counts = np.zeros(0, np.int64)
        self.zero_cluster: int | None = None
        self._zeros_stay = True  # blocks of zeros can be skipped
        self.assignments: dict[str, Tensor] = {}

    @property
    def num_weights(self) -> int:
        """Elements of all members."""
        return sum(parameter.numel() for parameter in self.members.values())

    @property
    def dtype(self) -> torch.dtype:
        """The one type that all members have."""
        return next(iter(self.members.values())).dtype

    @property
    def centers(self) -> np.ndarray:
        """The K shared values: means (or medians) of their clusters."""
        if self._stale:
            self._stale = False
            if self.distance == "l1":
                self._centers = self._medians()
            else:
                self._centers = ops.cluster_means(self._tensors(), self._centers, self.counts)
        return self._centers

    @centers.setter
    def centers(self, centers: np.ndarray) -> None:
        self._centers, self._stale = centers, False

    # -- clustering -------------------------------------------------------------------------

    def start(self, how: Start) -> None:
        """First centers: evenly over the range of the weights (the paper), or k-means on them."""
        if how == "kmeans":
            self._fit(None)
            return
        low, high = np.inf, -np.inf
        for piece, _ in self._pieces():
            low, high = min(low, float(piece.min())), max(high, float(piece.max()))
        even = np.linspace(low, high, self.num_clusters)
        self._allocate()
        for piece, assignment in self._pieces():
            assignment.copy_(torch.from_numpy(nearest(piece, even)))
        self.centers = even
        self._count()

    def start_sparse(self, how: Start) -> None:
        """Zeros get a cluster of their own at exactly 0, k-means on the others the rest.

        The others' centers start evenly over their range, or where k-means finds the optimum.
        """
        if not self.sparse:
            self._fit(None)
            self._project()
            return
        weights = self._gather()
        self._part(weights, weights != 0, how)
        self._project()

    def part_zeros(self, most: float) -> None:
        """Weights up to this magnitude make the zero cluster, and k-means those of the others.

        The weights themselves stay as they are.
        """
        if not self.sparse:
            self._fit(None)
            return
        weights = self._gather()
        self._part(weights, np.abs(weights) > most, "kmeans")

    def _part(self, weights: np.ndarray, alive: np.ndarray, how: Start) -> None:
        """A cluster at 0 for what is not alive, k-means with K - 1 clusters on the rest."""
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
        self._ready = None

    def start_given(self, centers: np.ndarray, assignment: np.ndarray, zero_cluster: int) -> None:
        """Clusters that were found elsewhere, of which one is exactly 0; ties to them.

        `assignment` has all weights in one row, members in turn, each in the order of memory.
        """
        self._set(centers, assignment)
        self.zero_cluster = zero_cluster
        self.centers[zero_cluster] = 0.0
        self._project()

    def refit(self) -> float:
        """Full 1-D k-means from the present centers; gives the share of changed assignments.

        Weights that are fixed at zero stay there, and the other K - 1 centers are for the rest.
        """
        if self.zero_cluster is not None:
            return self._refit_survivors() / self.num_weights
        return self._fit(self.centers) / self.num_weights

    def _fit(self, centers: np.ndarray | None) -> int:
        """k-means, from these centers if there are some; gives how many assignments changed.

        Where the weights can be reached they are counted in place; otherwise they are copied.
        """
        if not self.assignments:
            self._allocate()
        tensors = self._tensors()
        if self.distance == "l2" and self.num_weights >= MANY and all(tensors.reached):
            dtype = np.dtype(tensors.types[0])
            threads = torch.get_num_threads()
            found = refit(tensors.work, dtype, self.num_clusters, centers, threads)
            if found is not None:
                self.centers = found.centers
                self._count()
                return found.changed
        before = self._gather_assignment()
        copied = kmeans1d(
            self._gather(), self.num_clusters, centers=centers, distance=self.distance
        )
        self._set(copied.centers, copied.assignment)
        return int(np.count_nonzero(before != copied.assignment))

    def _refit_survivors(self) -> int:
        """As `_fit`, with the zero cluster left as it is."""
        old, before = self.zero_cluster, self._gather_assignment()
        assert old is not None
        alive = before != old
        others = np.delete(self.centers, old)
        if not alive.any() or not len(others):
            return 0
        values = self._gather()[alive]
        found = kmeans1d(values, len(others), centers=others, distance=self.distance)
        zero = int(np.searchsorted(found.centers, 0.0))
        own = before[alive] - (before[alive] > old)  # the clusters as if there were no zero cluster
        after = np.full(len(before), zero, before.dtype)
        places = found.assignment.astype(before.dtype)
        after[alive] = places + (places >= zero)
        self._set(np.insert(found.centers, zero, 0.0), after)
        self.zero_cluster = zero
        return int(np.count_nonzero(own != found.assignment))

    def refresh(self) -> None:
        """Centers become the means (or medians) of their clusters; the assignment is kept.

        They are computed when they are next looked at, which is right before the weights are
        pulled: then the weights are read twice in a row.
        """
        self._stale = True

    # -- soft tying -------------------------------------------------------------------------

    def add_pull_(
        self, grads: Mapping[str, Tensor], tying_strength: float, l1_strength: float
    ) -> None:
        """Add the penalties' gradient to the gradients of some members."""
        ops.add_pull_(
            self._tensors(),
            [grads.get(name) for name in self.members],
            self.centers,
            tying_strength=tying_strength,
            l1_strength=l1_strength if self.sparse else 0.0,
            to_medians=self.distance == "l1",
        )

    def fix_zeros(self) -> None:
        """The weights of the cluster of smallest magnitude become zero, and stay in it."""
        if not self.sparse:
            return
        self.zero_cluster = self.smallest_center()
        self._ready = None  # blocks of zeros can be skipped from now on
        self.hold_zeros()

    def hold_zeros(self) -> None:
        """After an optimizer step: what is fixed at zero goes back to it."""
        if self.zero_cluster is None:
            return
        for weights, assignment, _ in self._tensors().held:
            ops.zero_(weights, assignment, self.zero_cluster)
        self._centers[self.zero_cluster] = 0.0

    def release_zeros(self) -> None:
        """Weights may leave the zero cluster again, until hard tying."""
        self._zeros_stay, self._ready = False, None

    def tie_given(self, centers: np.ndarray, clusters: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """New centers, and for some places of each member new clusters; ties to them.

        Places count in the order of memory. The others stay in their clusters.
        """
        for name, (places, found) in clusters.items():
            held = ops.flat(self.assignment(name))
            for sign, index in ((-1, held[places]), (+1, found)):
                self.counts += sign * np.bincount(index.cpu().numpy(), minlength=len(centers))
            held[places] = found.to(held.device, held.dtype)
        self.centers = np.array(centers, np.float64)
        self._project()

    # -- hard tying -------------------------------------------------------------------------

    def harden(self, *, zero_cluster: bool) -> None:
        """Each weight to its center; the center of smallest magnitude to exactly 0 if asked."""
        if zero_cluster and self.sparse:
            if self.zero_cluster is None:
                self.zero_cluster = self.smallest_center()
            self.centers[self.zero_cluster] = 0.0
            self._zeros_stay, self._ready = True, None  # blocks can be skipped from now on
        self._project()

    def share_gradients_(self, grads: Mapping[str, Tensor], how: Shared) -> None:
        """Each of these gradients becomes its cluster's mean, or sum; in the zero cluster, zero.

        What is below 1e-9 of the largest gradient does not count.
        """
        held, copies = [], []
        for (name, parameter), own in zip(self.members.items(), self._tensors().held, strict=True):
            if (grad := grads.get(name)) is not None:
                same = grad.to(self.dtype)
                dead = own.dead if same.stride() == parameter.stride() else None
                held.append(ops.Held(same, ops.like(own.assignment, same), dead))
                if same is not grad:
                    copies.append((grad, same))
        tensors = ops.Tensors(held)
        shared = ops.cluster_totals(tensors, len(self.centers))
        if how == "mean":
            counts = self.counts
            if len(held) < len(self.members):
                counts = np.sum([c for name, c in self.tensor_counts() if name in grads], axis=0)
            shared /= np.maximum(counts, 1)
        if self.zero_cluster is not None:
            shared[self.zero_cluster] = 0.0
        ops.project_(tensors, shared)
        for grad, same in copies:
            grad.copy_(same)

    def retie(self) -> None:
        """After an optimizer step: each weight becomes its cluster's mean, zeros stay zero."""
        self.centers = ops.cluster_means(self._tensors(), self.centers, self.counts)
        if self.zero_cluster is not None:
            self.centers[self.zero_cluster] = 0.0
        self._project()

    def move_centers(self, centers: np.ndarray) -> None:
        """Give the clusters these centers, and move the weights along."""
        self.centers = centers
        self._project()

    def _project(self) -> None:
        # Held as the weights will hold them, so that a cluster that does not move stays as it is.
        rounded = torch.from_numpy(self.centers).to(self.dtype).double().numpy()
        self.centers = rounded + 0.0  # -0.0 becomes +0.0
        ops.project_(self._tensors(), self.centers)

    # -- reading ----------------------------------------------------------------------------

    def assignment(self, name: str) -> Tensor:
        """A member's assignment, of its layout."""
        self.follow(name)
        return self.assignments[name]

    def alive(self, name: str) -> Tensor:
        """Where a member is not in the zero cluster."""
        assignment = self.assignment(name)
        if self.zero_cluster is None:
            return torch.ones_like(assignment, dtype=torch.bool)
        return assignment != self.zero_cluster

    def magnitudes(self) -> np.ndarray:
        """|w| of all weights, members in turn."""
        return np.abs(self._gather())

    def smallest_center(self) -> int:
        """The zero cluster, or what would become it: the smallest in magnitude with weights."""
        if self.zero_cluster is not None:
            return self.zero_cluster
        magnitude = np.where(self.counts > 0, np.abs(self.centers), np.inf)
        return int(np.argmin(magnitude))

    def tensor_counts(self) -> Iterator[tuple[str, np.ndarray]]:
        """How many elements of each member are in each cluster."""
        for name in self.members:
            counts = np.zeros(len(self._centers), np.int64)
            for _, assignment in self._pieces(name):
                counts += np.bincount(assignment.cpu().numpy(), minlength=len(counts))
            yield name, counts

    def deviations(self) -> tuple[np.ndarray, np.ndarray]:
        """The sums of |w - own center| and of its square in each cluster."""
        absolute, square = np.zeros((2, len(self.centers)))
        for piece, assignment in self._pieces():
            index = assignment.cpu().numpy()
            away = np.abs(piece.astype(np.float64) - self.centers[index])
            absolute += np.bincount(index, away, minlength=len(absolute))
            square += np.bincount(index, away * away, minlength=len(square))
        return absolute, square

    def spreads(self) -> np.ndarray:
        """The root mean square of (w - own center) in each cluster."""
        _, square = self.deviations()
        return np.sqrt(square / np.maximum(self.counts, 1))

    def untied(self) -> Iterator[str]:
        """Members with a weight that is not its center."""
        for name in self.members:
            tied = (
                np.array_equal(piece, self.centers[assignment.cpu().numpy()])
                for piece, assignment in self._pieces(name)
            )
            if not all(tied):
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

    def forget(self) -> None:
        """As before the start: no clusters."""
        self.assignments, self.zero_cluster = {}, None
        self._zeros_stay, self._ready = True, None

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Take up where `state_dict` was called; all is checked before any of it is used."""
        centers = saved_tensor(state, "centers", dtype=torch.float64)
        if centers.dim() != 1 or not 1 <= len(centers) <= self.num_clusters:
            raise TyingError(
                f"the saved state of group {self.name!r} has centers of shape "
                f"{tuple(centers.shape)}, for {self.num_clusters:,} clusters; was num_clusters "
                "another?"
            )
        zero = saved_count(state, "zero_cluster", least=-1, most=len(centers) - 1)
        assignments = {}
        for name, parameter in self.members.items():
            key = f"assignment.{name}"
            saved = saved_tensor(state, key, dtype=self._index_dtype, shape=parameter.shape)
            if not 0 <= int(saved.min()) <= int(saved.max()) < len(centers):
                raise TyingError(
                    f"the saved assignment of {name!r} names clusters from {int(saved.min())} to "
                    f"{int(saved.max())}, but there are {len(centers):,}; was it damaged?"
                )
            assignments[name] = torch.empty_like(parameter, dtype=saved.dtype).copy_(saved)
        self.centers, self.assignments = centers.cpu().numpy().copy(), assignments
        self.zero_cluster = None if zero < 0 else zero
        self._zeros_stay, self._ready = True, None
        self._count()

    def require_zero_cluster(self) -> None:
        """Refuse a saved state in which no cluster is zero, although one must be by now."""
        if self.sparse and self.zero_cluster is None:
            raise TyingError(
                f"the saved state of group {self.name!r} has no zero cluster, and its zeros were "
                "fixed when it was saved; was it damaged?"
            )

    def _set(self, centers: np.ndarray, assignment: np.ndarray) -> None:
        """Centers, and the assignment of all members in one row."""
        self._allocate()
        begin = 0
        for name in self.members:
            held = ops.flat(self.assignments[name])
            part = assignment[begin : begin + held.numel()]
            begin += held.numel()
            held.copy_(torch.from_numpy(np.asarray(part)))
        self.centers = np.array(centers, np.float64)
        self._count()

    def _allocate(self) -> None:
        """Room for the assignment of each member, laid out like its weights."""
        for name, parameter in self.members.items():
            self.assignments[name] = torch.zeros_like(parameter, dtype=self._index_dtype)
        self._ready = None

    @property
    def _index_dtype(self) -> torch.dtype:
        narrow = assignment_dtype(self.num_clusters) == np.uint8
        return torch.uint8 if narrow else torch.int32

    def _count(self) -> None:
        zeros = np.zeros(len(self._centers), np.int64)
        self.counts = sum((counts for _, counts in self.tensor_counts()), zeros)

    def _pieces(self, *names: str) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Weights, as float32 or float64, and assignments of members, a million at a time."""
        self.follow(*names)
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        for name in names or self.members:
            weights = ops.flat(self.members[name])
            # Before the start there is no assignment; nobody looks at this one then.
            held = self.assignments[name] if self.assignments else weights
            for begin in range(0, weights.numel(), PIECE):
                part = slice(begin, begin + PIECE)
                piece = weights[part].to(wide).cpu().numpy()
                if not np.all(np.isfinite(piece)):
                    raise DivergedError(
                        f"weights of {name!r} are not finite, so they cannot be clustered; lower "
                        "the rate or the strengths, or start from a sound checkpoint"
                    )
                yield piece, ops.flat(held)[part]

    def _gather(self) -> np.ndarray:
        """A copy of all weights in one row."""
        return np.concatenate([piece for piece, _ in self._pieces()])

    def _gather_assignment(self) -> np.ndarray:
        return np.concatenate([ops.flat(self.assignment(n)).cpu().numpy() for n in self.members])

    def follow(self, *names: str) -> None:
        """Notice members (all, or these) that lie elsewhere now; refuse what cannot be followed.

        A member may be moved, converted with all others, or laid out anew; its assignment then
        goes along. This is the one place that looks, and whatever reads or writes the memory of a
        member comes by here first.
        """
        for name in names or self.members:
            parameter = self.members[name]
            layout = ops.layout(parameter)
            if layout != self._layouts.get(name):
                self._check()
                if name in self.assignments:
                    self.assignments[name] = ops.like(self.assignments[name], parameter)
                self._layouts[name], self._ready = layout, None

    def _check(self) -> None:
        """Members keep their shapes, fill their memory, and have one type."""
        for name, parameter in self.members.items():
            shape = self._shapes[name]
            if parameter.shape != shape or not ops.fills_its_memory(parameter):
                raise TyingError(
                    f"{name!r} of shape {tuple(shape)} now has shape {tuple(parameter.shape)} and "
                    f"strides {tuple(parameter.stride())}; a tied parameter keeps its shape and "
                    "fills its memory: make the method after the last change of the model"
                )
            if parameter.dtype != self.dtype or not is_trainable(parameter.dtype):
                first = next(iter(self.members))
                raise TyingError(
                    f"{name!r} is now {parameter.dtype}, and {first!r}, which shares its values, "
                    f"{self.dtype}; convert the whole model, to a floating-point type of at least "
                    "16 bits, or before it is given to the method"
                )

    def _tensors(self) -> ops.Tensors:
        """The members as the loops want them, made anew when one of them has another layout."""
        self.follow()
        if self._ready is None:
            held = []
            for name, parameter in self.members.items():
                assignment = self.assignments[name]
                dead = None
                if self.zero_cluster is not None and self._zeros_stay:
                    dead = ops.dead_blocks(assignment, self.zero_cluster)
                held.append(ops.Held(parameter.detach(), assignment, dead))
            self._ready = ops.Tensors(held)
        return self._ready

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
