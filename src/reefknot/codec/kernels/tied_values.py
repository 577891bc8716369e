"""Values of a tied tensor: which side of the pivot an element is on, and how far from it.

Takes     an element that is not the pivot, and its neighbours.
Gives     its value.
Unaware   of the order in which elements come.
"""

from typing import NamedTuple

import numpy as np

from reefknot.codec.kernels.prediction import coded_three, count, shrunk
from reefknot.codec.kernels.range_coder import coded
from reefknot.codec.kernels.tables import PAIR_BUCKET, PULL_BUCKET, STRENGTH
from reefknot.codec.kernels.tied_model import (
    LINE_MASK,
    MAGNITUDE,
    MAGNITUDE_LR,
    MAGNITUDE_W,
    NEAR_MAGNITUDE,
    PAIR_MAGNITUDE,
    ROW_MAGNITUDE,
    SIGN_BASE,
    SIGNED,
)
from reefknot.kernels.jit import inlined


class Neighbours(NamedTuple):
    """Five elements of the same row that are already coded; the pivot where there is none."""

    left: int
    up: int
    up_right: int
    up_left: int
    behind: int


class Trend(NamedTuple):
    """Sums over the neighbours, as distances above the pivot, from which a value is predicted."""

    pair: int  # left and up
    pull: int  # all five, the nearest two weighted more
    ring: int  # the elements around them


@inlined
def ring_around(matrix, width, here, c):
    """The sum over the elements around the neighbours."""
    x, pivot, ring = matrix.x, matrix.pivot, np.int64(0)
    if c > 1:
        ring += np.int64(x[np.uint64(here - 2)]) - pivot
    if width > 2:
        if c >= width + 2:
            ring += np.int64(x[np.uint64(here - width - 2)]) - pivot
        if c >= width:
            ring += np.int64(x[np.uint64(here - width + 2)]) - pivot
        for k in range(-2, 3):
            if c >= 2 * width - k:
                ring += np.int64(x[np.uint64(here - 2 * width + k)]) - pivot
    return ring


@inlined
def trend_at(matrix, near, width, here, c):
    """The sums over the neighbours of an element."""
    pair = near.left + near.up - 2 * matrix.pivot
    pull = 2 * pair + near.up_right + near.up_left + near.behind - 3 * matrix.pivot
    return Trend(pair, pull, ring_around(matrix, width, here, c))


@inlined
def coded_side(encoding, buffer, interval, above, table, trend):
    """Whether an element is above the pivot."""
    strength = np.int64(STRENGTH[np.uint64(min(max(trend.pull, -64), 64) + 64)])
    slot = SIGNED + 1 + 3 * strength + np.int64(trend.ring > 0) - np.int64(trend.ring < 0)
    p = shrunk(table, slot, 4, shrunk(table, SIGN_BASE, 4, 32768))
    above, interval = coded(encoding, buffer, interval, above, p)
    count(table, slot, above)
    count(table, SIGN_BASE, above)
    return above, interval


@inlined
def row_bucket(rank, row, choices):
    """The mean distance of a row's elements from the pivot so far, as a bucket from 0 to 7."""
    found = np.int64(0)
    if rank[np.uint64(row), 1] > 0:
        step, many = rank[np.uint64(row), 1] * choices, rank[np.uint64(row), 0] * 8
        for k in range(7):
            found += np.int64(many >= k * step)
    return found


@inlined
def distance_slots(trend, upper, usual):
    """Where the contexts of a distance begin: by pull, by row, by pair."""
    pair, pull, ring = trend
    if not upper:
        pair, pull, ring = -pair, -pull, -ring
    pull += ring >> 1
    near = np.int64(PULL_BUCKET[np.uint64(min(max(pull, 0), 31))])
    close = np.int64(PAIR_BUCKET[np.uint64(min(max(pair, -4), 16) + 4)])
    return (
        NEAR_MAGNITUDE + 128 * near,
        ROW_MAGNITUDE + 128 * usual,
        PAIR_MAGNITUDE + 128 * close,
    )


@inlined
def coded_distance(encoding, buffer, interval, goal, choices, upper, slots, model):
    """A number below `choices`, bit by bit from the top."""
    table, deep = model.table, model.deep
    bits = 0
    while (np.int64(1) << bits) < choices:
        bits += 1
    node, done = np.int64(1), np.int64(0)
    for j in range(bits - 1, -1, -1):
        if done + (np.int64(1) << j) >= choices:  # nothing lies in the upper half
            node *= 2
            continue
        bit = (goal >> j) & 1
        if node >= 64:
            slot = (upper << bits) + node
            bit, interval = coded(encoding, buffer, interval, bit, shrunk(deep, slot, 2, 32768))
            count(deep, slot, bit)
        else:
            own = upper * 64 + node
            bit, interval = coded_three(
                encoding, buffer, interval, bit, shrunk(table, MAGNITUDE + own, 2, 32768), table,
                (slots[0] + own, slots[1] + own, slots[2] + own), (8, 8, 16),
                model.weights, MAGNITUDE_W + 4 * min(node - 1, 2), MAGNITUDE_LR,
            )  # fmt: skip
            count(table, MAGNITUDE + own, bit)
        done += bit << j
        node = node * 2 + bit
    return done, interval


@inlined
def coded_value(encoding, buffer, interval, goal, matrix, trend, model, rank, r):
    """The index of an element that is not the pivot."""
    pivot, values = matrix.pivot, matrix.values
    upper = np.int64(pivot == 0)
    if pivot > 0 and pivot < values - 1:
        above = np.int64(goal > pivot)
        upper, interval = coded_side(encoding, buffer, interval, above, model.table, trend)
    choices = values - 1 - pivot if upper else pivot
    distance = np.int64(0)
    if encoding:
        distance = goal - pivot - 1 if upper else pivot - 1 - goal
    row = r & LINE_MASK
    slots = distance_slots(trend, upper, row_bucket(rank, row, choices))
    distance, interval = coded_distance(
        encoding, buffer, interval, distance, choices, upper, slots, model
    )
    rank[np.uint64(row), 0] += distance
    rank[np.uint64(row), 1] += 1
    return pivot + 1 + distance if upper else pivot - 1 - distance, interval
