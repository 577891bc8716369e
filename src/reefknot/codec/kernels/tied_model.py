"""How the loops see a tied tensor: its matrix, its columns, and the contexts of its model.

Takes     arrays that the caller has made.
Gives     them grouped by what they are about, and the places of all contexts and weights.
Unaware   of the coder.
"""

from typing import NamedTuple

import numpy as np

from reefknot.codec.kernels.tables import LENGTH
from reefknot.kernels.jit import inlined

# Contexts in the table of one tensor; those of the lines across follow from LINES on.
SIGN_BASE, ROW_FLAG, COLUMN_FLAG = 0, 1, 8
GRID, NEAR, LEVEL_PAIR, PLACE = 64, 96, 3136, 3392
SIGNED = 132
MAGNITUDE, NEAR_MAGNITUDE, ROW_MAGNITUDE, PAIR_MAGNITUDE = 192, 320, 1088, 2112
LINES = 4416
LINE_MASK = (1 << 20) - 1  # tensors with more lines than this share contexts
OWN_SLOTS = 128  # of magnitudes, remembered from tensor to tensor

# Mixer weights, and what they are at first (in 1/100).
COLUMN_FLAG_W, MASK_W, MAGNITUDE_W = 0, 4, 22
FIRST_WEIGHTS = [100, 45, 33, 45] + [100, 46, 50, 45, 45, 40] * 3 + [90, 40, 40, 55] * 3
FLAG_LR, MASK_LR, MAGNITUDE_LR = 24, 14, 20


class Matrix(NamedTuple):
    """Indices below `values`, almost all of which are `pivot`; a decoder's are all the pivot."""

    x: np.ndarray  # row by row
    rows: int
    columns: int
    pivot: int
    values: int


class Columns(NamedTuple):
    """How the columns are laid out in space, and which units of the layer before they belong to."""

    width: int  # of a line; 0 without a grid
    plane: int  # elements of a plane; 0 without planes
    units: np.ndarray  # elements that are not the pivot in each row of the layer before
    group: int  # columns of a unit; 0 without units
    about: np.ndarray  # how active the input of each column is (0 to 8), and its place in the
    # plane (0 to 63); empty to save memory


class Model(NamedTuple):
    """What predicts a tensor."""

    weights: np.ndarray  # of the mixers
    table: np.ndarray  # contexts, fresh for each tensor
    shared: np.ndarray  # contexts of magnitudes, left by the last tensor of this codebook
    deep: np.ndarray  # contexts of magnitudes from the seventh bit on


class Lines(NamedTuple):
    """What is known of each row and column while a tensor is coded."""

    by_column: int
    live: np.ndarray  # whether each row, then each column, holds anything; empty without maps
    order: np.ndarray  # room for the numbers of the live lines
    rank: np.ndarray  # of each row: the sum of its distances from the pivot, and their number


def signature(index):
    """The numba types of (coder, buffer, Matrix, Columns, Model, Lines) for a dtype of indices."""
    from numba import int32, int64, types, uint8, uint32
    from numba.np.numpy_support import from_dtype

    index = from_dtype(index)
    return types.void(
        int64[::1],
        uint8[::1],
        types.NamedTuple((index[::1], int64, int64, int64, int64), Matrix),
        types.NamedTuple((int64, int64, int64[::1], int64, uint8[:, ::1]), Columns),
        types.NamedTuple((int64[::1], uint32[::1], uint32[::1], uint32[::1]), Model),
        types.NamedTuple((int64, uint8[::1], int32[::1], int64[:, ::1]), Lines),
    )


@inlined
def bucket(n):
    """The bit length of n, at most 7."""
    return np.int64(LENGTH[min(n, 64)])


@inlined
def active_at(columns, c):
    """How active the input of a column is, 0 to 8."""
    if len(columns.about) > 0:
        return np.int64(columns.about[np.uint64(c), 0])
    if columns.group > 0:
        return 1 + bucket(columns.units[np.uint64(c // columns.group)])
    return 0


@inlined
def place_at(columns, c):
    """Where in its plane a column is, at most 63."""
    if len(columns.about) > 0:
        return np.int64(columns.about[np.uint64(c), 1])
    return min(c % columns.plane, 63)
