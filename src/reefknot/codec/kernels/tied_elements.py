"""Elements of a tied tensor: which of them are not the pivot (`tied_values` codes their values).

Takes     a matrix, and which of its lines are live.
Gives     the same matrix.
Unaware   of how maps are coded.
"""

import numpy as np

from reefknot.codec.kernels.prediction import (
    SEEN_ONE,
    away_from,
    counted,
    halved,
    learn,
    learn_and_count,
    learn_base,
    shrunk_of,
    squashed,
    stretched,
    vote,
    weighed,
)
from reefknot.codec.kernels.range_coder import (
    BUDGET,
    LOOKAHEAD,
    ON_VALUES,
    loaded,
    settled,
    spent,
    store,
)
from reefknot.codec.kernels.tied_model import (
    GRID,
    LEVEL_PAIR,
    LINE_MASK,
    LINES,
    MAGNITUDE,
    MASK_LR,
    MASK_W,
    NEAR,
    OWN_SLOTS,
    PLACE,
    active_at,
    place_at,
)
from reefknot.codec.kernels.tied_values import Neighbours, coded_value, trend_at
from reefknot.kernels.jit import inlined

SHARED_LIMIT = 32  # counts that are carried from tensor to tensor are halved until below this
ROOM_CHECK = 1023  # a mask: every 1,024 elements the end of the stream is checked for


@inlined
def recall(model):
    """Start the contexts of magnitudes from what the codebook's last tensor has left."""
    for k in range(OWN_SLOTS):
        seen_ones = np.int64(model.shared[k])
        while seen_ones >= SHARED_LIMIT * SEEN_ONE:
            seen_ones = halved(seen_ones)
        model.table[MAGNITUDE + k] = seen_ones


@inlined
def list_live(live, order, begin, number):
    """List the live ones of `number` lines, so that dead ones take no time; gives how many."""
    found = 0
    for b in range(number):
        if len(live) == 0 or live[np.uint64(begin + b)]:
            order[found] = b
            found += 1
    return found


@inlined
def neighbours(matrix, columns, here, c):
    """The five neighbours of an element, in either order of lines."""
    x, pivot, width, plane = matrix.x, matrix.pivot, columns.width, columns.plane
    left = np.int64(x[np.uint64(here - 1)]) if c > 0 else pivot
    up, up_right, up_left, behind = pivot, pivot, pivot, pivot
    if width > 0 and c >= width:
        up = np.int64(x[np.uint64(here - width)])
        if width > 1:
            up_right = np.int64(x[np.uint64(here - width + 1)])
        if c > width:
            up_left = np.int64(x[np.uint64(here - width - 1)])
    if plane > 0 and c >= plane:
        behind = np.int64(x[np.uint64(here - plane)])
    return Neighbours(left, up, up_right, up_left, behind)


@inlined
def mask_slots(matrix, columns, near, here, r, c):
    """The contexts by neighbours and by place, and how many of four neighbours differ."""
    pivot = matrix.pivot
    left, up = np.int64(near.left != pivot), np.int64(near.up != pivot)
    right, corner = np.int64(near.up_right != pivot), np.int64(near.up_left != pivot)
    behind = np.int64(near.behind != pivot)
    by_grid = GRID + left + 2 * up + 4 * right + 8 * corner + 16 * behind
    active = active_at(columns, c)
    if columns.plane > 0:
        by_place = PLACE + 16 * place_at(columns, c) + active
    else:
        above = np.int64(matrix.x[np.uint64(here - matrix.columns)]) if r > 0 else pivot
        by_place = NEAR + left + 2 * np.int64(above != pivot) + 4 * active
    return by_grid, by_place, left + up + right + corner


@inlined
def learn_mask(weights, first, table, origin, votes, from_line, error, bit):
    """Learn from a mask bit."""
    learn_base(weights, first, origin, error)
    learn(weights, first + 1, from_line, error)
    learn_and_count(weights, first + 2, table, votes[0], error, bit)
    learn_and_count(weights, first + 3, table, votes[1], error, bit)
    learn_and_count(weights, first + 4, table, votes[2], error, bit)
    learn_and_count(weights, first + 5, table, votes[3], error, bit)


