"""The loops that run at every training step, over the parameters' own memory.

Takes     flat numpy views of weights, gradients and assignments.
Gives     changed weights and gradients, or exact sums.
Paper     sections 3.1 and 3.2.
Unaware   of torch; `tying.ops` holds the plain twin of each and chooses between them.

Sums are int64 in fixed point: adding integers gives the same result in any order, so threads,
shards and the torch twin agree bit for bit. What is summed is the distance from the current
center, which keeps the precision where it is needed and makes an unmoved cluster exactly unmoved.

Each loop works in blocks: first the centers of a block are looked up, one by one, then the
arithmetic is done on rows that the compiler can turn into vector instructions. Branches on the
sign of a weight are written as selections, because signs are random and a wrong guess costs more.
"""

from itertools import product

import numpy as np
from numpy.typing import NDArray

from reefknot.kernels.jit import compiled

FLOATS = ("float32", "float64")
INDICES = ("uint8", "int32")
BLOCK = 1024
ROWS = 8  # of partial sums: a chain of additions to one cell would wait for itself
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
    own = np.empty(BLOCK, weights.dtype)
    for begin in range(0, weights.size, BLOCK):
        end = min(begin + BLOCK, weights.size)
        w, g, a = weights[begin:end], grad[begin:end], assignment[begin:end]
        for n in range(w.size):
            own[n] = centers[a[n]]
        for n in range(w.size):
            up = l1 if w[n] > zero else zero
            down = minus_l1 if w[n] < zero else zero
            g[n] += (w[n] - own[n]) * tying + (up + down)


@compiled(*_signatures("void({f}[::1], {f}[::1], {i}[::1], {f}[::1], {f}, {f})"))
def pull_to_medians(
    weights: NDArray, grad: NDArray, assignment: NDArray, centers: NDArray, tying: Real, l1: Real
) -> None:
    """Add tying·sign(w − own center) + l1·sign(w) to the gradient (k-medians)."""
    zero, minus_l1, minus_tying = weights.dtype.type(0), -l1, -tying
    own = np.empty(BLOCK, weights.dtype)
    for begin in range(0, weights.size, BLOCK):
        end = min(begin + BLOCK, weights.size)
        w, g, a = weights[begin:end], grad[begin:end], assignment[begin:end]
        for n in range(w.size):
            own[n] = centers[a[n]]
        for n in range(w.size):
            outward = tying if w[n] > own[n] else zero
            inward = minus_tying if w[n] < own[n] else zero
            up = l1 if w[n] > zero else zero
            down = minus_l1 if w[n] < zero else zero
            g[n] += (outward + inward) + (up + down)


@compiled(*_signatures("boolean({f}[::1], {i}[::1], float64[::1], float64, float64, int64[::1])"))
def sum_deviations(
    weights: NDArray,
    assignment: NDArray,
    centers: NDArray,
    scale: float,
    limit: float,
    sums: NDArray,
) -> bool:
    """Add round(scale·(w − own center)) to `sums` of each cluster.

    False, and the sums are worth nothing, if such a term is not below `limit` in magnitude: the
    scale is too large, or a weight is not finite.
    """
    own = np.empty(BLOCK, np.float64)
    fixed = np.empty(BLOCK, np.int64)
    partial = np.zeros((ROWS, centers.size), np.int64)
    for begin in range(0, weights.size, BLOCK):
        end = min(begin + BLOCK, weights.size)
        w, a = weights[begin:end], assignment[begin:end]
        for n in range(w.size):
            own[n] = centers[a[n]]
        outside = 0
        for n in range(w.size):
            away = (np.float64(w[n]) - own[n]) * scale
            outside |= 0 if abs(away) < limit else 1
            fixed[n] = np.int64(np.rint(away))
        if outside:
            return False
        for group in range(0, w.size - ROWS + 1, ROWS):
            for row in range(ROWS):
                partial[row, a[group + row]] += fixed[group + row]
        for n in range(w.size // ROWS * ROWS, w.size):
            partial[0, a[n]] += fixed[n]
    for row in range(ROWS):
        for k in range(centers.size):
            sums[k] += partial[row, k]
    return True


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
