"""Tensors that share one codebook: their memory, and which cluster each weight is in.

Takes     named parameters and how many values they may share.
Gives     centers (mu), assignment (C) and counts, which follow the parameters when these are moved;
          statistics of the clusters; and their saved state.
Paper     section 3.1, equation 1.
Unaware   of how weights come to their centers, of optimizers and of methods.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from reefknot.errors import DivergedError, TyingError
from reefknot.kernels import assignment_dtype
from reefknot.kernels.kmeans1d import Distance
from reefknot.tying import ops
from reefknot.tying.collectives import as_divided, local, part_of, peers_of
from reefknot.tying.cost import nonzero_bits
from reefknot.tying.saved import saved_count, saved_tensor
from reefknot.tying.selection import Named, is_trainable

PIECE = 1 << 20


class Clusters:
    """Parameters, their K centers (ascending until hard tying, float64) and their assignment.

    The assignment of a parameter has its shape and memory layout. A group that is not `sparse` has
    no zero cluster. A member that is sharded over several processes (`peers`) has only its part
    here; centers and counts are those of all parts.
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
        self.members: dict[str, Tensor] = dict(members)
        self.peers = peers_of(self.members.items())
        self.num_clusters = num_clusters  # may change if `most_clusters` is given, up to that
        self.most_clusters = most_clusters or num_clusters
        self._may_change = most_clusters is not None
        self.distance: Distance = distance
        self.sparse = sparse
        self._centers = np.zeros(0)
        self._stale = False  # whether the centers must be computed again
        self._ready: ops.Tensors | None = None  # see `tensors`
        self._shapes = {name: self.here(name).shape for name in self.members}
        self._layouts: dict[str, ops.Layout] = {}  # as last seen; see `follow`
        self._counts: np.ndarray | None = np.zeros(0, np.int64)  # None: must be counted again
        self.zero_cluster: int | None = None
        self._zeros_stay = True  # blocks of zeros can be skipped
        self.assignments: dict[str, Tensor] = {}

    @property
    def num_weights(self) -> int:
        """The number of elements of all members, in all processes."""
        return sum(parameter.numel() for parameter in self.members.values())

    def here(self, name: str) -> Tensor:
        """A member, or that part of it which this process has."""
        return local(self.members[name])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all members."""
        return next(iter(self.members.values())).dtype

    def weights(self) -> np.ndarray:
        """A copy of all weights here, member after member."""
        return self._gather()

    def magnitudes(self) -> np.ndarray:
        """|w| of all weights here, member after member."""
        return np.abs(self._gather())

    def follow(self, *names: str) -> None:
        """Notice members (all, or these) with another memory layout; refuse what is not supported.

        A member may be moved, converted together with all others, or given other strides; its
        assignment is moved along. Everything that reads or writes the memory of a member calls this
        first.
        """
        for name in names or self.members:
            parameter = self.here(name)
            layout = ops.layout(parameter)
            if layout != self._layouts.get(name):
                self._check()
                if name in self.assignments:
                    self.assignments[name] = ops.like(self.assignments[name], parameter)
                self._layouts[name], self._ready = layout, None

    def _check(self) -> None:
        """Check that members keep their shapes, are dense in memory, and have one dtype."""
        for name in self.members:
            parameter, shape = self.here(name), self._shapes[name]
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

    def _gather(self) -> np.ndarray:
        """A copy of all weights here as one vector."""
        wide = np.float64 if self.dtype == torch.float64 else np.float32
        return np.concatenate([np.zeros(0, wide), *(piece for piece, _ in self._pieces())])

    @property
    def centers(self) -> np.ndarray:
        """The K shared values: means (or medians) of their clusters."""
        if self._stale:
            self._stale = False
            if self.distance == "l1":
                self._centers = self._medians()
            else:
                self._centers = ops.cluster_means(self.tensors(), self._centers, self.counts)
        return self._centers

    @centers.setter
    def centers(self, centers: np.ndarray) -> None:
        self._centers, self._stale = centers, False

    @property
    def counts(self) -> np.ndarray:
        """How many weights each cluster has."""
        if self._counts is None:
            self._counts = self.peers.total(self._counted(self.members).sum(0))
        return self._counts

    def clusters(self) -> np.ndarray:
        """The cluster of each weight here, member after member."""
        return self._gather_assignment()

    def give_clusters(self, clusters: np.ndarray) -> None:
        """Set the cluster of each weight here, member after member; centers and weights stay."""
        self._set(self.centers, clusters)

    def assignment(self, name: str) -> Tensor:
        """A member's assignment, in its memory layout."""
        self.follow(name)
        return self.assignments[name]

    def alive(self, name: str) -> Tensor:
        """A mask: where a member is not in the zero cluster."""
        assignment = self.assignment(name)
        if self.zero_cluster is None:
            return torch.ones_like(assignment, dtype=torch.bool)
        return assignment != self.zero_cluster

    def smallest_center(self) -> int:
        """The zero cluster, or the one that would become it: the smallest non-empty one."""
        if self.zero_cluster is not None:
            return self.zero_cluster
        magnitude = np.where(self.counts > 0, np.abs(self.centers), np.inf)
        return int(np.argmin(magnitude))

    def tensor_counts(self) -> Iterator[tuple[str, np.ndarray]]:
        """How many elements of each member are in each cluster."""
        counts = self.peers.total(self._counted(self.members))
        yield from zip(self.members, counts, strict=True)

    def _counted(self, names: Iterable[str]) -> np.ndarray:
        """The same for what is here of some members."""
        held = [self.assignment(name) for name in names]
        return ops.cluster_counts(held, len(self._centers))

    def deviations(self) -> tuple[np.ndarray, np.ndarray]:
        """The sums of |w - own center| and of its square in each cluster."""
        absolute, square = np.zeros((2, len(self.centers)))
        for piece, assignment in self._pieces():
            index = assignment.cpu().numpy()
            away = np.abs(piece.astype(np.float64) - self.centers[index])
            absolute += np.bincount(index, away, minlength=len(absolute))
            square += np.bincount(index, away * away, minlength=len(square))
        return self.peers.sum_of(absolute), self.peers.sum_of(square)

    def spreads(self) -> np.ndarray:
        """The root mean square of (w - own center) in each cluster."""
        _, square = self.deviations()
        return np.sqrt(square / np.maximum(self.counts, 1))

    def untied(self) -> Iterator[str]:
        """The names of members with a weight that does not equal its center."""
        untied = [
            sum(
                np.count_nonzero(piece != self.centers[assignment.cpu().numpy()])
                for piece, assignment in self._pieces(name)
            )
            for name in self.members
        ]
        for name, count in zip(self.members, self.peers.total(np.array(untied)), strict=True):
            if count:
                yield name

    def worth_of_bits(self) -> np.ndarray:
        """The square of each non-zero weight per bit that it costs in the file; inf at zeros.

        Of the weights here, member after member.
        """
        rows = []
        for name in self.members:
            assignment = self.assignment(name)
            alive = assignment != self.smallest_center()
            full = nonzero_bits(alive, self.members[name], self.peers)
            bits = ops.flat(ops.like(full, assignment)).double().cpu().numpy()
            square = np.square(self.centers)[ops.flat(assignment).cpu().numpy()]
            rows.append(np.where(ops.flat(alive).cpu().numpy(), square / bits, np.inf))
        return np.concatenate(rows)

    def state_dict(self) -> dict[str, Tensor | int]:
        """Centers, the zero cluster (-1: none) and every member's assignment."""
        state: dict[str, Tensor | int] = {
            "centers": torch.from_numpy(self.centers.copy()),
            "zero_cluster": -1 if self.zero_cluster is None else self.zero_cluster,
        }
        for name, assignment in self.assignments.items():
            state[f"assignment.{name}"] = as_divided(assignment.clone(), self.members[name])
        return state

    def forget(self) -> None:
        """Drop all clusters, as before the start."""
        self.assignments, self.zero_cluster = {}, None
        self._zeros_stay, self._ready = True, None

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
            saved = saved_tensor(state, key, dtype=self._index_dtype, shape=parameter.shape)
            saved = part_of(saved, parameter)
            if saved.numel() and not 0 <= int(saved.min()) <= int(saved.max()) < len(centers):
                raise TyingError(
                    f"the saved assignment of {name!r} names clusters from {int(saved.min())} to "
                    f"{int(saved.max())}, but there are {len(centers):,}; was it damaged?"
                )
            here = self.here(name)
            assignments[name] = torch.empty_like(here, dtype=saved.dtype).copy_(saved)
        self.centers, self.assignments = centers.cpu().numpy().copy(), assignments
        if self._may_change:
            self.num_clusters = len(self.centers)
        self.zero_cluster = None if zero < 0 else zero
        self._zeros_stay, self._ready = True, None
        self._counts = None

    def require_zero_cluster(self) -> None:
        """Refuse a saved state without a zero cluster if its phase must have one."""
        if self.sparse and self.zero_cluster is None:
            raise TyingError(
                f"the saved state of group {self.name!r} has no zero cluster, and its zeros were "
                "fixed when it was saved; was it damaged?"
            )

    def _set(self, centers: np.ndarray, assignment: np.ndarray) -> None:
        """Set the centers, and the assignment of all members here from one vector."""
        self._allocate()
        begin = 0
        for name in self.members:
            held = ops.flat(self.assignments[name])
            part = assignment[begin : begin + held.numel()]
            begin += held.numel()
            held.copy_(torch.from_numpy(np.asarray(part)))
        self.centers = np.array(centers, np.float64)
        self._counts = None

    def _allocate(self) -> None:
        """Allocate the assignment of each member, in the memory layout of its weights."""
        for name in self.members:
            self.assignments[name] = torch.zeros_like(self.here(name), dtype=self._index_dtype)
        self._ready = None

    @property
    def _index_dtype(self) -> torch.dtype:
        narrow = assignment_dtype(self.most_clusters) == np.uint8
        return torch.uint8 if narrow else torch.int32

    def _pieces(self, *names: str) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Weights (as float32 or float64) and assignments of members, in chunks of a million.

        All processes must begin this together: a weight that is not finite is an error in all.
        """
        self.follow(*names)
        self._require_finite(names or tuple(self.members))
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        for name in names or self.members:
            weights = ops.flat(self.here(name))
            # Before the start there is no assignment; callers ignore this placeholder.
            held = self.assignments[name] if self.assignments else weights
            for begin in range(0, weights.numel(), PIECE):
                part = slice(begin, begin + PIECE)
                yield weights[part].to(wide).cpu().numpy(), ops.flat(held)[part]

    def _require_finite(self, names: Sequence[str]) -> None:
        """Raise in all processes if a weight of these members is not finite in any."""
        extents = np.array([ops.largest([self.here(name)]) for name in names])
        bad = self.peers.total((~np.isfinite(extents)).astype(np.int64))
        for name, count in zip(names, bad, strict=True):
            if count:
                raise DivergedError(
                    f"weights of {name!r} are not finite, so they cannot be clustered; lower "
                    "the learning rate or the strengths, or start from a sound checkpoint"
                )

    def _gather_assignment(self) -> np.ndarray:
        return np.concatenate([ops.flat(self.assignment(n)).cpu().numpy() for n in self.members])

    def tensors(self) -> ops.Tensors:
        """The members prepared for the compiled loops; prepared again if a layout changes."""
        self.follow()
        if self._ready is None:
            held = []
            for name in self.members:
                weights, assignment = self.here(name).detach(), self.assignments[name]
                dead = None
                if self.zero_cluster is not None and self._zeros_stay:
                    dead = ops.dead_blocks(weights, assignment, self.zero_cluster)
                held.append(ops.Held(weights, assignment, dead))
            self._ready = ops.Tensors(held, self.num_weights, self.peers)
        return self._ready

    def _as_held(self, centers: np.ndarray) -> np.ndarray:
        """The centers rounded to the weights' dtype, so that a cluster at rest does not drift."""
        if self.dtype == torch.float32:  # numpy is quicker than torch for so few numbers
            rounded = centers.astype(np.float32).astype(np.float64)
        else:
            rounded = torch.from_numpy(centers).to(self.dtype).double().numpy()
        return rounded + 0.0  # -0.0 becomes +0.0

    def _medians(self) -> np.ndarray:
        """The lower median of each cluster; an empty one keeps its center."""
        weights = self._gather()[np.argsort(self._gather_assignment(), kind="stable")]
        centers, end = self.centers.copy(), 0
        for k, count in enumerate(self.counts):
            begin, end = end, end + int(count)
            if count:
                middle = (int(count) - 1) // 2
                centers[k] = np.partition(weights[begin:end], middle)[middle]
        return centers
