"""The operations on latent weights: compiled loops on the CPU, torch everywhere else.

Takes     the latent weights of a group, one vector for all members, and their places in each.
Gives     latent weights copied into the model with their pull, or taken from it; a cluster for
          each; tied values in the model.
Unaware   of phases, of prices and of when what happens.

Both implementations choose the same clusters, bit for bit.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reefknot.kernels import latent as loops
from reefknot.kernels.latent import LatentRow
from reefknot.kernels.work import ASSIGNMENT, WEIGHTS, Work
from reefknot.tying import ops
from reefknot.tying.ops import Tensors

_CHUNK = 1 << 20  # latent weights that get a cluster at once


class Latent(NamedTuple):
    """Vectors over all latent weights, member after member; for each member its places."""

    weights: Tensor
    clusters: Tensor
    bits: Tensor  # what a non-zero costs at each place, without its value
    places: list[Tensor]  # in memory order

    def split(self, row: Tensor) -> tuple[Tensor, ...]:
        """One part of a vector for each member."""
        return row.split([len(places) for places in self.places])


class Values(NamedTuple):
    """What a weight may choose from: values, their prices, and the intervals of the cheapest."""

    values: NDArray[np.float64]  # ascending
    prices: NDArray[np.float64]
    edges: NDArray[np.float64]  # between the intervals, one fewer
    clusters: NDArray[np.int64]


def latent_ops(latent: Latent, members: Tensors) -> "InTorch":
    """The operations for these latent weights of these members."""
    reached = all(members.reached) and latent.bits.dtype == latent.weights.dtype
    return Compiled(latent) if reached else InTorch(latent)


class InTorch:
    """The operations by torch, on the weights' own device."""

    def __init__(self, latent: Latent) -> None:
        self.latent = latent

    def put(
        self,
        members: Tensors,
        grads: Sequence[Tensor | None],
        centers: NDArray[np.float64],
        strength: float,
    ) -> None:
        """Copy the latent weights to their places; add strength·(w − own center) to gradients."""
        latent = self.latent
        pull = self._values(centers)
        torch.sub(latent.weights, pull, out=pull).mul_(strength)
        rows = zip(latent.places, latent.split(latent.weights), latent.split(pull), strict=True)
        for weights, grad, (places, own, part) in zip(
            members.flat_weights, grads, rows, strict=True
        ):
            weights.index_copy_(0, places, own)
            if grad is not None:
                ops.flat(grad).index_add_(0, places, part)

    def take(self, members: Tensors) -> None:
        """Copy the latent weights from their places."""
        parts = self.latent.split(self.latent.weights)
        for weights, places, own in zip(
            members.flat_weights, self.latent.places, parts, strict=True
        ):
            torch.index_select(weights, 0, places, out=own)

    def choose(
        self, values: Values, price: float, zero: int | None, num_clusters: int
    ) -> NDArray[np.int64]:
        """Give each latent weight its cluster; gives the counts of the clusters here."""
        weights, clusters, bits, _ = self.latent
        wide, device = bits.dtype, weights.device
        numbers = np.concatenate([values.edges, values.values, values.prices])
        sizes = [len(values.edges), len(values.values), len(values.prices)]
        edges, centers, prices = torch.from_numpy(numbers).to(wide).to(device).split(sizes)
        names = torch.from_numpy(values.clusters).to(clusters.dtype).to(device)
        for begin in range(0, len(weights), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            w = weights[part].to(wide)
            interval = torch.bucketize(w, edges, out_int32=True)
            found = names.index_select(0, interval)
            if zero is not None:
                cost = centers.index_select(0, interval).sub_(w).square_()
                cost += prices.index_select(0, interval)
                cost += bits[part] * price
                found.masked_fill_(cost >= w.square(), zero)
            clusters[part] = found
        return ops.cluster_counts([clusters], num_clusters)[0]

    def tie(self, members: Tensors, centers: NDArray[np.float64]) -> None:
        """Set all weights to zero, but those at the places to their centers; and assign these."""
        torch._foreach_zero_(members.flat_weights)
        parts = self.latent.split(self._values(centers))
        clusters = self.latent.split(self.latent.clusters)
        for n, places in enumerate(self.latent.places):
            members.flat_weights[n].index_copy_(0, places, parts[n])
            members.flat_assignments[n].index_copy_(0, places, clusters[n])

    def _values(self, centers: NDArray[np.float64]) -> Tensor:
        """The center of each latent weight, in the weights' dtype."""
        weights = self.latent.weights
        table = torch.from_numpy(centers).to(weights.dtype).to(weights.device)
        return table.index_select(0, self.latent.clusters.int())


class Compiled(InTorch):
    """Operations on latent weights by compiled loops, for weights that they can reach."""

    def __init__(self, latent: Latent) -> None:
        super().__init__(latent)
        vectors = zip(*map(latent.split, latent[:3]), strict=True)
        self._work = Work(
            [
                LatentRow(len(p), 0, 0, 0, p.data_ptr(), *(part.data_ptr() for part in parts))
                for p, parts in zip(latent.places, vectors, strict=True)
            ]
        )

    def put(
        self,
        members: Tensors,
        grads: Sequence[Tensor | None],
        centers: NDArray[np.float64],
        strength: float,
    ) -> None:
        """See `InTorch`."""
        self._follow(members)
        self._work.table[:, loops.GRAD] = [0 if grad is None else grad.data_ptr() for grad in grads]
        real, index = members.types
        self._run(loops.put(real, index), strength, centers=centers.astype(real))

    def take(self, members: Tensors) -> None:
        """See `InTorch`."""
        self._follow(members)
        self._run(loops.take(members.types[0]))

    def choose(
        self, values: Values, price: float, zero: int | None, num_clusters: int
    ) -> NDArray[np.int64]:
        """See `InTorch`."""
        real, index = ops.types_of(self.latent.weights, self.latent.clusters)
        edges = np.append(values.edges, np.inf)
        table = np.concatenate([values.values, values.prices, edges, values.clusters])
        counts = np.zeros(num_clusters, np.int64)
        numbers = (price, len(values.values), -1 if zero is None else zero)
        self._run(loops.choose(real, index), *numbers, centers=table.astype(real), sums=counts)
        return counts

    def tie(self, members: Tensors, centers: NDArray[np.float64]) -> None:
        """See `InTorch`."""
        self._follow(members)
        torch._foreach_zero_(members.flat_weights)
        real, index = members.types
        self._run(loops.tie(real, index), centers=centers.astype(real))

    def _follow(self, members: Tensors) -> None:
        """Take the current addresses of weights and assignments."""
        self._work.table[:, loops.WEIGHTS] = members.work.table[:, WEIGHTS]
        self._work.table[:, loops.ASSIGNMENT] = members.work.table[:, ASSIGNMENT]

    def _run(self, loop: object, *numbers: float, **arrays: NDArray) -> None:
        self._work.run(loop, numbers, torch.get_num_threads(), **arrays)
