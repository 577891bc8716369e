"""The loops that run at every training step, over the parameters' own memory.

Takes     a table of tensors: their sizes and where weights, gradients and assignments lie.
Gives     changed weights and gradients, or exact sums.
Paper     sections 3.1 and 3.2.
Unaware   of torch; `tying.ops` holds the plain twin of each and chooses between them.

Sums are int64 in fixed point: adding integers gives the same result in any order, so threads,
shards and the torch twin agree bit for bit.

One call works on all tensors of a group, in blocks that the threads share out among themselves.
In each block first the centers are looked up, one by one, then the arithmetic is done on rows that
the compiler can turn into vector instructions. Branches on the sign of a weight are written as
selections, because signs are random and a wrong guess costs more.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import carray  # type: ignore[attr-defined]
from numpy.typing import NDArray

from reefknot.kernels.jit import inlined, inlined_with_arrays
from reefknot.kernels.shared import add_to, array_at, share, worker

BLOCK = 4096
SUBBLOCK = 64  # what is skipped if all of it is in the zero cluster of hard tying
ROWS = 8  # of partial sums: a chain of additions to one cell would wait for itself
ROUNDING = 1.5 * 2.0**52  # adding it leaves a float64 the nearest integer in its last bits

# What a task holds; its element 0 is the number of the next block.
NUM_TENSORS, TABLE, NUM_CENTERS, CENTERS, NUMBERS, SUMS, OUTSIDE, TASK_SIZE = range(1, 9)


class Row(NamedTuple):
    """A tensor: its size, and the addresses of what belongs to its elements; 0 for nothing."""

    size: int
    weights: int
    grad: int
    assignment: int
    dead: int  # a byte for each sub-block: whether all of it is in the zero cluster


GRAD = Row._fields.index("grad")


class Work:
    """Tensors that loops run over, again and again; their memory must outlive this."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.table = np.array(rows, np.int64).reshape(len(rows), len(Row._fields))
        self.elements = int(self.table[:, 0].sum())
        self._numbers = np.zeros(2)
        self._task = np.zeros(TASK_SIZE, np.int64)
        self._task[NUM_TENSORS], self._task[TABLE] = len(rows), self.table.ctypes.data
        self._task[NUMBERS] = self._numbers.ctypes.data

    def run(
        self,
        loop: Any,
        numbers: tuple[float, float],
        threads: int,
        *,
        centers: NDArray | None = None,
        sums: NDArray[np.int64] | None = None,
    ) -> bool:
        """Run a loop over the tensors; False if some block was outside its limit."""
        task = self._task
        self._numbers[:] = numbers
        if centers is not None:
            task[NUM_CENTERS], task[CENTERS] = centers.size, centers.ctypes.data
        if sums is not None:
            task[NUM_CENTERS], task[SUMS] = sums.size, sums.ctypes.data
        task[OUTSIDE] = 0
        share(loop, task, self.elements, min(threads, 1 + self.elements // (4 * BLOCK)))
        return bool(task[OUTSIDE] == 0)


@inlined
def _claim(task: Any, table: Any, place: Any) -> Any:
    """Find the next block that nobody works on: `place` is its tensor, first block, begin, end."""
    block = add_to(task, 0, 1)
    while place[0] < task[NUM_TENSORS]:
        size = table[place[0], 0]
        begin = (block - place[1]) * BLOCK
        if begin < size:
            place[2], place[3] = begin, min(begin + BLOCK, size)
            return True
        place[0] += 1
        place[1] += (size + BLOCK - 1) // BLOCK
    return False


@inlined_with_arrays
def _slice(table: Any, place: Any, column: Any, dtype: Any) -> Any:
    """The present block of one of the arrays of its tensor."""
    tensor = place[0]
    return array_at(table[tensor, column], table[tensor, 0], dtype)[place[2] : place[3]]


@cache
def pull(real: Any, index: Any, to_medians: bool) -> Any:
    """Add tying·(w − own center) + l1·sign(w) to the gradient; for medians, of (w − own) the sign.

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
        place = np.zeros(4, np.int64)
        while _claim(task, table, place):
            w, g = _slice(table, place, 1, real), _slice(table, place, 2, real)
            a = _slice(table, place, 3, index)
            for n in range(w.size):
                own[n] = centers[a[n]]
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
    """Add round(scale·w) to the sum of its cluster; blocks that are dead do not count.

    The two numbers are the scale and a limit: if such a term is not below it in magnitude, the
    block is outside and the sums are worth nothing (the scale is too large, or a weight is not
    finite). The limit is at most 2**51.
    """

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], 5), np.int64)
        numbers = array_at(task[NUMBERS], 2, np.float64)
        sums = array_at(task[SUMS], task[NUM_CENTERS], np.int64)
        scale, limit = numbers[0], numbers[1]
        terms = np.empty(BLOCK, np.float64)
        bits = terms.view(np.int64)
        rounded_zero = np.full(1, ROUNDING).view(np.int64)[0]
        partial = np.zeros((ROWS, sums.size), np.int64)
        place = np.zeros(4, np.int64)
        while _claim(task, table, place):
            w, a = _slice(table, place, 1, real), _slice(table, place, 3, index)
            dead = array_at(table[place[0], 4], table[place[0], 0], np.uint8)
            skips = table[place[0], 4] != 0
            outside = 0
            step = SUBBLOCK if skips else w.size
            for begin in range(0, w.size, step):
                if skips and dead[(place[2] + begin) // SUBBLOCK]:
                    continue
                part, own = w[begin : begin + step], a[begin : begin + step]
                for n in range(part.size):
                    term = np.float64(part[n]) * scale
                    outside |= 0 if abs(term) < limit else 1
                    terms[n] = term + ROUNDING
                for group in range(0, part.size - ROWS + 1, ROWS):
                    for row in range(ROWS):
                        partial[row, own[group + row]] += bits[group + row] - rounded_zero
                for n in range(part.size // ROWS * ROWS, part.size):
                    partial[0, own[n]] += bits[n] - rounded_zero
            if outside:
                add_to(task, OUTSIDE, 1)
        for k in range(sums.size):
            total = np.int64(0)
            for row in range(ROWS):
                total += partial[row, k]
            add_to(sums, k, total)

    return work


@cache
def project(real: Any, index: Any) -> Any:
    """Set each weight to its own center; in dead blocks, to zero without looking."""

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], 5), np.int64)
        centers = array_at(task[CENTERS], task[NUM_CENTERS], real)
        place = np.zeros(4, np.int64)
        while _claim(task, table, place):
            w, a = _slice(table, place, 1, real), _slice(table, place, 3, index)
            dead = array_at(table[place[0], 4], table[place[0], 0], np.uint8)
            skips = table[place[0], 4] != 0
            step = SUBBLOCK if skips else w.size
            for begin in range(0, w.size, step):
                part, own = w[begin : begin + step], a[begin : begin + step]
                if skips and dead[(place[2] + begin) // SUBBLOCK]:
                    part[:] = real(0)
                else:
                    for n in range(part.size):
                        part[n] = centers[own[n]]

    return work


@cache
def soft_threshold(real: Any) -> Any:
    """Move each weight towards zero by the first number, and to exactly zero if it would cross."""

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], 5), np.int64)
        threshold = real(array_at(task[NUMBERS], 2, np.float64)[0])
        place = np.zeros(4, np.int64)
        while _claim(task, table, place):
            w = _slice(table, place, 1, real)
            for n in range(w.size):
                above = max(w[n] - threshold, real(0))
                below = min(w[n] + threshold, real(0))
                w[n] = above + below

    return work
