"""The loops that run at every training step, over the parameters' own memory.

Takes     a table of tensors: sizes, and addresses of weights, gradients and assignments.
Gives     changed weights and gradients, or exact sums.
Paper     sections 3.1 and 3.2.
Unaware   of torch; `tying.ops` has the torch version of each loop and chooses between them.

Sums are of integers, w·2**e rounded. So they do not depend on the order of summation: threads,
shards and the torch version agree bit for bit. A float32 weight becomes an int32, which is finer
than float32 for weights above a hundredth of the largest; a float64 becomes an int64.

One call works on all tensors of a group, in blocks that the threads take in turn. In each block the
centers are looked up first, and then the arithmetic is done in loops that the compiler can
vectorise. Branches on the sign of a weight are written as selections, because signs are random and
a mispredicted branch costs more.
"""

from functools import cache
from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]
from numpy.typing import NDArray

from reefknot.kernels.jit import compiled, inlined
from reefknot.kernels.shared import add_to, array_at, worker
from reefknot.kernels.work import (
    BEGIN,
    BLOCK,
    CENTERS,
    COUNTER,
    NUM_CENTERS,
    NUM_TENSORS,
    NUMBERS,
    SUBBLOCK,
    SUMS,
    TABLE,
    TASK_SIZE,
    TENSOR,
    block_of,
    claim,
    first_place,
)

ROWS = 8  # of partial sums: additions to the same cell would wait for each other


@inlined
def _look_up(centers: Any, a: Any, own: Any) -> None:
    """Look up the centers of a block."""
    for n in range(a.size):
        own[n] = centers[a[n]]


@cache
def pull(real: Any, index: Any, to_medians: bool) -> Any:
    """Add tying·(w − own center) + l1·sign(w) to the gradient; for medians, sign(w − own center).

    The two numbers are the strengths of tying and of L1.
    """

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], 5), np.int64)
        centers = array_at(task[CENTERS], task[NUM_CENTERS], real)
        numbers = array_at(task[NUMBERS], 2, np.float64)
        zero, tying, l1 = real(0), real(numbers[0]), real(numbers[1])
        minus_tying, minus_l1 = -tying, -l1
        own = np.empty(BLOCK, real)
        place = first_place(task)
        while claim(task, table, place):
            w, g = block_of(table, place, 1, real), block_of(table, place, 2, real)
            a = block_of(table, place, 3, index)
            _look_up(centers, a, own)
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

    return work


@cache
def sum_clusters(real: Any, index: Any) -> Any:
    """Add round(scale·w) to the sum of its cluster; dead blocks are skipped.

    The two numbers are the scale, a power of two, and a limit on the magnitude of scale·w.
    `COUNTER` counts the blocks that exceed it; if there are any, the sums are invalid: the scale is
    too large, or a weight is not finite. The limit is at most 2**31 for float32, 2**62 for float64.
    """
    whole = np.int32 if real is np.float32 else np.int64

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], 5), np.int64)
        numbers = array_at(task[NUMBERS], 2, np.float64)
        sums = array_at(task[SUMS], task[NUM_CENTERS], np.int64)
        scale, limit = real(numbers[0]), real(numbers[1])
        terms = np.empty(BLOCK, whole)
        partial = np.zeros((ROWS, sums.size), np.int64)
        place = first_place(task)
        while claim(task, table, place):
            w, a = block_of(table, place, 1, real), block_of(table, place, 3, index)
            dead = array_at(table[place[TENSOR], 4], table[place[TENSOR], 0], np.uint8)
            skips = table[place[TENSOR], 4] != 0
            outside = 0
            step = SUBBLOCK if skips else w.size
            for begin in range(0, w.size, step):
                if skips and dead[(place[BEGIN] + begin) // SUBBLOCK]:
                    continue
                part, own = w[begin : begin + step], a[begin : begin + step]
                for n in range(part.size):
                    term = part[n] * scale
                    outside |= 0 if abs(term) < limit else 1
                    terms[n] = whole(np.rint(term))
                for group in range(0, part.size - ROWS + 1, ROWS):
                    for row in range(ROWS):
                        partial[row, own[group + row]] += np.int64(terms[group + row])
                for n in range(part.size // ROWS * ROWS, part.size):
                    partial[0, own[n]] += np.int64(terms[n])
            if outside:
                add_to(task, COUNTER, 1)
        for k in range(sums.size):
            total = np.int64(0)
            for row in range(ROWS):
                total += partial[row, k]
            add_to(sums, k, total)

    return work


@cache
def project(real: Any, index: Any) -> Any:
    """Set each weight to its own center; in dead blocks, to zero without a look-up."""

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], 5), np.int64)
        centers = array_at(task[CENTERS], task[NUM_CENTERS], real)
        place = first_place(task)
        while claim(task, table, place):
            w, a = block_of(table, place, 1, real), block_of(table, place, 3, index)
            dead = array_at(table[place[TENSOR], 4], table[place[TENSOR], 0], np.uint8)
            skips = table[place[TENSOR], 4] != 0
            step = SUBBLOCK if skips else w.size
            for begin in range(0, w.size, step):
                part, own = w[begin : begin + step], a[begin : begin + step]
                if skips and dead[(place[BEGIN] + begin) // SUBBLOCK]:
                    part[:] = real(0)
                else:
                    _look_up(centers, own, part)

    return work


@compiled("float64(float64[::1])", allocates=False)
def unit_above(centers: NDArray) -> float:
    """A power of two that is above twice every center."""
    largest = 2.0**-40
    for k in range(centers.size):
        largest = max(largest, abs(centers[k]))
    return 2.0 ** (np.floor(np.log2(largest)) + 2)


@compiled("void(int64[::1], int64[::1], float64, float64[::1])", allocates=False)
def move_to_means(sums: NDArray, counts: NDArray, scale: float, centers: NDArray) -> None:
    """Move each center to its cluster's mean, unless empty or less than half a unit away."""
    for k in range(centers.size):
        if counts[k] > 0:
            mean = sums[k] / counts[k] / scale
            if abs(mean - centers[k]) * scale > 0.5:
                centers[k] = mean


@cache
def soft_threshold(real: Any) -> Any:
    """Move each weight towards zero by the first number, and to exactly zero if it would cross."""

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], 5), np.int64)
        threshold = real(array_at(task[NUMBERS], 2, np.float64)[0])
        place = first_place(task)
        while claim(task, table, place):
            w = block_of(table, place, 1, real)
            for n in range(w.size):
                above = max(w[n] - threshold, real(0))
                below = min(w[n] + threshold, real(0))
                w[n] = above + below

    return work
