"""How many values a network of a given size should have.

Takes     the weights of a group, how many of them survive, and how many bits they take in the file.
Gives     the number of clusters that loses least, zero included.
Paper     its future work: choosing K.
Unaware   of the coder, of phases and of other groups.

In a file of fixed size, values compete with weights: one more value makes every index longer, so
that fewer weights fit. What is pruned is lost, but training on the tied values recovers most of the
quantization error. So pruned energy counts in full, and quantization error at a tenth.
"""

import numpy as np

from reefknot.bits import entropy as entropy_of
from reefknot.kernels.kmeans1d import Counted, kmeans1d

_SMALLEST, _LARGEST = 3, 33
_QUANTIZATION = 0.1  # the share of the quantization error that remains after training
_CENTER_BITS = 16  # of a value in the codebook


def better_num_clusters(weights: Counted, survivors: int, num_clusters: int, bits: float) -> int:
    """K, K - 1 or K + 1, whichever loses least in the same number of bits.

    At present `survivors` weights with `num_clusters` values take `bits` bits.
    """
    ordered = _Ordered(weights)
    entropy, error = ordered.quantized(survivors, num_clusters - 1)
    place = bits / survivors - entropy - _CENTER_BITS * (num_clusters - 1) / survivors
    losses = {num_clusters: ordered.lost(survivors) + _QUANTIZATION * error}
    for other in (num_clusters - 1, num_clusters + 1):
        if not _SMALLEST <= other <= _LARGEST:
            continue
        fit = survivors
        for _ in range(2):
            entropy, error = ordered.quantized(fit, other - 1)
            room = bits - _CENTER_BITS * (other - 1)
            fit = int(np.clip(room / max(place + entropy, 1e-3), 1, ordered.num_weights))
        losses[other] = ordered.lost(fit) + _QUANTIZATION * error
    return min(losses, key=lambda k: losses[k])


class _Ordered:
    """Distinct weights in order of falling magnitude, with their counts."""

    def __init__(self, weights: Counted) -> None:
        order = np.argsort(-np.abs(weights.points), kind="stable")
        self.points, self.counts = weights.points[order], weights.counts[order]
        self.ends = np.cumsum(self.counts)
        self.num_weights = int(self.ends[-1])
        energy = self.counts * np.square(self.points)
        self.rest = np.append(np.cumsum(energy[::-1])[::-1], 0.0)  # energy of [i:]

    def lost(self, survivors: int) -> float:
        """The energy of all weights but the first `survivors`."""
        last = int(np.searchsorted(self.ends, survivors))
        beyond = self.ends[last] - survivors  # of the weights at the last point
        return float(self.rest[last + 1] + beyond * self.points[last] ** 2)

    def quantized(self, survivors: int, num_clusters: int) -> tuple[float, float]:
        """Entropy (bits per value) and squared error of k-means on the first `survivors`."""
        last = int(np.searchsorted(self.ends, survivors))
        points, counts = self.points[: last + 1], self.counts[: last + 1].astype(np.float64)
        counts[last] -= self.ends[last] - survivors
        found = kmeans1d(points, min(num_clusters, survivors), weights=counts)
        error = float((counts * np.square(points - found.centers[found.assignment])).sum())
        return entropy_of(np.bincount(found.assignment, counts)), error
