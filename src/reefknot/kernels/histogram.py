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

from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from numba import carray  # type: ignore[attr-defined]
from numpy.typing import NDArray

from reefknot.kernels import assignment_dtype
from reefknot.kernels.jit import inlined
from reefknot.kernels.shared import add_to, array_at, available_threads, worker
from reefknot.kernels.work import (
    CENTERS,
    COUNTER,
    NUM_CENTERS,
    NUM_TENSORS,
    NUMBERS,
    SUMS,
    TABLE,
    TASK_SIZE,
    Row,
    Work,
    block_of,
    claim,
    first_place,
)

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
    """Numbers that lie in memory; their clusters go into the rows' assignments."""

    def __init__(self, work: Work, dtype: np.dtype, threads: int) -> None:
        self.work, self.dtype, self.threads = work, dtype, threads

    def largest(self) -> float:
        """The largest magnitude; see `Countable`."""
        found = np.zeros(max(self.threads, 1) + 1, np.int64)
        self.work.run(_extent(_real(self.dtype)), (0.0, 0.0), self.threads, sums=found)
        return float(found.max().astype(f"i{self.dtype.itemsize}").view(self.dtype))

    def cells(self, bins: Bins) -> NDArray[np.int64]:
        """Count the numbers of all rows."""
        cells = np.zeros((2 * bins.half, 2), np.int64)
        numbers = (bins.shift, bins.lowest, self.threads)
        self.work.run(_count(_real(bins.dtype)), numbers, self.threads, sums=cells.reshape(-1))
        return cells

    def spread(self, bins: Bins, table: NDArray) -> int:
        """Write the cluster of each number; see `Countable`."""
        index = np.uint8 if table.dtype == np.uint8 else np.int32
        loop = _assign(_real(bins.dtype), index)
        return self.work.run(loop, (bins.shift, bins.lowest), self.threads, centers=table)


def work_on(numbers: NDArray, assignment: NDArray | None = None) -> Work:
    """A `Work` on one contiguous array."""
    to = 0 if assignment is None else assignment.ctypes.data
    return Work([Row(numbers.size, numbers.ctypes.data, 0, to, 0)])


def _real(dtype: np.dtype) -> Any:
    return np.float32 if dtype == np.float32 else np.float64


def has_bins(dtype: np.dtype) -> bool:
    """Whether numbers of this type can be counted."""
    return dtype in _FRACTION_OF


def has_powers(dtype: np.dtype, largest: float) -> bool:
    """Whether all powers below a largest magnitude are normal numbers, and the next one finite."""
    limits = np.finfo(dtype)
    return float(limits.tiny) * 2.0**POWERS <= largest <= float(limits.max) / 2


def threads_for(elements: int) -> int:
    """How many threads pay off: one for few numbers, since starting another takes longer."""
    return available_threads() if elements >= 1 << 18 else 1


@inlined
def _key(bits: Any, mask: Any, shift: Any, lowest: Any, half: Any) -> Any:
    """The key of a number's bin, from its bits; `mask` removes the sign. Always below 2·half."""
    magnitude = min(max(((bits & mask) >> shift) - lowest, 0), half - 1)
    positive = bits >= 0 or magnitude == 0
    return half + magnitude if positive else half - 1 - magnitude


@cache
def _extent(real: Any) -> Any:
    whole = np.int32 if real is np.float32 else np.int64

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], 5), np.int64)
        found = array_at(task[SUMS], task[NUM_CENTERS], np.int64)
        mask = whole(np.iinfo(whole).max)
        largest = whole(0)
        place = first_place(task)
        while claim(task, table, place):
            bits = block_of(table, place, 1, whole)
            for n in range(bits.size):
                largest = max(largest, whole(bits[n] & mask))
        mine = add_to(task, COUNTER, 1)
        if mine < found.size:
            found[mine] = largest

    return work


@cache
def _count(real: Any) -> Any:
    """Count each number in its bin. The task's numbers are shift, lowest key, threads."""
    whole = np.int32 if real is np.float32 else np.int64

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], 5), np.int64)
        numbers = array_at(task[NUMBERS], 3, np.float64)
        shared = array_at(task[SUMS], task[NUM_CENTERS], np.int64)
        shift, lowest = np.int64(numbers[0]), np.int64(numbers[1])
        drop = np.int64(shift - OFFSET_BITS) if shift > OFFSET_BITS else np.int64(0)
        half = shared.size // 4
        mask = np.int64(np.iinfo(whole).max)
        inside = (np.int64(1) << shift) - 1
        alone = numbers[2] == 1
        cells = shared if alone else np.zeros(shared.size, np.int64)
        place = first_place(task)
        while claim(task, table, place):
            bits = block_of(table, place, 1, whole)
            for n in range(bits.size):
                number = np.int64(bits[n])
                key = _key(number, mask, shift, lowest, half)
                cells[2 * key] += 1
                cells[2 * key + 1] += (number & inside) >> drop
        if not alone:
            for key in range(shared.size):
                if cells[key]:
                    add_to(shared, key, cells[key])

    return work


@cache
def _assign(real: Any, index: Any) -> Any:
    """Assign each number to the cluster of its bin; `COUNTER` counts the changes."""
    whole = np.int32 if real is np.float32 else np.int64

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], 5), np.int64)
        numbers = array_at(task[NUMBERS], 2, np.float64)
        clusters = array_at(task[CENTERS], task[NUM_CENTERS], index)
        shift, lowest = np.int64(numbers[0]), np.int64(numbers[1])
        half = clusters.size // 2
        mask = np.int64(np.iinfo(whole).max)
        changed = np.int64(0)
        place = first_place(task)
        while claim(task, table, place):
            bits, a = block_of(table, place, 1, whole), block_of(table, place, 3, index)
            for n in range(bits.size):
                cluster = clusters[_key(np.int64(bits[n]), mask, shift, lowest, half)]
                changed += np.int64(a[n] != cluster)
                a[n] = cluster
        add_to(task, COUNTER, changed)

    return work
