"""Reductions over numbers that are spread over several places: processes that hold shards.

Takes     what one place has counted, or magnitudes of which only some are there.
Gives     the result for all places, the same everywhere; the n-th smallest magnitude of all.
Unaware   of how the places communicate, and of what the numbers are.

Sums are of integers, so that neither the order nor the number of places matters.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Reducer(Protocol):
    """Reductions over all places; every place makes the same calls in the same order."""

    def total(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum over all places, element by element."""

    def largest(self, magnitude: float) -> float:
        """The largest magnitude of all places; NaN if one of them is NaN."""

    def merged(
        self, points: NDArray[np.float64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Distinct ascending points of all places, and how often each occurs."""


class SingleProcess:
    """All numbers are in one place: nothing is reduced."""

    def total(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The counts themselves."""
        return counts

    def largest(self, magnitude: float) -> float:
        """The magnitude itself."""
        return magnitude

    def merged(
        self, points: NDArray[np.float64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The points and counts themselves."""
        return points, counts


SINGLE = SingleProcess()
_DIGIT = 16  # bits


def order_statistic(magnitudes: NDArray, place: int, reducer: Reducer = SINGLE) -> float:
    """The number at index `place` when all of them are sorted; none is negative.

    The bit patterns of floating-point magnitudes are ordered as the magnitudes are. So this is a
    radix selection: sixteen bits at a time are counted, the highest first, and numbers with other
    bits than the one sought are dropped.
    """
    if reducer is SINGLE:
        return float(np.partition(magnitudes, place)[place])
    bits = magnitudes.view(f"u{magnitudes.itemsize}")
    found = 0
    for shift in range(8 * magnitudes.itemsize - _DIGIT, -1, -_DIGIT):
        digits = (bits >> shift).astype(np.uint16)
        ends = np.cumsum(reducer.total(np.bincount(digits, minlength=1 << _DIGIT)))
        digit = int(np.searchsorted(ends, place, side="right"))
        place -= int(ends[digit - 1]) if digit else 0
        bits = bits[digits == digit]
        found = found << _DIGIT | digit
    return float(np.array(found, bits.dtype).view(magnitudes.dtype))
