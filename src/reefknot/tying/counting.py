"""Counting weights in bins where they are, by torch alone: the twin of `histogram.InMemory`.

Takes     weights on any device, with their assignments.
Gives     the same counts and the same clusters, bit for bit; only counts leave the device.
Unaware   of groups and of k-means.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reefknot.kernels.histogram import OFFSET_BITS, Bins
from reefknot.tying.ops import Held, flat, largest

_PIECE = 1 << 20  # weights whose bins are computed at a time


class OnDevice:
    """Weights on one device. Those of the cluster `without` are left out.

    When clusters are spread they get the number after the last one.
    """

    def __init__(self, held: Sequence[Held], without: int | None = None) -> None:
        self.held, self.without = held, without
        self.device = held[0].weights.device
        self.wide = torch.promote_types(held[0].weights.dtype, torch.float32)
        self.dtype = np.dtype(np.float64 if self.wide == torch.float64 else np.float32)

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Weights, their assignment, and which of them are left out."""
        for weights, assignment, _ in self.held:
            parts = zip(flat(weights).split(_PIECE), flat(assignment).split(_PIECE), strict=True)
            for values, clusters in parts:
                out = None if self.without is None else clusters == self.without
                yield values.to(self.wide), clusters, out

    def largest(self) -> float:
        """The largest magnitude; those that are left out are zero."""
        return largest([values for values, _, _ in self._pieces()])

    def cells(self, bins: Bins) -> NDArray[np.int64]:
        """For each bin how many weights are in it, and the sum of their places inside it."""
        found = torch.zeros(2, 2 * bins.half + 1, dtype=torch.int64, device=self.device)
        for values, _, out in self._pieces():
            keys, inside = _keys(values, bins)
            if out is not None:
                keys.masked_fill_(out, 2 * bins.half)
            found[0].index_add_(0, keys, torch.ones_like(keys))
            found[1].index_add_(0, keys, inside)
        return np.ascontiguousarray(found.cpu().numpy()[:, :-1].T)

    def spread(self, bins: Bins, table: NDArray) -> int:
        """Write the cluster of each weight, given that of each bin; gives how many changed."""
        of_bin = torch.from_numpy(table).to(self.device)
        last = int(table.max()) + 1
        changed = torch.zeros(1, dtype=torch.int64, device=self.device)
        for values, clusters, out in self._pieces():
            new, before = of_bin[_keys(values, bins)[0]].to(clusters.dtype), clusters.int()
            if out is not None and self.without is not None:
                before = before - (before > self.without).int()
                new = new.masked_fill(out, last)
                before.masked_fill_(out, last)
            changed += (before != new.int()).sum()
            clusters.copy_(new)
        return int(changed.cpu().numpy()[0])


def renumber_(held: Sequence[Held], table: NDArray) -> None:
    """Give clusters other numbers."""
    for _, assignment, _ in held:
        numbers = torch.from_numpy(table).to(assignment.device).to(assignment.dtype)
        for clusters in flat(assignment).split(_PIECE):
            clusters.copy_(numbers[clusters.long()])


def _keys(values: Tensor, bins: Bins) -> tuple[Tensor, Tensor]:
    """The bin of each number, and its place inside it."""
    double = bins.dtype.itemsize == 8
    bits = values.contiguous().view(torch.int64 if double else torch.int32).long()
    magnitude = (bits & ((1 << (63 if double else 31)) - 1)) >> bins.shift
    magnitude = (magnitude - bins.lowest).clamp_(0, bins.half - 1)
    positive = (bits >= 0) | (magnitude == 0)
    keys = torch.where(positive, bins.half + magnitude, bins.half - 1 - magnitude)
    inside = (bits & ((1 << bins.shift) - 1)) >> max(bins.shift - OFFSET_BITS, 0)
    return keys, inside
