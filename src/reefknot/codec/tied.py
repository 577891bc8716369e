"""Tied tensors: indices into a codebook, coded by the adaptive model (`tight`).

Takes     a matrix of indices, and what the model has learned from the tensors before it.
Gives     the same matrix; a writer also picks scan order and grid, by trying them all.
Unaware   of files and codebook values.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from reefknot.codec.coder import Coder
from reefknot.codec.kernels import tied_model as k
from reefknot.codec.kernels.tables import LENGTH
from reefknot.codec.kernels.tied import elements_loop, maps_loop
from reefknot.errors import FormatError

NO_GRID, KERNEL, IMAGE, IMAGE_RGB, UNITS = range(5)  # how the columns are laid out in space


MAX_UNITS = 1 << 20  # the activity of a layer with more outputs is not used for the next one


class Plan(NamedTuple):
    """The choices for one tensor, which are written before it."""

    by_column: bool
    maps: bool
    grid: int


@dataclass
class Memory:
    """What is carried from tensor to tensor of one stream."""

    weights: np.ndarray = field(
        default_factory=lambda: np.array(k.FIRST_WEIGHTS, np.int64) * 65536 // 100
    )
    shared: dict[int, np.ndarray] = field(
        default_factory=dict
    )  # by codebook: magnitudes seen so far
    activity: np.ndarray = field(
        default_factory=lambda: np.zeros(0, np.int64)
    )  # of the last layer's units

    def copy(self, codebook: int) -> "Memory":
        """An independent copy, as far as a tensor of this codebook can change it."""
        shared = dict(self.shared)
        if codebook in shared:
            shared[codebook] = shared[codebook].copy()
        return Memory(self.weights.copy(), shared, self.activity)


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor: its first dimension against the others, or one row."""
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def grid_of(kind: int, shape: tuple[int, ...], num_units: int) -> tuple[int, int] | None:
    """Width of a line, size of a plane in the columns of a tensor; None where it does not fit."""
    columns = matrix_shape(shape)[1]
    if kind == NO_GRID:
        return 0, 0
    if kind == KERNEL:
        return (shape[-1], shape[-1] * shape[-2]) if len(shape) > 3 else None
    channels = {IMAGE: 1, IMAGE_RGB: 3, UNITS: num_units}[kind]
    if channels < 1 or columns % channels or (kind == UNITS and channels == columns):
        return None
    width = math.isqrt(columns // channels)
    if width < 2 or width * width * channels != columns:
        return None
    return width, 0 if channels == 1 else width * width


def code_tensor(
    coder: Coder, shape: tuple[int, ...], indices: np.ndarray | None, *,
    pivot: int, size: int, codebook: int, memory: Memory,
) -> np.ndarray:  # fmt: skip
    """Code a tensor of indices below `size`; a reader passes None and gets it back.

    `pivot` is the index that most elements have, zero in a sparse network.
    """
    rows, columns = matrix_shape(shape)
    kind = np.uint8 if size <= 256 else np.uint16
    if not rows * columns or size <= 1:
        nothing = np.zeros(shape, kind)
        nothing.flags.writeable = False
        return nothing
    units = (
        memory.activity
        if len(memory.activity) and columns % len(memory.activity) == 0
        else _NO_UNITS
    )
    if indices is None:
        x, plan = np.full((rows, columns), pivot, kind), Plan(False, False, NO_GRID)
        counts = _code_with(coder, x, shape, plan, pivot, size, codebook, memory, units)
    else:
        x = np.array(indices, kind, order="C").reshape(rows, columns)
        coder.grow(
            1024 + 4 * (rows + columns) + x.size // 2 + 12 * int(np.count_nonzero(x != pivot))
        )
        counts = _code_by_best_plan(coder, x, shape, pivot, size, codebook, memory, units)
    coder.check()
    if len(shape) > 1:
        memory.activity = counts if rows <= MAX_UNITS else _NO_UNITS
    x.flags.writeable = False
    return x.reshape(shape)


_NO_UNITS = np.zeros(0, np.int64)


def _plans(x: np.ndarray, shape: tuple[int, ...], pivot: int, num_units: int) -> Iterator[Plan]:
    alive = x != pivot
    maps = min(x.shape) > 1 and not (alive.any(0).all() and alive.any(1).all())
    seen = set()
    for grid in (NO_GRID, KERNEL, IMAGE, IMAGE_RGB, UNITS):
        lines = grid_of(grid, shape, num_units)
        if lines is not None and lines not in seen:
            seen.add(lines)
            for by_column in (False, True) if min(x.shape) > 1 else (False,):
                yield Plan(by_column, maps, grid)


def _code_by_best_plan(
    coder: Coder, x: np.ndarray, shape: tuple[int, ...], pivot: int, size: int, codebook: int,
    memory: Memory, units: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Code a tensor by each plan and keep the shortest; gives what `_code_with` gives."""
    plans = list(_plans(x, shape, pivot, len(units)))
    if len(plans) == 1:
        return _code_with(coder, x, shape, plans[0], pivot, size, codebook, memory, units)
    mark, least = coder.mark(), None
    for plan in plans:
        learned = memory.copy(codebook)
        counts = _code_with(coder, x, shape, plan, pivot, size, codebook, learned, units)
        if least is None or coder.spent() < least:
            least, best = coder.spent(), (counts, learned, coder.mark())
        coder.back(mark)
    counts, learned, mark = best
    coder.back(mark)
    memory.weights, memory.shared = learned.weights, learned.shared
    return counts


def _code_with(
    coder: Coder, x: np.ndarray, shape: tuple[int, ...], plan: Plan, pivot: int, size: int,
    codebook: int, memory: Memory, units: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Code a tensor by this plan; gives how many elements of each row are not the pivot."""
    rows, columns = x.shape
    by_column = maps = False
    if min(rows, columns) > 1:
        by_column = coder.flag(plan.by_column, "by column")
        maps = coder.flag(plan.maps, "maps", base=60000)
    grid = NO_GRID
    while grid < UNITS and coder.flag(plan.grid > grid, "grid", grid + 8 * min(len(shape), 4)):
        grid += 1
    lines = grid_of(grid, shape, len(units))
    if lines is None:
        raise FormatError(f"a tensor of shape {shape} cannot lie on grid {grid}")
    width, plane = lines
    bits = max(pivot, size - 1 - pivot).bit_length()
    row_slots, column_slots = min(rows, k.LINE_MASK + 1), min(columns, k.LINE_MASK + 1)
    rank = np.zeros((row_slots, 2), np.int64)
    group = columns // len(units) if len(units) else 0
    arguments = (
        coder.state,
        coder.buffer,
        k.Matrix(x.reshape(-1), rows, columns, pivot, size),
        k.Columns(width, plane, units, group, _about(columns, units, plane)),
        k.Model(
            memory.weights,
            table=np.zeros(k.LINES + (row_slots if by_column else column_slots), np.uint32),
            shared=memory.shared.setdefault(codebook, np.zeros(k.OWN_SLOTS, np.uint32)),
            deep=np.zeros((2 << bits) if bits > 6 else 1, np.uint32),
        ),
        k.Lines(
            int(by_column),
            live=np.ones(rows + columns if maps else 0, np.uint8),
            order=np.empty(min(max(rows, columns), k.LINE_MASK + 1), np.int32),
            rank=rank,
        ),
    )
    if maps:
        maps_loop(x.dtype, coder.writing)(*arguments)
    elements_loop(x.dtype, coder.writing)(*arguments)
    return rank[:, 1].copy()


def _about(columns: int, units: np.ndarray, plane: int) -> np.ndarray:
    """How active each column's input is (0 to 8), and its place in the plane (0 to 63)."""
    about = np.zeros((columns if columns <= k.LINE_MASK else 0, 2), np.uint8)
    if len(units) and len(about):
        activity = 1 + LENGTH[np.minimum(units, 64)]
        about[:, 0] = np.repeat(activity, columns // len(units))
    if plane and len(about):
        about[:, 1] = np.resize(np.minimum(np.arange(plane), 63), columns)
    return about
