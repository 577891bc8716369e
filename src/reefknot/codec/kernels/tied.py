"""Tied tensors: a matrix of indices, almost all of which are one and the same.

Takes     the matrix and its model (`tied_model`).
Gives     the matrix, decoded where the coder decodes.
Unaware   of shapes and of what the indices stand for.
"""

from numba import uint8, uint16

from reefknot.codec.kernels.range_coder import ENCODING
from reefknot.codec.kernels.tied_elements import code_elements
from reefknot.codec.kernels.tied_maps import code_maps
from reefknot.codec.kernels.tied_model import describe, signature
from reefknot.kernels.jit import compiled


@compiled(signature(uint8), signature(uint16), allocates=False)
def code_tied(coder, buffer, matrix, columns, model, lines):
    """Code a matrix. The table of its model comes empty; `lines.rank`, too."""
    describe(columns)
    lines.live[:] = 1
    if coder[ENCODING]:
        if len(lines.live) > 0:
            code_maps(True, coder, buffer, matrix, columns, model, lines.live)
        code_elements(True, coder, buffer, matrix, columns, model, lines)
    else:
        if len(lines.live) > 0:
            code_maps(False, coder, buffer, matrix, columns, model, lines.live)
        code_elements(False, coder, buffer, matrix, columns, model, lines)
