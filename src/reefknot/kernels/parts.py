"""Numbers that lie in several places, and what must be known of all of them together.

Takes     what one place has counted.
Gives     what all places have counted, the same everywhere.
Unaware   of how the places reach each other.

All that is added up is whole, so that neither the order nor the number of places matters.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Parts(Protocol):
    """The places; every one of them makes the same calls in the same order."""

    def total(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum over all places, element by element."""

    def largest(self, magnitude: float) -> float:
        """The largest of all places' magnitudes, none negative; NaN if one is."""

    def merged(
        self, points: NDArray[np.float64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Distinct ascending points of all places, and how often each occurs."""


class OnePlace:
    """Everything is here."""

    def total(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """What was counted here."""
        return counts

    def largest(self, magnitude: float) -> float:
        """What is largest here."""
        return magnitude

    def merged(
        self, points: NDArray[np.float64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """What is here."""
        return points, counts


ONE_PLACE = OnePlace()
