"""Counting numbers in bins that are narrow near zero and wide far from it.

Takes     finite float32 or float64 numbers.
Gives     for each occupied bin, in ascending order, how many fell into it and their mean; and the
          way back, a value for each number from a value for each bin.
Unaware   of clusters.

A bin is a sign, one of 21 powers of two from the largest magnitude down, and some bits of fraction:
with 10 of them about what float16 can tell apart, but without its limits, because the powers are
counted from the largest number. What is below 2**-20 of it is at zero. Keys ascend as numbers do.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reefknot.kernels import assignment_dtype
from reefknot.kernels.jit import compiled, inlined

POWERS = 21
_FRACTION_OF = {np.dtype(np.float32): 23, np.dtype(np.float64): 52}


@dataclass(frozen=True)
class Histogram:
    """The occupied bins of some numbers."""

    counts: NDArray[np.int64]
    means: NDArray[np.float64]
    _keys: NDArray[np.int64]  # of the occupied bins
    _bits: NDArray  # of the numbers, as integers
    _shift: int
    _lowest: int  # key of the smallest power, before it is made to begin at 0
    _half: int  # keys of one sign

    @classmethod
    def of(cls, numbers: NDArray, *, fraction_bits: int = 10) -> "Histogram | None":
        """Count the numbers; None for types that have no such bins, and where all are zero."""
        numbers = np.ascontiguousarray(numbers)
        if numbers.dtype not in _FRACTION_OF:
            return None
        bits = numbers.view(f"i{numbers.dtype.itemsize}")
        shift = _FRACTION_OF[numbers.dtype] - fraction_bits
        largest = max(abs(float(numbers.min())), abs(float(numbers.max())))
        if largest == 0:
            return None
        top = int(np.array(largest, numbers.dtype).view(bits.dtype)) >> shift >> fraction_bits
        lowest = max(top - POWERS + 1, 0) << fraction_bits
        half = POWERS << fraction_bits
        counts, sums = np.zeros(2 * half, np.int64), np.zeros(2 * half)
        _count(bits, numbers, shift, lowest, counts, sums)
        keys = np.flatnonzero(counts)
        means = sums[keys] / counts[keys]
        return cls(counts[keys], means, keys, bits, shift, lowest, half)

    def spread(self, clusters: NDArray) -> NDArray[np.integer]:
        """The cluster of each number, from the cluster of each occupied bin."""
        dtype = assignment_dtype(int(clusters.max()) + 1)
        table = np.zeros(2 * self._half, dtype)
        table[self._keys] = clusters
        assignment = np.empty(self._bits.size, dtype)
        _look_up(self._bits, self._shift, self._lowest, table, assignment)
        return assignment


@inlined
def _key(bits: Any, mask: Any, shift: Any, lowest: Any, half: Any) -> Any:
    """The bin of a number, from its bits; `mask` leaves out the sign. Always below 2·half."""
    unsigned = bits & mask
    magnitude = min(max((unsigned >> shift) - lowest, 0), half - 1)
    positive = bits >= 0 or unsigned == 0  # -0.0 is 0.0
    return half + magnitude if positive else half - 1 - magnitude


@compiled(
    "void(int32[::1], float32[::1], int64, int64, int64[::1], float64[::1])",
    "void(int64[::1], float64[::1], int64, int64, int64[::1], float64[::1])",
)
def _count(
    bits: NDArray, numbers: NDArray, shift: Any, lowest: Any, counts: NDArray, sums: NDArray
) -> None:
    """Add each number to its bin."""
    half = counts.size // 2
    mask = np.int64(np.iinfo(bits.dtype).max)
    for n in range(bits.size):
        key = _key(np.int64(bits[n]), mask, shift, lowest, half)
        counts[key] += 1
        sums[key] += numbers[n]


@compiled(
    "void(int32[::1], int64, int64, uint8[::1], uint8[::1])",
    "void(int32[::1], int64, int64, int32[::1], int32[::1])",
    "void(int64[::1], int64, int64, uint8[::1], uint8[::1])",
    "void(int64[::1], int64, int64, int32[::1], int32[::1])",
)
def _look_up(bits: NDArray, shift: Any, lowest: Any, table: NDArray, out: NDArray) -> None:
    """What `table` says of each number's bin."""
    half = table.size // 2
    mask = np.int64(np.iinfo(bits.dtype).max)
    for n in range(bits.size):
        out[n] = table[_key(np.int64(bits[n]), mask, shift, lowest, half)]
