"""Tied values in front, free weights behind: the model runs on those, the optimizer moves these.

Takes     a group whose zeros are fixed.
Gives     weights that are tied whenever the model runs, and may still change their clusters.
Paper     a step between sections 3.1 and 3.2, ours; gradients go straight through the tying
          (Bengio, Léonard and Courville 2013).
Unaware   of optimizers, of step counts, and of which method calls it.

A weight goes to the value with the least (distance² + price · bits), zero included: bits are what
the value costs in the file, and the place of a non-zero. So frequent values become more frequent,
and a weight that is not worth its bits becomes zero, until its gradient asks for it again. What was
fixed at zero before stays there, and a cluster that runs empty keeps its center.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from reefknot.errors import DivergedError
from reefknot.tying import ops
from reefknot.tying.cost import VALUE_BITS, nonzero_bits
from reefknot.tying.group import Group
from reefknot.tying.saved import saved_tensor

_KINDS = ("alive", "free", "bits")  # what is saved of each member


class FreeWeights:
    """The free weights behind a group's tied ones; those that are fixed at zero have none."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.zero = group.zero_cluster  # None: there is no such cluster
        # Of each member, in the order of memory: where its free weights are, the weights, and the
        # bits of a non-zero there; and the layout in which that order is meant.
        self._places: dict[str, Tensor] = {}
        self.weights: dict[str, Tensor] = {}
        self._bits: dict[str, Tensor] = {}
        self._strides: dict[str, tuple[int, ...]] = {}
        group.release_zeros()
        for name, parameter in group.members.items():
            self._lay_out(name, group.alive(name), parameter, parameter)
        self.weigh()

    def weigh(self) -> None:
        """Renew what a non-zero costs in each place; which others are zero decides it."""
        for name, parameter in self._members():
            bits = nonzero_bits(self.group.alive(name)) - VALUE_BITS
            self._bits[name] = ops.flat(ops.like(bits, parameter))[self._places[name]]

    def put(self) -> None:
        """Before an optimizer step: the free weights take their places in the model."""
        for name, parameter in self._members():
            ops.flat(parameter).index_copy_(0, self._places[name], self.weights[name])

    def take(self) -> None:
        """After an optimizer step: keep what it has made of them."""
        for name, parameter in self._members():
            self.weights[name] = ops.flat(parameter)[self._places[name]]

    def tie(self, price: float) -> None:
        """Each weight to the value that suits it, each value to the mean of its weights."""
        assigned = {
            name: ops.flat(self.group.assignment(name))[self._places[name]]
            for name, _ in self._members()
        }
        before, weights = _row(assigned), _row(self.weights).astype(np.float64)
        if not np.all(np.isfinite(weights)):
            raise DivergedError(
                f"weights of group {self.group.name!r} are not finite, so they cannot be tied; "
                "lower the rate or the strengths, or start from a sound checkpoint"
            )
        centers = self.group.centers
        value_price = price * value_bits(before, len(centers), self.zero)
        clusters = cheapest(weights, centers, self.zero, value_price, price * _row(self._bits))
        counts = np.bincount(clusters, minlength=len(centers))
        sums = np.bincount(clusters, weights, minlength=len(centers))
        centers = np.where(counts > 0, sums / np.maximum(counts, 1), centers)
        if self.zero is not None:
            centers[self.zero] = 0.0
        ends = np.cumsum([len(places) for places in self._places.values()])
        parts = map(torch.from_numpy, np.split(clusters, ends[:-1]))
        moved = zip(self._places.values(), parts, strict=True)
        self.group.tie_given(centers, dict(zip(self._places, moved, strict=True)))

    # -- layout and saving ------------------------------------------------------------------

    def _members(self) -> Iterator[tuple[str, Tensor]]:
        """The members, after a look at whether one was moved, converted or laid out anew."""
        for name, parameter in self.group.members.items():
            held = self.weights[name]
            if (held.device, held.dtype) != (parameter.device, parameter.dtype) or (
                self._strides[name] != parameter.stride()
            ):
                self._lay_out(name, *self._full(name))
            yield name, parameter

    def _lay_out(self, name: str, alive: Tensor, weights: Tensor, bits: Tensor) -> None:
        """Take these over, all of the member's shape, in the order of its memory."""
        parameter = self.group.members[name]
        places = ops.flat(ops.like(alive, parameter)).nonzero().flatten()
        self._places[name], self._strides[name] = places, parameter.stride()
        self.weights[name] = ops.flat(ops.like(weights, parameter))[places].to(parameter.dtype)
        self._bits[name] = ops.flat(ops.like(bits, parameter))[places]

    def _full(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """The opposite: where there are free weights, the weights and the bits, zero elsewhere."""
        rows = (
            torch.ones_like(self._places[name], dtype=torch.bool),
            self.weights[name],
            self._bits[name],
        )
        shape, strides = self.group.members[name].shape, self._strides[name]
        full = [torch.empty_strided(shape, strides, dtype=r.dtype, device=r.device) for r in rows]
        for tensor, row in zip(full, rows, strict=True):
            ops.flat(tensor.zero_())[self._places[name]] = row
        return full[0], full[1], full[2]

    def state_dict(self) -> dict[str, Tensor]:
        """Where there are free weights, what they are, and what a non-zero costs there."""
        return {
            f"{kind}.{name}": full
            for name in self.group.members
            for kind, full in zip(_KINDS, self._full(name), strict=True)
        }

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Take up where `state_dict` was called; the group has its own state already."""
        for name, parameter in self.group.members.items():
            types = (torch.bool, parameter.dtype, torch.float32)
            alive, weights, bits = (
                saved_tensor(state, f"{kind}.{name}", dtype=dtype, shape=parameter.shape)
                for kind, dtype in zip(_KINDS, types, strict=True)
            )
            self._lay_out(name, alive, weights, bits)


def _row(parts: Mapping[str, Tensor]) -> np.ndarray:
    """All members in one row."""
    return np.concatenate(
        [(p.double() if p.is_floating_point() else p).cpu().numpy() for p in parts.values()]
    )


def value_bits(clusters: np.ndarray, num_clusters: int, zero: int | None) -> np.ndarray:
    """The bits of each value among the non-zero ones, by how often it occurs; 0 for zero."""
    counts = np.bincount(clusters, minlength=num_clusters) + 0.5  # an empty cluster may come back
    if zero is not None:
        counts[zero] = 0.0
    counts /= max(counts.sum(), 0.5)  # zero may be the only value
    if zero is not None:
        counts[zero] = 1.0
    return -np.log2(counts)


def cheapest(
    weights: np.ndarray,
    centers: np.ndarray,
    zero: int | None,
    value_price: np.ndarray,
    place_price: np.ndarray,
) -> np.ndarray:
    """The cluster of each weight: the least distance² + price, where a zero costs nothing."""
    best, clusters = np.square(weights), np.full(len(weights), zero or 0)
    if zero is None:
        best[:] = np.inf
    for k, center in enumerate(centers):
        if k != zero:
            cost = np.square(weights - center) + value_price[k] + place_price
            cheaper = cost < best
            best[cheaper], clusters[cheaper] = cost[cheaper], k
    return clusters
