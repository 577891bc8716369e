"""The size controllers: two feedback loops that bring the network to its target size.

Takes     a target, and functions that say how large the network would be now.
Gives     the L1 strength during *sparsify*, and the price of a bit, the Lagrange multiplier of the
          size, during *commit*.
Paper     ours; the paper searches its strengths by hand.
Unaware   of optimizers, of how a size is counted, and of how long a phase lasts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from reefknot.bits import message_entropy
from reefknot.phases.prune import Pruning
from reefknot.phases.target import SizeEstimate, Target
from reefknot.tying import ops
from reefknot.tying.group import Group
from reefknot.tying.latent import LatentWeights
from reefknot.tying.saved import saved_count, saved_number

# Sparsify. The setpoint is the share of the sum of squares that pruning to the target would lose.
# It falls as a power of time, as it does under the constant strength that is right in hindsight.
_LAST_LOSS, _LOSS_EXPONENT, _LARGEST_LOSS = 0.02, 0.9, 0.8
_L1_GAIN, _L1_MAX_STEP = 0.2, 0.3  # of the log strength, per update
_FIRST_L1, _LARGEST_L1 = 0.01, 1.0  # times the mean magnitude of the data loss's gradients
_FIRST_PENALTY = 0.1  # the least first L1 penalty: the gradients of a trained network are tiny
_L1_HEADROOM = 100.0  # the strength may grow to this many times the first one in any case

# Commit. The target size is reached after a third of the ramp, while weights still change clusters.
_SCHEDULE_SPEED = 3.0
_PRICE_GAIN, _PRICE_MAX_STEP = 2.0, 0.2  # of the log price, per update
_FIRST_PRICE, _LEAST_PRICE = 1e-2, 1e-3  # times the mean square of the weights
_FULL, _PATIENCE = 0.975, 3  # of the target, below which a value is added; updates between two
_AIM = 0.995  # of the target, so that the last trim has little or nothing to do


class SparsityController:
    """Sets the L1 strength so that little has to be pruned when the zeros are fixed."""

    def __init__(self, pruning: Pruning, speed: float = 1.0) -> None:
        self.pruning = pruning
        self.speed = speed  # above 1 if a short training has fewer updates
        self.gradient = 0.0  # the largest mean magnitude of the gradients so far
        self.first = 0.0  # the first strength

    def measure_gradients(
        self, gradients: Iterable[tuple[Group, Mapping[str, Tensor]]], grad_scale: float
    ) -> None:
        """Record the mean magnitude of the data loss's gradients."""
        sparse = [(group, found) for group, found in gradients if group.sparse]
        grads = [grad.abs() for _, found in sparse for grad in found.values()]
        elements = sum(group.members[name].numel() for group, found in sparse for name in found)
        if elements:
            mean = ops.total(grads, elements, self.pruning.processes) / grad_scale / elements
            self.gradient = max(self.gradient, mean)

    def first_strength(self) -> float:
        """A strength that hardly changes the data loss."""
        sizes = self.pruning.sum_of_magnitudes()
        self.first = max(_FIRST_L1 * self.gradient, _FIRST_PENALTY / max(sizes, 1e-12))
        return self.first

    def updated(self, strength: float, done: float) -> float:
        """The new strength, given the old one and the fraction of the phase that is done."""
        wanted = min(_LARGEST_LOSS, _LAST_LOSS * done**-_LOSS_EXPONENT)
        excess = math.log(max(self.pruning.energy_lost(), 1e-6) / wanted)
        grown = strength * _factor(self.speed * _L1_GAIN * excess, self.speed * _L1_MAX_STEP)
        # Without this bound the strength would run away in a short run.
        return min(grown, max(_LARGEST_L1 * self.gradient, _L1_HEADROOM * self.first))

    def state_dict(self) -> dict[str, float]:
        """What `updated` needs, except for the strength itself."""
        seen = {"largest_gradient": self.gradient, "first_strength": self.first}
        return seen | self.pruning.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved."""
        self.gradient = saved_number(state, "largest_gradient")
        self.first = saved_number(state, "first_strength")
        self.pruning.load_state_dict(state)


class PriceController:
    """Sets the price of a bit.

    The wanted size falls geometrically to the target during the first third of the ramp, and stays
    there. Each update raises the price if the network is larger than that, and lowers it if it is
    smaller.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.size = SizeEstimate(target)
        self.price = 0.0
        self.least = 0.0  # a lower price could not recover in time
        self.first_size = 0.0
        self.updates = 0  # since a value was added

    def start(self, latent: Sequence[LatentWeights]) -> None:
        """Begin at a price that leaves weights of average size alone."""
        sparse = [part for part in latent if part.group.sparse]
        number = sum(int(part.counts.sum()) for part in sparse)
        mean_square = 0.0
        if number:
            squares = [part.weights.double().square() for part in sparse]
            mean_square = ops.total(squares, number, sparse[0].group.members.processes) / number
        self.first_size = self.size.measure(_entropy(latent))
        self.price, self.least = _FIRST_PRICE * mean_square, _LEAST_PRICE * mean_square

    def update(self, done: float, latent: Sequence[LatentWeights], *, measure: bool) -> None:
        """Adjust the price to the size that the file would have now, measured or estimated."""
        entropy = _entropy(latent)
        measure = measure or self.target.is_density  # which is no work
        size = self.size.measure(entropy) if measure else self.size.at(entropy)
        part = min(1.0, _SCHEDULE_SPEED * done)
        wanted = self.first_size ** (1 - part) * (_AIM * self.target.value) ** part
        excess = math.log(max(size, 1e-9) / max(wanted, 1e-9))
        self.price = max(self.least, self.price * _factor(_PRICE_GAIN * excess, _PRICE_MAX_STEP))
        self.updates += 1

    def wants_value(self, latent: Sequence[LatentWeights]) -> bool:
        """Whether the network is too small even at the least price, so that a value more fits."""
        if self.price > self.least or self.updates < _PATIENCE:
            return False
        if self.size.at(_entropy(latent)) >= _FULL * self.target.value:
            return False
        self.updates = 0
        return True

    def state_dict(self) -> dict[str, float | int]:
        """What `update` needs."""
        return {
            "bit_price": self.price,
            "least_price": self.least,
            "first_size": self.first_size,
            "price_updates": self.updates,
        } | self.size.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved."""
        self.price = saved_number(state, "bit_price")
        self.least = saved_number(state, "least_price")
        self.first_size = saved_number(state, "first_size")
        self.updates = saved_count(state, "price_updates")
        self.size.load_state_dict(state)


def _entropy(latent: Sequence[LatentWeights]) -> float:
    """The bits of all clusters that may be zero, fixed zeros included."""
    bits = 0.0
    for part in latent:
        if part.zero is not None:
            counts = part.counts.copy()
            counts[part.zero] += part.group.members.num_weights - counts.sum()
            bits += message_entropy(counts)
    return bits


def _factor(log_step: float, max_step: float) -> float:
    return math.exp(max(-max_step, min(max_step, log_step)))
