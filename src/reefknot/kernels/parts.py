"""Reductions over numbers that are spread over several places: processes that hold shards.

Takes     what one place has counted.
Gives     the result for all places, the same everywhere.
Unaware   of how the places communicate.

Sums are of integers, so that neither the order nor the number of places matters.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Parts(Protocol):
    """Reductions over all places; every place makes the same calls in the same order."""

    def total(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum over all places, element by element."""

    def largest(self, magnitude: float) -> float:
        """The largest magnitude of all places; NaN if one of them is NaN."""

    def merged(
        self, points: NDArray[np.float64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Distinct ascending points of all places, and how often each occurs."""


class OnePlace:
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


ONE_PLACE = OnePlace()
