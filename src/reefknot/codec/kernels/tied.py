"""Tied tensors: a matrix of indices, almost all of which are one and the same.

Takes     the type of the indices, and which way to go.
Gives     the loops that code the maps of a matrix, and its elements.
Unaware   of shapes and of what the indices stand for.

There is a loop for each type and each way: who only reads does not compile a writer.
"""

from functools import cache, partial

import numpy as np

from reefknot.codec.kernels.tied_elements import code_elements
from reefknot.codec.kernels.tied_maps import code_maps
from reefknot.codec.kernels.tied_model import signature
from reefknot.kernels.jit import compiled


@cache
def maps_loop(index, encoding):
    """Code which lines are live, from a model whose table is empty."""

    @compiled(partial(signature, index), allocates=False, steps=_steps_of_maps)
    def loop(coder, buffer, matrix, columns, model, lines):
        code_maps(encoding, coder, buffer, matrix, columns, model, lines.live)

    return loop


@cache
def elements_loop(index, encoding):
    """Code the elements of live lines; `lines.rank` comes empty."""

    @compiled(partial(signature, index), allocates=False, steps=_steps_of_elements)
    def loop(coder, buffer, matrix, columns, model, lines):
        code_elements(encoding, coder, buffer, matrix, columns, model, lines)

    return loop


def _steps_of_maps(coder, buffer, matrix, columns, model, lines):
    return 2 * (matrix.rows + matrix.columns) + len(matrix.x) // 32


def _steps_of_elements(coder, buffer, matrix, columns, model, lines):
    live = lines.live
    rows, across = matrix.rows, matrix.columns
    if len(live) > 0:
        rows, across = np.count_nonzero(live[:rows]), np.count_nonzero(live[rows:])
    return 40 + rows * across * (2 + int(matrix.values).bit_length()) + len(live) // 32
