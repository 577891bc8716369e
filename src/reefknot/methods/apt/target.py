"""The target size of a network, and a function that measures its current size."""

from collections.abc import Callable
from dataclasses import dataclass

_BITS_PER_SURVIVOR = 8.0  # a first guess, until the coder is asked


@dataclass(frozen=True)
class Target:
    """A size in bytes of the file, or a density."""

    value: float
    measure: Callable[[], float]  # the size of the network as it would be written now
    is_density: bool = False

    def first_guess(self, num_weights: int) -> int:
        """A guess of how many weights may survive, before anything is measured."""
        if self.is_density:
            return max(1, round(self.value * num_weights))
        return max(1, min(round(8 * self.value / _BITS_PER_SURVIVOR), num_weights))
