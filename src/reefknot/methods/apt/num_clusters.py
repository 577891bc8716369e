"""How many values a network of a given size should have.

Takes     the weights of a group, how many of them survive, and what their places cost in the file.
Gives     the number of clusters that loses least, zero included.
Paper     its future work: choosing K.
Unaware   of the coder, of phases and of other groups.

In a file of a fixed size values compete with weights: each further value makes every index longer,
so that fewer weights fit. What is pruned is lost, but most of the quantization error is won back
when the network is trained on its tied values. So pruned energy counts in full, and quantization
error at a tenth.
"""

import numpy as np

from reefknot.kernels.kmeans1d import Counted, kmeans1d

_SMALLEST, _LARGEST = 3, 33
_QUANTIZATION = 0.1  # how much of the quantization error remains after training
_CENTER_BITS = 16  # of a value in the codebook


def better_num_clusters(weights: Counted, survivors: int, num_clusters: int, bits: float) -> int:
    """K, or one more or one less, whichever loses least in a file of so many bits.

    Today `survivors` weights of `num_clusters` values take them.
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
    """Weights by falling magnitude, equal ones together."""

    def __init__(self, weights: Counted) -> None:
        order = np.argsort(-np.abs(weights.points), kind="stable")
        self.points, self.counts = weights.points[order], weights.counts[order]
        self.ends = np.cumsum(self.counts)
        self.num_weights = int(self.ends[-1])
        energy = self.counts * np.square(self.points)
        self.rest = np.append(np.cumsum(energy[::-1])[::-1], 0.0)  # energy from here on

    def lost(self, survivors: int) -> float:
        """The energy of all but the first so many."""
        last = int(np.searchsorted(self.ends, survivors))
        beyond = self.ends[last] - survivors  # of the weights at the last point
        return float(self.rest[last + 1] + beyond * self.points[last] ** 2)

    def quantized(self, survivors: int, num_clusters: int) -> tuple[float, float]:
        """Entropy in bits a value, and squared error, of k-means on the first so many."""
        last = int(np.searchsorted(self.ends, survivors))
        points, counts = self.points[: last + 1], self.counts[: last + 1].astype(np.float64)
        counts[last] -= self.ends[last] - survivors
        found = kmeans1d(points, min(num_clusters, survivors), weights=counts)
        share = np.bincount(found.assignment, counts) / survivors
        share = share[share > 0]
        error = float((counts * np.square(points - found.centers[found.assignment])).sum())
        return float(-(share * np.log2(share)).sum()), error
