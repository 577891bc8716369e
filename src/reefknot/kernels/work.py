"""Tensors as the compiled loops see them: a table of addresses, processed block by block.

Takes     the sizes and addresses of tensors.
Gives     the next free block to each thread that asks for one.
Unaware   of what is done with the blocks, and of torch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reefknot.kernels.jit import inlined, inlined_with_arrays
from reefknot.kernels.shared import add_to, array_at, share
from reefknot.kernels.vectors import TABLE_SIZE

BLOCK = 4096
SUBBLOCK = 64  # skipped if all of it is in a fixed zero cluster

# The elements of a task; element 0 is the number of the next block.
NUM_TENSORS, TABLE, NUM_CENTERS, CENTERS, NUMBERS, SUMS, OUTSIDE, TASK_SIZE = range(1, 9)


class Row(NamedTuple):
    """A tensor: its size, and the addresses of the arrays that belong to it; 0 for none."""

    size: int
    weights: int
    grad: int
    assignment: int
    dead: int  # a byte for each sub-block: whether all of it is in the zero cluster


WEIGHTS, GRAD = Row._fields.index("weights"), Row._fields.index("grad")


class Work:
    """Tensors that loops run over repeatedly; their memory must outlive this object."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.table = np.array(rows, np.int64).reshape(len(rows), len(Row._fields))
        self.elements = int(self.table[:, 0].sum())
        self._numbers = np.zeros(3)
        self._task = np.zeros(TASK_SIZE, np.int64)
        self._task[NUM_TENSORS], self._task[TABLE] = len(rows), self.table.ctypes.data
        self._task[NUMBERS] = self._numbers.ctypes.data

    def run(
        self,
        loop: Any,
        numbers: tuple[float, ...],
        threads: int,
        *,
        centers: NDArray | None = None,
        sums: NDArray[np.int64] | None = None,
    ) -> int:
        """Run a loop over the tensors; gives the loop's counter (`OUTSIDE`)."""
        task = self._task
        self._numbers[: len(numbers)] = numbers
        if centers is not None:
            table = np.zeros(max(centers.size, TABLE_SIZE), centers.dtype)
            table[: centers.size] = centers
            task[NUM_CENTERS], task[CENTERS] = centers.size, table.ctypes.data
        if sums is not None:
            task[NUM_CENTERS], task[SUMS] = sums.size, sums.ctypes.data
        task[OUTSIDE] = 0
        share(loop, task, self.elements, min(threads, 1 + self.elements // (4 * BLOCK)))
        return int(task[OUTSIDE])


@inlined
def claim(task: Any, table: Any, place: Any) -> Any:
    """Claim the next free block: `place` becomes its tensor, first block, begin, end."""
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
def block_of(table: Any, place: Any, column: Any, dtype: Any) -> Any:
    """The current block of one of its tensor's arrays."""
    tensor = place[0]
    return array_at(table[tensor, column], table[tensor, 0], dtype)[place[2] : place[3]]
