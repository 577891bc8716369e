"""How large a network shall be, and how large it would be now."""

from collections.abc import Callable
from dataclasses import dataclass

_BITS_A_SURVIVOR = 8.0  # in a file, to begin with; the coder is asked soon


@dataclass(frozen=True)
class Target:
    """A size in bytes of the file, or a density."""

    value: float
    measure: Callable[[], float]  # of the network as it would be written now
    is_density: bool = False

    def first_guess(self, num_weights: int) -> int:
        """How many weights may survive, before anybody has measured."""
        if self.is_density:
            return max(1, round(self.value * num_weights))
        return max(1, min(round(8 * self.value / _BITS_A_SURVIVOR), num_weights))
