"""Histograms with floating-point bins: narrow near zero, wide far from it.

Takes     finite float32 or float64 numbers, in one array or in many.
Gives     for each occupied bin, in ascending order, the count and the mean of its numbers; and
          the cluster of each number, given the cluster of each bin.
Unaware   of what the clusters are used for.

A bin is a sign, one of 21 exponents counted down from that of the largest magnitude, and some
leading bits of the fraction. With 10 of them it has about the resolution of float16, without its
limited range. Numbers below 2**-20 of the largest count as zero. Keys ascend as numbers do. There
are no bins if the exponents, or the edges of the bins, are outside the range of the type.

All sums are of integers (counts, and offsets inside bins). So they do not depend on the order of
summation or the number of threads, and histograms of parts can be added.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from reefknot.kernels import assignment_dtype
from reefknot.kernels.jit import compiled_for_each, inlined
from reefknot.kernels.threads import Part, share

POWERS = 21
OFFSET_BITS = 20  # of a number's offset inside its bin: int64 holds the sum of 2**43 of them
_FRACTION_OF = {np.dtype(np.float32): 23, np.dtype(np.float64): 52}


@dataclass(frozen=True)
class Bins:
    """The edges of the bins; histograms can be added if these are the same."""

    dtype: np.dtype
    largest: float  # magnitude
    fraction_bits: int

    @property
    def shift(self) -> int:
        """How many low bits of a number do not matter for its bin."""
        return _FRACTION_OF[self.dtype] - self.fraction_bits

    @property
    def lowest(self) -> int:
        """The raw key of the smallest exponent, which is subtracted so that keys start at 0."""
        bits = int(np.array(self.largest, self.dtype).view(f"i{self.dtype.itemsize}"))
        return max((bits >> self.shift >> self.fraction_bits) - POWERS + 1, 0) << self.fraction_bits

    @property
    def half(self) -> int:
        """The number of keys of one sign."""
        return POWERS << self.fraction_bits


class Histogram:
    """The count of each bin, and the sum of the offsets of its numbers."""

    def __init__(self, bins: Bins, cells: NDArray[np.int64]) -> None:
        self.bins = bins
        self.cells = cells  # a row for each key: count, sum of offsets
        self.keys = np.flatnonzero(cells[:, 0])
        self.counts = cells[self.keys, 0]
        self.means = self._means()

    def _means(self) -> NDArray[np.float64]:
        """The mean of each bin: `share` of the way from its lower edge to its upper one."""
        bins, whole = self.bins, f"i{self.bins.dtype.itemsize}"
        positive = self.keys >= bins.half
        magnitude = np.where(positive, self.keys - bins.half, bins.half - 1 - self.keys)
        raw = (magnitude + bins.lowest).astype(np.int64)
        low, high = (
            (edge << bins.shift).astype(whole).view(bins.dtype).astype(np.float64)
            for edge in (raw, raw + 1)
        )
        share = self.cells[self.keys, 1] / self.counts / 2.0 ** min(bins.shift, OFFSET_BITS)
        means = np.where(magnitude == 0, 0.0, low + (high - low) * share)
        return np.where(positive, means, -means)

    def table(self, clusters: NDArray, num_clusters: int) -> NDArray:
        """For each bin its cluster, from the cluster of each occupied one."""
        table = np.zeros(2 * self.bins.half, assignment_dtype(num_clusters))
        table[self.keys] = clusters
        return table


class Countable(Protocol):
    """Numbers, on any device, that can be counted there and assigned to clusters."""

    dtype: np.dtype

    def largest(self) -> float:
        """The largest magnitude; NaN or infinity if one is that, 0 if there are no numbers."""

    def cells(self, bins: Bins) -> NDArray[np.int64]:
        """For each bin how many numbers are in it, and the sum of their offsets inside it."""

    def spread(self, bins: Bins, table: NDArray) -> int:
        """Write the cluster of each number, given that of each bin; gives how many changed."""


class InMemory:
    """Numbers that lie in memory, in one array or in many; each has room for its clusters."""

    def __init__(self, arrays: Sequence[tuple[NDArray, NDArray | None]], threads: int) -> None:
        self.dtype = arrays[0][0].dtype
        self.values = [values for values, _ in arrays]
        self.clusters = [clusters for _, clusters in arrays]
        self.sizes, self.threads = [values.size for values in self.values], threads

    def largest(self) -> float:
        """The largest magnitude; see `Countable`."""

        def work(parts: Iterator[Part]) -> float:
            values = [self.values[n][part] for n, part in parts]
            return float(np.max([(-v.min(), v.max()) for v in values], initial=0.0))

        return float(np.max(share(work, self.sizes, self.threads)))

    def cells(self, bins: Bins) -> NDArray[np.int64]:
        """Count the numbers of all arrays."""

        def work(parts: Iterator[Part]) -> NDArray[np.int64]:
            cells = np.zeros((2 * bins.half, 2), np.int64)
            for n, part in parts:
                _count(bins.dtype)(self._bits(n, part), bins.shift, bins.lowest, cells)
            return cells

        first, *others = share(work, self.sizes, self.threads)
        return sum(others, first)

    def spread(self, bins: Bins, table: NDArray) -> int:
        """Write the cluster of each number; see `Countable`."""

        def work(parts: Iterator[Part]) -> int:
            loop, changed = _assign(bins.dtype, table.dtype), 0
            for n, part in parts:
                clusters = self.clusters[n]
                assert clusters is not None
                changed += loop(self._bits(n, part), clusters[part], bins.shift, bins.lowest, table)
            return changed

        return sum(share(work, self.sizes, self.threads))

    def _bits(self, number: int, part: slice) -> NDArray:
        return self.values[number][part].view(f"i{self.dtype.itemsize}")


def has_bins(dtype: np.dtype) -> bool:
    """Whether numbers of this type can be counted."""
    return dtype in _FRACTION_OF


def has_powers(dtype: np.dtype, largest: float) -> bool:
    """Whether all powers below a largest magnitude are normal numbers, and the next one finite."""
    limits = np.finfo(dtype)
    return float(limits.tiny) * 2.0**POWERS <= largest <= float(limits.max) / 2


@inlined
def _key(bits: Any, mask: Any, shift: Any, lowest: Any, half: Any) -> Any:
    """The key of a number's bin, from its bits; `mask` removes the sign. Always below 2·half."""
    magnitude = min(max(((bits & mask) >> shift) - lowest, 0), half - 1)
    positive = bits >= 0 or magnitude == 0
    return half + magnitude if positive else half - 1 - magnitude