@inlined
def coded_mask(encoding, buffer, interval, differs, base, line, model, slots):
    """Whether an element is not the pivot.

    `line` is the context of its line, `slots` has those of the line across, of the neighbours and
    of the place, and how many neighbours differ. The context of both lines' levels follows.
    """
    cross, by_grid, by_place, many = slots
    weights, table = model.weights, model.table
    origin = stretched(base)
    from_line = away_from(origin, line, 6, base)
    across = vote(table, cross, 24, base, origin)
    level = 16 * min((across.away + origin + 1792) >> 7, 15)
    level += min((from_line + origin + 1792) >> 7, 15)
    around = vote(table, by_grid, 4, base, origin)
    levels = vote(table, LEVEL_PAIR + level, 16, base, origin)
    here = vote(table, by_place, 6, base, origin)
    first = MASK_W + 6 * min(2, many)
    p = squashed(
        weighed(weights, first, origin)
        + weighed(weights, first + 1, from_line)
        + weighed(weights, first + 2, across.away)
        + weighed(weights, first + 3, around.away)
        + weighed(weights, first + 4, levels.away)
        + weighed(weights, first + 5, here.away)
    )
    votes = (across, around, levels, here)
    size, low, at = interval
    bound = (size >> 16) * p
    # Both branches are written out, so that what follows need not wait for the bit.
    if not (differs if encoding else low < bound):
        low += bound if encoding else -bound
        interval = settled(encoding, buffer, size - bound, low, at)
        learn_mask(weights, first, table, origin, votes, from_line, -p * MASK_LR, 0)
        return False, interval
    interval = settled(encoding, buffer, bound, low, at)
    learn_mask(weights, first, table, origin, votes, from_line, (65536 - p) * MASK_LR, 1)
    return True, interval


@inlined
def code_elements(encoding, coder, buffer, matrix, columns, model, lines):
    """Code the elements of live lines; a loop each for the two constant values of `encoding`."""
    x, rows, by_column, live = matrix.x, matrix.rows, lines.by_column, lines.live
    outer = matrix.columns if by_column else rows
    inner = rows if by_column else matrix.columns
    outer_live, inner_live = (rows, 0) if by_column else (0, rows)  # where these begin in `live`
    listed = inner <= len(lines.order)
    if listed:
        inner = list_live(live, lines.order, inner_live, inner)
    recall(model)
    interval = loaded(coder)
    last = len(buffer) + LOOKAHEAD
    total, budget, on_values = np.int64(0), coder[BUDGET], np.int64(0)
    for a in range(outer):
        if interval.at > last or budget < 0:
            break
        if len(live) > 0 and not live[outer_live + a]:
            continue
        line = np.int64(0)
        base = shrunk_of(total, 4, 6554)
        for i in range(inner):
            if (i & ROOM_CHECK) == 0 and interval.at > last:
                break
            b = np.int64(lines.order[np.uint64(i)]) if listed else i
            if not listed and len(live) > 0 and not live[np.uint64(inner_live + b)]:
                continue
            r, c = (b, a) if by_column else (a, b)
            here = r * matrix.columns + c
            near = neighbours(matrix, columns, here, c)
            by_grid, by_place, many = mask_slots(matrix, columns, near, here, r, c)
            differs, interval = coded_mask(
                encoding, buffer, interval, x[np.uint64(here)] != matrix.pivot, base, line, model,
                (LINES + (b & LINE_MASK), by_grid, by_place, many),
            )  # fmt: skip
            if not differs:
                line, total = counted(line, 0), counted(total, 0)
                continue
            line, total = counted(line, 1), counted(total, 1)
            budget -= 1
            if budget < 0:
                break
            if not encoding:
                on_values -= spent(interval)
            trend = trend_at(matrix, near, columns.width, here, c)
            goal = np.int64(x[np.uint64(here)])
            x[np.uint64(here)], interval = coded_value(
                encoding, buffer, interval, goal, matrix, trend, model, lines.rank, r
            )
            if not encoding:
                on_values += spent(interval)
    for k in range(OWN_SLOTS):
        model.shared[k] = model.table[MAGNITUDE + k]
    coder[BUDGET] = budget
    coder[ON_VALUES] += on_values
    store(coder, interval)
