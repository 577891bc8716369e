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

from reefknot.kernels.kmeans1d import kmeans1d

_SMALLEST, _LARGEST = 3, 33
_QUANTIZATION = 0.1  # the share of the quantization error that remains after training
_CENTER_BITS = 16  # of a value in the codebook


def better_num_clusters(weights: np.ndarray, survivors: int, num_clusters: int, bits: float) -> int:
    """K, K - 1 or K + 1, whichever loses least in the same number of bits.

    At present `survivors` weights with `num_clusters` values take `bits` bits.
    """
    ordered = weights[np.argsort(-np.abs(weights), kind="stable")].astype(np.float64)
    tail = np.append(np.cumsum(np.square(ordered[::-1]))[::-1], 0.0)  # energy of [i:]
    entropy, error = _quantized(ordered[:survivors], num_clusters - 1)
    place = bits / survivors - entropy - _CENTER_BITS * (num_clusters - 1) / survivors
    losses = {num_clusters: tail[survivors] + _QUANTIZATION * error}
    for other in (num_clusters - 1, num_clusters + 1):
        if not _SMALLEST <= other <= _LARGEST:
            continue
        fit = survivors
        for _ in range(2):
            entropy, error = _quantized(ordered[:fit], other - 1)
            room = bits - _CENTER_BITS * (other - 1)
            fit = int(np.clip(room / max(place + entropy, 1e-3), 1, len(ordered)))
        losses[other] = tail[fit] + _QUANTIZATION * error
    return min(losses, key=lambda k: losses[k])


def _quantized(values: np.ndarray, num_clusters: int) -> tuple[float, float]:
    """Entropy (bits per value) and squared error of k-means on these values."""
    found = kmeans1d(values, min(num_clusters, len(values)))
    counts = np.bincount(found.assignment)
    share = counts[counts > 0] / len(values)
    error = float(np.square(values - found.centers[found.assignment]).sum())
    return float(-(share * np.log2(share)).sum()), error