@compiled_for_each("void({whole}[::1], int64, int64, int64[:, ::1])")
def _count(numbers: Any, shift: int, lowest: int, cells: Any) -> None:
    """Count each number in its bin, given their bits."""
    drop = np.int64(shift - OFFSET_BITS) if shift > OFFSET_BITS else np.int64(0)
    half = cells.shape[0] // 2
    mask = np.int64(np.iinfo(numbers.dtype).max)
    inside = (np.int64(1) << shift) - 1
    for n in range(numbers.size):
        number = np.int64(numbers[n])
        key = _key(number, mask, shift, lowest, half)
        cells[key, 0] += 1
        cells[key, 1] += (number & inside) >> drop


@compiled_for_each("int64({whole}[::1], {index}[::1], int64, int64, {index}[::1])")
def _assign(numbers: Any, assignment: Any, shift: int, lowest: int, clusters: Any) -> int:
    """Assign each number to the cluster of its bin, given their bits; gives how many changed."""
    half = clusters.size // 2
    mask = np.int64(np.iinfo(numbers.dtype).max)
    changed = 0
    for n in range(numbers.size):
        cluster = clusters[_key(np.int64(numbers[n]), mask, shift, lowest, half)]
        changed += int(assignment[n] != cluster)
        assignment[n] = cluster
    return changed
