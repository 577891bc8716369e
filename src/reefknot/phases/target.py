"""The target size of a network, a function that measures its current size, and an estimate.

The coder that measures a size takes as long as a dozen steps of a small network. So it is asked
from time to time, and before that only if the entropy of the clusters has changed by more than
`TRUSTED`; between two answers the size is estimated from that entropy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from reefknot.tying.saved import saved_number

TRUSTED = 0.05  # the change of the entropy up to which the estimate is not measured again

_BITS_PER_SURVIVOR = 8.0  # a first guess, until the coder is asked


@dataclass(frozen=True)
class Target:
    """A size in bytes of the file, or a density."""

    value: float
    measure: Callable[[], float]  # the size of the network as it would be written now
    way_out: Callable[[], str] = str  # of a network that is too large with all weights at zero
    is_density: bool = False

    def too_small(self, least: float) -> str:
        """Why a network of `least`, all of whose tied weights are zero, cannot be the end."""
        name = "target_density" if self.is_density else "target_bytes"
        return (
            f"{name} is {self.value:,g}, but with all tied weights at zero the network still has "
            f"{least:,}"
        )

    def first_guess(self, num_weights: int) -> int:
        """A guess of how many weights may survive, before anything is measured."""
        if self.is_density:
            return max(1, round(self.value * num_weights))
        return max(1, min(round(8 * self.value / _BITS_PER_SURVIVOR), num_weights))


class SizeEstimate:
    """The size between two measurements: what is fixed, and a part that follows the entropy."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.fixed = 0.0  # the size of a network whose tied weights are all zero
        self.size = 0.0  # when last measured
        self.entropy = 0.0  # of the clusters then

    def measure(self, entropy: float) -> float:
        """The size now, measured; remembered with the entropy that goes with it."""
        self.size, self.entropy = self.target.measure(), entropy
        return self.size

    def at(self, entropy: float) -> float:
        """The size now, estimated; measured if much has changed since the last time."""
        if abs(entropy - self.entropy) > TRUSTED * self.entropy:
            return self.measure(entropy)
        fixed = min(self.fixed, self.size)
        if not self.entropy:
            return self.size
        return fixed + (self.size - fixed) * entropy / self.entropy

    def state_dict(self) -> dict[str, float]:
        """The last measurement."""
        return {
            "measured_size": self.size,
            "measured_entropy": self.entropy,
            "fixed_size": self.fixed,
        }

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved."""
        self.size = saved_number(state, "measured_size")
        self.entropy = saved_number(state, "measured_entropy")
        self.fixed = saved_number(state, "fixed_size")
