"""The loops that run at every training step, over the parameters' own memory.

Takes     flat numpy views of weights, gradients and assignments.
Gives     changed weights and gradients, or exact sums.
Paper     sections 3.1 and 3.2.
Unaware   of torch; `tying.ops` holds the plain twin of each and chooses between them.

Sums are int64 in fixed point: adding integers gives the same result in any order, so threads,
shards and the torch twin agree bit for bit. What is summed is the distance from the current
center, which keeps the precision where it is needed and makes an unmoved cluster exactly unmoved.
"""

from itertools import product

import numpy as np
from numpy.typing import NDArray

from reefknot.kernels.jit import compiled

FLOATS = ("float32", "float64")
INDICES = ("uint8", "int32")
Real = float | np.floating


def _signatures(template: str) -> list[str]:
    """The template with `f` and `i` replaced by every supported weight and index type."""
    pairs = product(FLOATS, INDICES) if "{i}" in template else ((f, "") for f in FLOATS)
    return [template.format(f=f, i=i) for f, i in pairs]


@compiled(*_signatures("void({f}[::1], {f}[::1], {i}[::1], {f}[::1], {f}, {f})"))
def pull(
    weights: NDArray, grad: NDArray, assignment: NDArray, centers: NDArray, tying: Real, l1: Real
) -> None:
    """Add tying·(w − own center) + l1·sign(w) to the gradient."""
    zero, minus_l1 = weights.dtype.type(0), -l1
    for n in range(weights.size):
        w = weights[n]
        # Two selections instead of a branch: signs are random, and a wrong guess costs more.
        up = l1 if w > zero else zero
        down = minus_l1 if w < zero else zero
        grad[n] += (w - centers[assignment[n]]) * tying + (up + down)


@compiled(*_signatures("void({f}[::1], {f}[::1], {i}[::1], {f}[::1], {f}, {f})"))
def pull_to_medians(
    weights: NDArray, grad: NDArray, assignment: NDArray, centers: NDArray, tying: Real, l1: Real
) -> None:
    """Add tying·sign(w − own center) + l1·sign(w) to the gradient (k-medians)."""
    zero, minus_l1, minus_tying = weights.dtype.type(0), -l1, -tying
    for n in range(weights.size):
        w = weights[n]
        c = centers[assignment[n]]
        outward = tying if w > c else zero
        inward = minus_tying if w < c else zero
        up = l1 if w > zero else zero
        down = minus_l1 if w < zero else zero
        grad[n] += (outward + inward) + (up + down)


@compiled(*_signatures("float64({f}[::1], {i}[::1], float64[::1], float64, int64[::1])"))
def sum_deviations(
    weights: NDArray, assignment: NDArray, centers: NDArray, scale: float, sums: NDArray
) -> float:
    """Add round(scale·(w − own center)) to `sums` of each cluster; give the largest |w − center|.

    The sums are wrong if scale times that times the number of weights passes 2**62: the caller
    looks at the returned value and calls again with a smaller scale. Infinite where a weight is
    not finite.
    """
    # Four rows of sums, because most weights are in one cluster and a chain of additions to the
    # same cell would wait for itself.
    partial = np.zeros((4, centers.size), np.int64)
    largest = 0.0
    for n in range(weights.size):
        k = assignment[n]
        deviation = np.float64(weights[n]) - centers[k]
        size = abs(deviation)
        if not size <= largest:
            if not size < np.inf:
                return np.inf
            largest = size
            if size * scale >= 4e18:  # the conversion below would overflow; the caller rescales
                continue
        partial[n & 3, k] += np.int64(np.rint(deviation * scale))
    for row in range(4):
        for k in range(centers.size):
            sums[k] += partial[row, k]
    return largest


@compiled(*_signatures("void({f}[::1], {i}[::1], {f}[::1])"))
def project(weights: NDArray, assignment: NDArray, centers: NDArray) -> None:
    """Set each weight to its own center."""
    for n in range(weights.size):
        weights[n] = centers[assignment[n]]


@compiled(*_signatures("void({f}[::1], {f})"))
def soft_threshold(weights: NDArray, threshold: Real) -> None:
    """Move each weight towards zero by `threshold`, and to exactly zero if it would cross."""
    for n in range(weights.size):
        w = weights[n]
        if w > threshold:
            weights[n] = w - threshold
        elif w < -threshold:
            weights[n] = w + threshold
        else:
            weights[n] = 0
