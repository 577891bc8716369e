"""The size controllers: what is set so that the network ends at its size.

Takes     a target, and functions that say how large the network would be now.
Gives     the L1 strength while the network is made sparse, and the price of a bit while it runs on
          tied values: the Lagrange multiplier of the size.
Paper     ours; the paper searches its strengths by hand.
Unaware   of optimizers, of how a size is counted, and of how long a phase lasts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from reefknot.methods.apt.prune import Pruning
from reefknot.methods.apt.target import Target
from reefknot.tying import ops
from reefknot.tying.group import Group
from reefknot.tying.latent import LatentWeights
from reefknot.tying.saved import saved_number

# Sparsify: what pruning to the target would take from the sum of squares shall fall like a power of
# the time, as it does under the constant strength that is right.
_LAST_LOSS, _DECAY, _MOST_LOSS = 0.02, 0.9, 0.8
_L1_GAIN, _L1_MOST = 0.2, 0.3  # of the strength's logarithm: for each excess, and at most
_FIRST_L1, _LARGEST_L1 = 0.01, 1.0  # times the mean magnitude of the data's gradients
_FIRST_PENALTY = 0.1  # or a first penalty of so much; the gradients of a trained network are tiny
_MOST_GROWN = 100.0  # the strength, beyond the first one, whatever the gradients

# Commit. The size is reached after a third of the way, while weights still change clusters.
_IN_TIME = 3.0
_PRICE_GAIN, _PRICE_MOST = 2.0, 0.2
_FIRST_PRICE, _LEAST_PRICE = 1e-2, 1e-3  # times the mean square of the weights
_AIM = 0.995  # of the target: what is left over need not be cut in the end


class SparsityController:
    """Sets the L1 strength so that little has to be cut when the zeros are fixed."""

    def __init__(self, pruning: Pruning) -> None:
        self.pruning = pruning
        self.gradient = 0.0  # the largest mean magnitude seen: how hard the data can pull
        self.first = 0.0  # strength

    def see(
        self, gradients: Iterable[tuple[Group, Mapping[str, Tensor]]], grad_scale: float
    ) -> None:
        """Take the measure of the data's own gradients, now and then."""
        sparse = [(group, found) for group, found in gradients if group.sparse]
        grads = [grad.abs() for _, found in sparse for grad in found.values()]
        elements = sum(group.members[name].numel() for group, found in sparse for name in found)
        if elements:
            mean = ops.total(grads, elements, self.pruning.peers) / grad_scale / elements
            self.gradient = max(self.gradient, mean)

    def first_strength(self) -> float:
        """A strength that the data loss does not mind much."""
        sizes = self.pruning.sum_of_magnitudes()
        self.first = max(_FIRST_L1 * self.gradient, _FIRST_PENALTY / max(sizes, 1e-12))
        return self.first

    def follow(self, strength: float, done: float) -> float:
        """The strength for the next part of the phase, of which `done` is over."""
        wanted = min(_MOST_LOSS, _LAST_LOSS * done**-_DECAY)
        excess = math.log(max(self.pruning.energy_lost(), 1e-6) / wanted)
        grown = strength * _growth(_L1_GAIN * excess, _L1_MOST)
        # In a short run nothing else would stop it.
        return min(grown, max(_LARGEST_L1 * self.gradient, _MOST_GROWN * self.first))

    def state_dict(self) -> dict[str, float]:
        """What `follow` goes on from, but for the strength."""
        seen = {"largest_gradient": self.gradient, "first_strength": self.first}
        return seen | self.pruning.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Go on where `state_dict` was called."""
        self.gradient = saved_number(state, "largest_gradient")
        self.first = saved_number(state, "first_strength")
        self.pruning.load_state_dict(state)


class PriceController:
    """Sets the price of a bit; without a target it is 0.

    The size shall fall by the same factor at each step until a third of the way is over, and stay
    from then on. At each look the price grows if the network is too large, and falls if it is too
    small.
    """

    def __init__(self, target: Target | None) -> None:
        self.target = target
        self.price = 0.0
        self.least = 0.0  # from where it can still grow in time
        self.first_size = 0.0

    def start(self, latent: Sequence[LatentWeights]) -> None:
        """Begin at a price that no weight of usual size minds."""
        if self.target is None:
            return
        sparse = [part for part in latent if part.group.sparse]
        number = sum(int(part.counts.sum()) for part in sparse)
        mean_square = 0.0
        if number:
            squares = [part.weights.double().square() for part in sparse]
            mean_square = ops.total(squares, number, sparse[0].group.peers) / number
        self.first_size = self.target.measure()
        self.price, self.least = _FIRST_PRICE * mean_square, _LEAST_PRICE * mean_square

    def follow(self, done: float) -> None:
        """Make the price fit the size that the network would have now."""
        if self.target is None:
            return
        part = min(1.0, _IN_TIME * done)
        wanted = self.first_size ** (1 - part) * (_AIM * self.target.value) ** part
        excess = math.log(max(self.target.measure(), 1e-9) / max(wanted, 1e-9))
        self.price = max(self.least, self.price * _growth(_PRICE_GAIN * excess, _PRICE_MOST))

    def state_dict(self) -> dict[str, float]:
        """What `follow` goes on from."""
        return {
            "bit_price": self.price,
            "least_price": self.least,
            "first_size": self.first_size,
        }

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Go on where `state_dict` was called."""
        self.price = saved_number(state, "bit_price")
        self.least = saved_number(state, "least_price")
        self.first_size = saved_number(state, "first_size")


def _growth(wanted: float, most: float) -> float:
    return math.exp(max(-most, min(most, wanted)))
