"""Latent weights: what the optimizer moves while the model runs on tied values.

Takes     a group whose zeros are fixed.
Gives     weights that are tied whenever the model runs, and may still change their clusters.
Paper     ours, between sections 3.1 and 3.2; the straight-through estimator is that of Bengio,
          Léonard and Courville (2013).
Unaware   of optimizers, of step counts, and of which method calls it.

A latent weight is tied to the value with the least distance² + price · bits, zero included (a
rate–distortion trade-off). The bits are those of the value and, for a non-zero, of its position. So
frequent values become more frequent, and a weight that is not worth its bits becomes zero, until
its gradient moves it away again. Weights fixed at zero before have no latent weight; an empty
cluster keeps its center. Everything happens on the weights' own device.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from reefknot.kernels.intervals import cheapest
from reefknot.tying import ops
from reefknot.tying.collectives import as_dtensor, local_shard
from reefknot.tying.cost import VALUE_BITS, nonzero_bits
from reefknot.tying.counting import renumber_
from reefknot.tying.group import Group
from reefknot.tying.latent_ops import Latent, Values, latent_ops
from reefknot.tying.saved import saved_tensor

_KINDS = ("alive", "latent", "bits")  # what is saved of each member


class LatentWeights:
    """The latent weights behind a group's tied weights; fixed zeros have none.

    In a group without a zero cluster, every weight has one.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.zero = group.zero_cluster
        # For each member, the positions of its latent weights in memory order, and the layout that
        # defines this order. `weights`, `clusters` and `_place_bits` hold all members in turn.
        self._places: dict[str, Tensor] = {}
        self._layout: dict[str, _Layout] = {}
        self.counts: np.ndarray  # of each cluster, in all processes
        group.release_zeros()
        self._lay_out(
            {
                name: (group.alive(name), here, torch.zeros_like(here))
                for name, here in ((name, group.members.here(name)) for name in group.members)
            }
        )
        self.renew_place_bits()

    def renew_place_bits(self) -> None:
        """Estimate again what a non-zero costs in each position, given the current zeros."""
        self._follow_moves()
        if self.zero is None:
            return
        for (name, parameter), part in zip(
            self.group.members.items(), self._split(self._place_bits), strict=True
        ):
            members = self.group.members
            bits = nonzero_bits(self.group.alive(name), parameter, members.processes) - VALUE_BITS
            part.copy_(ops.flat(ops.like(bits, members.here(name)))[self._places[name]])

    def put(self, grads: Mapping[str, Tensor], tying_strength: float) -> None:
        """Before an optimizer step: copy the latent weights into the model.

        The gradient of their k-means penalty is added to the gradients of some members.
        """
        self._follow_moves()
        members = self.group.tensors()
        found = [grads.get(name) for name in self.group.members]
        alike = [
            grad if grad is None or ops.is_alike(grad, held.weights) else torch.zeros_like(held[0])
            for grad, held in zip(found, members.held, strict=True)
        ]
        self._ops.put(members, alike, self.group.centers, tying_strength)
        for grad, pull in zip(found, alike, strict=True):
            if grad is not None and pull is not None and pull is not grad:
                grad.add_(pull)

    def take(self) -> None:
        """After an optimizer step: copy the latent weights back from the model."""
        self._ops.take(self.group.tensors())

    def tie(self, price: float) -> None:
        """Assign each latent weight to a value, and set each value to the mean of its weights."""
        self._choose(price)
        centers = ops.cluster_means(self._ready, self.group.centers, self.counts)
        if self.zero is not None:
            centers[self.zero] = 0.0
        self.group.set_centers(self.group.members.rounded(centers), recount=True)
        self._ops.tie(self.group.tensors(), self.group.centers)

    def error(self) -> np.ndarray:
        """The squared distances to each value, summed; 0 for zero."""
        centers = torch.from_numpy(self.group.centers).to(self.weights)
        squares = (self.weights - centers[self.clusters.long()]).square().double()
        sums = torch.bincount(self.clusters.long(), squares, minlength=len(centers)).cpu().numpy()
        if self.zero is not None:
            sums[self.zero] = 0.0
        return self.group.members.processes.sum_of(sums)

    def split(self) -> None:
        """Make two values of the one with the largest error; weights choose when tied next."""
        error = self.error()
        old = int(error.argmax())
        away = np.sqrt(error[old] / max(int(self.counts[old]), 1))
        centers = np.insert(self.group.centers, old, self.group.centers[old] - away)
        centers[old + 1] += away
        table = np.arange(len(error)) + (np.arange(len(error)) > old)
        renumber_([*self._ready.held, *self.group.tensors().held], table)
        self.group.zero_cluster = self.zero = None if self.zero is None else int(table[self.zero])
        self.group.num_clusters = len(centers)
        self.group.set_centers(centers, recount=True)
        counts = np.insert(self.counts, old, self.counts[old] // 2)
        counts[old + 1] -= counts[old]
        self.counts = counts

    def _choose(self, price: float) -> None:
        """Choose the cluster of each weight: the least distance² + price · bits."""
        centers, values = self.group.centers, np.arange(len(self.group.centers))
        prices = price * value_bits(self.counts, self.zero)
        if self.zero is not None:
            values = np.delete(values, self.zero)  # it is compared with the best of the others
        if not len(values):
            return  # there is only zero
        found, edges = cheapest(centers[values], prices[values])
        values = values[found]
        offered = Values(centers[values], prices[values], edges, values)
        counts = self._ops.choose(offered, price, self.zero, len(centers))
        self.counts = self.group.members.processes.total(counts)

    def fixed_zeros(self) -> Iterator[tuple[str, Tensor]]:
        """A mask for each member: where it has no latent weights."""
        self._follow_moves()
        for name in self.group.members:
            yield name, ~self._full(name)[0]

    # -- layout and saving ------------------------------------------------------------------

    def _split(self, row: Tensor) -> tuple[Tensor, ...]:
        """Split a vector of all members into one part per member."""
        return row.split([len(places) for places in self._places.values()])

    def _follow_moves(self) -> None:
        """Rebuild everything if a member was moved, converted or given other strides."""
        members = self.group.members
        if any(self._layout[name] != _layout(self.group.members.here(name)) for name in members):
            self._lay_out({name: self._full(name) for name in members})

    def _lay_out(self, full: Mapping[str, tuple[Tensor, Tensor, Tensor]]) -> None:
        """Build from masks, weights and position bits, each in its member's shape."""
        rows: list[list[Tensor]] = [[], [], []]
        for name, (alive, weights, bits) in full.items():
            parameter = self.group.members.here(name)
            places = ops.flat(ops.like(alive, parameter)).nonzero().flatten()
            self._places[name], self._layout[name] = places, _layout(parameter)
            assignment = self.group.assignment(name)
            for row, tensor in zip(rows, (weights, bits, assignment), strict=True):
                row.append(ops.flat(ops.like(tensor.detach(), parameter))[places])
        dtype = self.group.members.dtype
        self.weights = torch.cat(rows[0]).to(dtype)
        self._place_bits = torch.cat(rows[1]).to(torch.promote_types(dtype, torch.float32))
        self.clusters = torch.cat(rows[2])
        held = [ops.Held(self.weights, self.clusters)]
        self._ready = ops.Tensors(
            held, self.group.members.num_weights, self.group.members.processes
        )
        vectors = (self.weights, self.clusters, self._place_bits)
        self._ops = latent_ops(Latent(*vectors, list(self._places.values())), self.group.tensors())
        counts = ops.cluster_counts([self.clusters], len(self.group.centers))[0]
        self.counts = self.group.members.processes.total(counts)

    def _full(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """The inverse of `_lay_out`: mask, weights and bits of a member; 0 elsewhere."""
        number = list(self._places).index(name)
        places, (device, _, stride) = self._places[name], self._layout[name]
        rows = (
            torch.ones_like(places, dtype=torch.bool),
            self._split(self.weights)[number],
            self._split(self._place_bits)[number],
        )
        shape = self.group.members.here(name).shape
        full = [torch.empty_strided(shape, stride, dtype=r.dtype, device=device) for r in rows]
        for tensor, row in zip(full, rows, strict=True):
            ops.flat(tensor.zero_())[places] = row
        return full[0], full[1], full[2]

    def state_dict(self) -> dict[str, Tensor]:
        """For each member: the mask of latent weights, the weights, and their position bits."""
        return {
            f"{kind}.{name}": as_dtensor(full, parameter)
            for name, parameter in self.group.members.items()
            for kind, full in zip(_KINDS, self._full(name), strict=True)
        }

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved; the group is restored before."""
        found: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        for name, parameter in self.group.members.items():
            types = (torch.bool, parameter.dtype, self._place_bits.dtype)
            alive, weights, bits = (
                local_shard(
                    saved_tensor(state, f"{kind}.{name}", dtype=dtype, shape=parameter.shape),
                    parameter,
                )
                for kind, dtype in zip(_KINDS, types, strict=True)
            )
            found[name] = alive, weights, bits
        self._lay_out(found)


_Layout = tuple[torch.device, torch.dtype, tuple[int, ...]]


def _layout(parameter: Tensor) -> _Layout:
    return parameter.device, parameter.dtype, parameter.stride()


def value_bits(counts: np.ndarray, zero: int | None) -> np.ndarray:
    """The bits of each value among the non-zero ones, from its frequency; 0 for zero."""
    share = counts + 0.5  # an empty cluster may get weights again
    if zero is not None:
        share[zero] = 0.0
    share /= max(share.sum(), 0.5)  # zero may be the only value
    if zero is not None:
        share[zero] = 1.0
    return -np.log2(share)
