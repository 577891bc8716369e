"""Maps of a tied tensor: which rows and which columns hold anything but the pivot.

Takes     a matrix.
Gives     a byte for each row, then for each column: 1 if it is live.
Unaware   of the elements of live lines.
"""

import numpy as np

from reefknot.codec.kernels.prediction import coded_three, count, shrunk
from reefknot.codec.kernels.range_coder import LOOKAHEAD, coded, loaded, store
from reefknot.codec.kernels.tied_model import (
    COLUMN_FLAG,
    COLUMN_FLAG_W,
    FLAG_LR,
    ROW_FLAG,
    active_at,
)
from reefknot.kernels.jit import inlined


@inlined
def holds_anything(matrix, begin, step, number):
    """Whether any of `number` elements, `step` apart, is not the pivot: 0 or 1."""
    for i in range(number):
        if matrix.x[np.uint64(begin + i * step)] != matrix.pivot:
            return np.int64(1)
    return np.int64(0)


@inlined
def column_slots(columns, live, here, c):
    """The three contexts of a column's flag, live[here]; and its input's activity, at most 2."""
    width, plane = columns.width, columns.plane
    left = np.int64(live[np.uint64(here - 1)]) if c > 0 else 0
    up, corners, behind = 0, 0, 0
    if width > 0 and c >= width:
        up = np.int64(live[np.uint64(here - width)])
        corners = np.int64(live[np.uint64(here - width + 1)]) if width > 1 else 0
        if c > width:
            corners += np.int64(live[np.uint64(here - width - 1)])
    if plane > 0 and c >= plane:
        behind = np.int64(live[np.uint64(here - plane)])
    active = active_at(columns, c)
    known = min(active, 2)
    slots = (
        COLUMN_FLAG + 3 + known * 4 + left * 2 + up,
        COLUMN_FLAG + 15 + left + up + corners + 5 * known + 15 * behind,
        COLUMN_FLAG + 45 + active,
    )
    return slots, known


@inlined
def code_maps(encoding, coder, buffer, matrix, columns, model, live):
    """Code both maps; a loop each for the two constant values of `encoding`."""
    table = model.table
    interval = loaded(coder)
    last = len(buffer) + LOOKAHEAD
    bit = np.int64(0)
    for r in range(matrix.rows):
        if interval.at > last:
            break
        slot = ROW_FLAG + 1 + bit
        bit = np.int64(0)
        if encoding:
            bit = holds_anything(matrix, r * matrix.columns, 1, matrix.columns)
        p = shrunk(table, slot, 8, shrunk(table, ROW_FLAG, 2, 20000))
        bit, interval = coded(encoding, buffer, interval, bit, p)
        count(table, ROW_FLAG, bit)
        count(table, slot, bit)
        live[r] = bit
    for c in range(matrix.columns):
        if interval.at > last:
            break
        bit = np.int64(0)
        if encoding:
            bit = holds_anything(matrix, c, matrix.columns, matrix.rows)
        slots, known = column_slots(columns, live, matrix.rows + c, c)
        bit, interval = coded_three(
            encoding, buffer, interval, bit, shrunk(table, COLUMN_FLAG + known, 2, 32768),
            table, slots, (4, 4, 4), model.weights, COLUMN_FLAG_W, FLAG_LR,
        )  # fmt: skip
        count(table, COLUMN_FLAG + known, bit)
        live[np.uint64(matrix.rows + c)] = bit
    store(coder, interval)
