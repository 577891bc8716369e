"""The loops that run at every training step, over the parameters' own memory.

Takes     weights, gradients and assignments in memory order.
Gives     changed weights and gradients, or exact sums.
Paper     sections 3.1 and 3.2.
Unaware   of torch; `tying.ops` has the torch version of each loop and chooses between them.

Sums are of integers, w·2**e rounded. So they do not depend on the order of summation: threads,
shards and the torch version agree bit for bit. A float32 weight becomes an int32, which is finer
than float32 for weights above a hundredth of the largest; a float64 becomes an int64.

In each block the centers are looked up first, and then the arithmetic is done in loops that the
compiler can vectorise. Branches on the sign of a weight are written as selections, because signs
are random and a mispredicted branch costs more.
"""

from typing import Any

import numpy as np

from reefknot.kernels.jit import compiled_for_each, inlined
from reefknot.kernels.threads import BLOCK

ROWS = 8  # of partial sums: additions to the same cell would wait for each other
SUBBLOCK = 64  # skipped if all of it is in a fixed zero cluster


@inlined
def _look_up(centers: Any, a: Any, own: Any) -> None:
    """Look up the centers of a block."""
    for n in range(a.size):
        own[n] = centers[a[n]]


@compiled_for_each(
    "void({real}[::1], {real}[::1], {index}[::1], {real}[::1], {real}, {real}, boolean)"
)
def pull(
    weights: Any, grads: Any, assignment: Any, centers: Any, tying: Any, l1: Any, to_medians: bool
) -> None:
    """Add tying·(w − own center) + l1·sign(w) to the gradient; for medians, sign(w − own center).

    `tying` and `l1` are the strengths.
    """
    zero = centers.dtype.type(0)
    minus_tying, minus_l1 = -tying, -l1
    own = np.empty(BLOCK, centers.dtype)
    for begin in range(0, weights.size, BLOCK):
        w, g = weights[begin : begin + BLOCK], grads[begin : begin + BLOCK]
        _look_up(centers, assignment[begin : begin + BLOCK], own)
        if to_medians:
            for n in range(w.size):
                outward = tying if w[n] > own[n] else zero
                inward = minus_tying if w[n] < own[n] else zero
                up = l1 if w[n] > zero else zero
                down = minus_l1 if w[n] < zero else zero
                g[n] += (outward + inward) + (up + down)
        else:
            for n in range(w.size):
                up = l1 if w[n] > zero else zero
                down = minus_l1 if w[n] < zero else zero
                g[n] += (w[n] - own[n]) * tying + (up + down)


@compiled_for_each(
    "int64({real}[::1], {index}[::1], uint8[::1], {real}, {real}, {whole}[::1], int64[:, ::1])"
)
def sum_clusters(
    weights: Any, assignment: Any, dead: Any, scale: Any, limit: Any, terms: Any, partial: Any
) -> int:
    """Add round(scale·w) to one of the sums of its cluster; dead sub-blocks are skipped.

    `dead` says for each sub-block whether it is; none of an empty array is. The scale is a power of
    two, `terms` has room for a block, and `partial` has `ROWS` sums for each cluster.

    Gives the number of blocks where the magnitude of scale·w exceeds a limit. If there are any, the
    sums are invalid: the scale is too large, or a weight is not finite. The limit is at most 2**31
    for float32, 2**62 for float64.
    """
    exceeded = 0
    step = SUBBLOCK if dead.size else BLOCK
    for begin in range(0, weights.size, step):
        if dead.size and dead[begin // SUBBLOCK]:
            continue
        w, own = weights[begin : begin + step], assignment[begin : begin + step]
        outside = 0
        for n in range(w.size):
            term = w[n] * scale
            outside |= 0 if abs(term) < limit else 1
            terms[n] = np.rint(term)
        exceeded += outside
        for group in range(0, w.size - ROWS + 1, ROWS):
            for row in range(ROWS):
                partial[row, own[group + row]] += np.int64(terms[group + row])
        for n in range(w.size // ROWS * ROWS, w.size):
            partial[0, own[n]] += np.int64(terms[n])
    return exceeded


@compiled_for_each("void({real}[::1], {index}[::1], uint8[::1], {real}[::1])")
def project(weights: Any, assignment: Any, dead: Any, centers: Any) -> None:
    """Set each weight to its own center; in dead sub-blocks, to zero without a look-up."""
    step = SUBBLOCK if dead.size else BLOCK
    for begin in range(0, weights.size, step):
        if dead.size and dead[begin // SUBBLOCK]:
            weights[begin : begin + step] = 0
        else:
            _look_up(centers, assignment[begin : begin + step], weights[begin : begin + step])
