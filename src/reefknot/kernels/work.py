"""Tensors as the compiled loops see them: a table of addresses, processed block by block.

Takes     the sizes and addresses of tensors.
Gives     the next free block to each thread that asks for one.
Unaware   of what is done with the blocks, and of torch.

Each thread has a lane: a contiguous part of every tensor, the same one that torch gives to that
thread in its own elementwise operations. So a thread finds its blocks in its own core's cache, and
not in another one's. A thread that is done with its lane helps with the others.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reefknot.kernels.jit import inlined_with_arrays
from reefknot.kernels.shared import add_to, array_at, share, thread_number

BLOCK = 4096
SUBBLOCK = 64  # skipped if all of it is in a fixed zero cluster
DIVIDED = 1 << 15  # torch divides larger tensors among its threads
LINE = 8  # int64s in a line of the cache

# The elements of a task; `shared` has the first two.
NUM_TENSORS, TABLE, NUM_CENTERS, CENTERS, NUMBERS, SUMS, COUNTER, LANES, NUM_LANES, TASK_SIZE = (
    range(2, 12)
)
# The elements of a thread's place: its tensor, begin and end of its block; and what `claim` needs.
TENSOR, BEGIN, END, LANE, EARLIER, VISITED, PLACE_SIZE = range(7)


class Row(NamedTuple):
    """A tensor: its size, and the addresses of the arrays that belong to it; 0 for none."""

    size: int
    weights: int
    grad: int
    assignment: int
    dead: int  # a byte for each sub-block: whether all of it is in the zero cluster


WEIGHTS, GRAD, ASSIGNMENT = map(Row._fields.index, ("weights", "grad", "assignment"))


class Work:
    """Tensors that loops run over repeatedly; their memory must outlive this object."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.table = np.array(rows, np.int64).reshape(len(rows), -1)  # sizes in the first column
        self.elements = int(self.table[:, 0].sum())
        self._numbers = np.zeros(3)  # for a loop
        self._task = np.zeros(TASK_SIZE, np.int64)
        self._task[NUM_TENSORS], self._task[TABLE] = len(rows), self.table.ctypes.data
        self._task[NUMBERS] = self._numbers.ctypes.data
        self._lanes = np.zeros(0, np.int64)  # for each lane, in a line of its own, its next block

    def run(
        self,
        loop: Any,
        numbers: tuple[float, ...],
        threads: int,
        *,
        centers: NDArray | None = None,
        sums: NDArray[np.int64] | None = None,
    ) -> int:
        """Run a loop over the tensors; gives what it has added to `COUNTER`."""
        task = self._task
        self._numbers[: len(numbers)] = numbers
        if centers is not None:
            centers = np.ascontiguousarray(centers)
            task[NUM_CENTERS], task[CENTERS] = centers.size, centers.ctypes.data
        if sums is not None:
            task[NUM_CENTERS], task[SUMS] = sums.size, sums.ctypes.data
        task[COUNTER] = 0
        threads = min(threads, 1 + self.elements // (4 * BLOCK))
        if len(self._lanes) != threads * LINE:
            self._lanes = np.zeros(threads * LINE, np.int64)
            task[LANES], task[NUM_LANES] = self._lanes.ctypes.data, threads
        self._lanes[:] = 0
        share(loop, task, self.elements, threads)
        return int(task[COUNTER])


@inlined_with_arrays
def first_place(task: Any) -> Any:
    """Where a thread begins: before the first block of its lane."""
    place = np.zeros(PLACE_SIZE, np.int64)
    place[LANE] = thread_number(task) % task[NUM_LANES]
    return place


@inlined_with_arrays
def claim(task: Any, table: Any, place: Any) -> Any:
    """Claim the next free block of the own lane, or of another one; False if none is left."""
    lanes, num_lanes = array_at(task[LANES], task[NUM_LANES] * LINE, np.int64), task[NUM_LANES]
    while place[VISITED] < num_lanes:
        lane = place[LANE]
        block = add_to(lanes, lane * LINE, 1)
        while place[TENSOR] < task[NUM_TENSORS]:
            size = table[place[TENSOR], 0]
            blocks = (size + BLOCK - 1) // BLOCK
            first, last = blocks * lane // num_lanes, blocks * (lane + 1) // num_lanes
            if size <= DIVIDED:
                first, last = np.int64(0), blocks if lane == 0 else np.int64(0)
            block_here = first + block - place[EARLIER]
            if block_here < last:
                place[BEGIN] = block_here * BLOCK
                place[END] = min(place[BEGIN] + BLOCK, size)
                return True
            place[TENSOR] += 1
            place[EARLIER] += last - first
        place[LANE] = (lane + 1) % num_lanes
        place[VISITED] += 1
        place[TENSOR] = place[EARLIER] = 0
    return False


@inlined_with_arrays
def block_of(table: Any, place: Any, column: Any, dtype: Any) -> Any:
    """The current block of one of its tensor's arrays."""
    tensor = place[TENSOR]
    return array_at(table[tensor, column], table[tensor, 0], dtype)[place[BEGIN] : place[END]]
