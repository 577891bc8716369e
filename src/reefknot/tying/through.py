"""Tied values in front, free weights behind: the model runs on those, the optimizer moves these.

Takes     a group whose zeros are fixed.
Gives     weights that are tied whenever the model runs, and may still change their clusters.
Paper     a step between sections 3.1 and 3.2, ours; gradients go straight through the tying
          (Bengio, Léonard and Courville 2013).
Unaware   of optimizers, of step counts, and of which method calls it.

A weight goes to the value with the least (distance² + price · bits), zero included: bits are what
the value costs in the file, and the place of a non-zero. So frequent values become more frequent,
and a weight that is not worth its bits becomes zero, until its gradient asks for it again.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from reefknot.errors import TyingError
from reefknot.tying import ops
from reefknot.tying.cost import VALUE_BITS, nonzero_bits
from reefknot.tying.group import Group


class FreeWeights:
    """The free weights behind a group's tied ones; those that are fixed at zero have none."""

    def __init__(self, group: Group) -> None:
        assert group.zero_cluster is not None
        self.group = group
        self.zero = group.zero_cluster
        self.places: dict[str, Tensor] = {}  # in the order of memory
        self.weights: dict[str, Tensor] = {}
        for name, parameter in group.members.items():
            alive = ops.flat(group.assignment(name)) != self.zero
            self.places[name] = alive.nonzero().flatten()
            self.weights[name] = ops.flat(parameter)[self.places[name]]
        self.weigh()

    def weigh(self) -> None:
        """Renew what a non-zero costs in each place; which others are zero decides it."""
        self._place_bits = np.zeros(0)
        for name, parameter in self.group.members.items():
            bits = nonzero_bits(self.group.assignment(name) != self.zero) - VALUE_BITS
            here = ops.flat(ops.like(bits, parameter))[self._at(name)]
            self._place_bits = np.append(self._place_bits, here.double().cpu().numpy())

    def put(self) -> None:
        """Before an optimizer step: the free weights take their places in the model."""
        for name, parameter in self.group.members.items():
            free = self.weights[name].to(parameter.device)
            ops.flat(parameter).index_copy_(0, self._at(name), free)

    def take(self) -> None:
        """After an optimizer step: keep what it has made of them."""
        for name, parameter in self.group.members.items():
            self.weights[name] = ops.flat(parameter)[self._at(name)]

    def tie(self, price: float) -> None:
        """Each weight to the value that suits it, each value to the mean of its weights."""
        before = self._gather(
            {n: ops.flat(self.group.assignment(n))[self._at(n)] for n in self.places}
        )
        weights = self._gather(self.weights).astype(np.float64)
        centers = self.group.centers
        clusters = cheapest(
            weights,
            centers,
            self.zero,
            price * value_bits(before, len(centers), self.zero),
            price * self._place_bits,
        )
        counts = np.bincount(clusters, minlength=len(centers))
        sums = np.bincount(clusters, weights, minlength=len(centers))
        centers = np.where(counts > 0, sums / np.maximum(counts, 1), centers)
        centers[self.zero] = 0.0
        begin, assigned = 0, {}
        for name, places in self.places.items():
            assigned[name] = places, torch.from_numpy(clusters[begin : begin + len(places)])
            begin += len(places)
        self.group.tie_given(centers, assigned)

    def _at(self, name: str) -> Tensor:
        self.places[name] = self.places[name].to(self.group.members[name].device)
        return self.places[name]

    def _gather(self, parts: Mapping[str, Tensor]) -> np.ndarray:
        """All in one row, members in turn."""
        wide = (p.double() if p.is_floating_point() else p for p in parts.values())
        return np.concatenate([part.cpu().numpy() for part in wide])

    # -- saving -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Where there are free weights, and what they are."""
        return {f"place.{n}": p.clone() for n, p in self.places.items()} | {
            f"free.{n}": w.clone() for n, w in self.weights.items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Take up where `state_dict` was called; the group has its own state already."""
        for name, parameter in self.group.members.items():
            places, weights = state[f"place.{name}"], state[f"free.{name}"]
            assert isinstance(places, Tensor) and isinstance(weights, Tensor)
            if len(places) != len(weights) or (
                len(places) and int(places.max()) >= parameter.numel()
            ):
                raise TyingError(f"the saved free weights of {name!r} are of another model")
            self.places[name] = places.to(parameter.device)
            self.weights[name] = weights.to(parameter.device, parameter.dtype)
        self.weigh()


def value_bits(clusters: np.ndarray, num_clusters: int, zero: int) -> np.ndarray:
    """The bits of each value among the non-zero ones, by how often it occurs; 0 for zero."""
    counts = np.bincount(clusters, minlength=num_clusters) + 0.5  # an empty cluster may come back
    counts[zero] = 0.0
    counts /= counts.sum()
    counts[zero] = 1.0
    return -np.log2(counts)


def cheapest(
    weights: np.ndarray,
    centers: np.ndarray,
    zero: int,
    value_price: np.ndarray,
    place_price: np.ndarray,
) -> np.ndarray:
    """The cluster of each weight: the least distance² + price, where a zero costs nothing."""
    best, clusters = np.square(weights), np.full(len(weights), zero)
    for k, center in enumerate(centers):
        if k != zero:
            cost = np.square(weights - center) + value_price[k] + place_price
            cheaper = cost < best
            best[cheaper], clusters[cheaper] = cost[cheaper], k
    return clusters
