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
from reefknot.kernels.vectors import (
    LANES,
    REPLICAS,
    TABLE_SIZE,
    add_pairs,
    can_look_up,
    look_up,
)
from reefknot.kernels.work import (
    BEGIN,
    BLOCK,
    CENTERS,
    NUM_CENTERS,
    NUM_TENSORS,
    NUMBERS,
    OUTSIDE,
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
def _find_any(centers: Any, num_centers: Any, a: Any, own: Any) -> None:
    """Look up the centers of a block."""
    for n in range(a.size):
        own[n] = centers[a[n]]


@inlined
def _find_by_table(centers: Any, num_centers: Any, a: Any, own: Any) -> None:
    """The same for float32 and uint8, sixteen at a time if there are few centers."""
    begin = 0
    if num_centers <= TABLE_SIZE:
        look_up(centers, a, own)
        begin = a.size // LANES * LANES
    for n in range(begin, a.size):
        own[n] = centers[a[n]]


# A global, not a closure variable of the loops below, with which numba could not cache them.
_find_narrow = _find_by_table if can_look_up() else _find_any


@cache
def pull(real: Any, index: Any, to_medians: bool) -> Any:
    """Add tying·(w − own center) + l1·sign(w) to the gradient; for medians, sign(w − own center).

    The two numbers are the strengths of tying and of L1.
    """
    narrow = real is np.float32 and index is np.uint8

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], 5), np.int64)
        centers = array_at(task[CENTERS], max(task[NUM_CENTERS], TABLE_SIZE), real)
        numbers = array_at(task[NUMBERS], 2, np.float64)
        zero, tying, l1 = real(0), real(numbers[0]), real(numbers[1])
        minus_tying, minus_l1 = -tying, -l1
        own = np.empty(BLOCK, real)
        place = first_place(task)
        while claim(task, table, place):
            w, g = block_of(table, place, 1, real), block_of(table, place, 2, real)
            a = block_of(table, place, 3, index)
            if narrow:
                _find_narrow(centers, task[NUM_CENTERS], a, own)
            else:
                _find_any(centers, task[NUM_CENTERS], a, own)
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
    `OUTSIDE` counts the blocks that exceed it; if there are any, the sums are invalid: the scale is
    too large, or a weight is not finite. The limit is at most 2**31 for float32, 2**62 for float64.
    """
    whole = np.int32 if real is np.float32 else np.int64
    in_pairs = real is np.float32 and index is np.uint8

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], 5), np.int64)
        numbers = array_at(task[NUMBERS], 2, np.float64)
        sums = array_at(task[SUMS], task[NUM_CENTERS], np.int64)
        scale, limit = real(numbers[0]), real(numbers[1])
        terms = np.empty(BLOCK, whole)
        num_pairs = sums.size * sums.size if in_pairs and sums.size <= TABLE_SIZE else 0
        pairs = np.empty(BLOCK // 2, np.uint16)
        cells = np.zeros(REPLICAS * num_pairs * 2, np.int64)
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
                done = 0
                if in_pairs and num_pairs:
                    half = part.size // (2 * REPLICAS) * REPLICAS
                    for n in range(half):
                        first = np.uint16(own[2 * n]) * np.uint16(sums.size)
                        pairs[n] = first + np.uint16(own[2 * n + 1])
                    add_pairs(cells, pairs[:half], terms)
                    done = 2 * half
                rest, left = own[done:], terms[done:]
                for group in range(0, rest.size - ROWS + 1, ROWS):
                    for row in range(ROWS):
                        partial[row, rest[group + row]] += np.int64(left[group + row])
                for n in range(rest.size // ROWS * ROWS, rest.size):
                    partial[0, rest[n]] += np.int64(left[n])
            if outside:
                add_to(task, OUTSIDE, 1)
        at = 0
        while at < cells.size:  # replica by replica, first cluster by first, second by second
            for first_cluster in range(sums.size):
                for second_cluster in range(sums.size):
                    partial[0, first_cluster] += cells[at]
                    partial[0, second_cluster] += cells[at + 1]
                    at += 2
        for k in range(sums.size):
            total = np.int64(0)
            for row in range(ROWS):
                total += partial[row, k]
            add_to(sums, k, total)

    return work


@cache
def project(real: Any, index: Any) -> Any:
    """Set each weight to its own center; in dead blocks, to zero without a look-up."""
    narrow = real is np.float32 and index is np.uint8

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], 5), np.int64)
        centers = array_at(task[CENTERS], max(task[NUM_CENTERS], TABLE_SIZE), real)
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
                elif narrow:
                    _find_narrow(centers, task[NUM_CENTERS], own, part)
                else:
                    _find_any(centers, task[NUM_CENTERS], own, part)

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
