"""An estimate of the bits that a non-zero weight costs in the file, for each position.

Takes     which elements of a tensor are not zero.
Gives     the bits that a non-zero element costs, or would cost, in each position.
Unaware   of the coder, whose contexts (how full the row and the column are) it imitates.

A weight in a full row and column is cheap, an isolated one is expensive, and an empty row or column
is nearly free. So a price on these bits empties rows and columns.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

VALUE_BITS = 3.0  # for sign and magnitude
_PRIOR = 4.0  # pseudo-counts: elements of average density added to each row and column


def nonzero_bits(alive: Tensor) -> Tensor:
    """The bits of a non-zero in each position of a tensor, in its shape.

    The odds of a non-zero are those of its row times those of its column, divided by those of the
    tensor. The first dimension is the rows, as in the file; a vector is one row.
    """
    matrix = alive.reshape(len(alive), -1) if alive.ndim > 1 else alive.reshape(1, -1)
    matrix = matrix.to(torch.float32)
    rows, columns = matrix.shape
    whole = (matrix.sum() + 1) / (matrix.numel() + 10)
    row = (matrix.sum(1, keepdim=True) + _PRIOR * whole) / (columns + _PRIOR)
    column = (matrix.sum(0, keepdim=True) + _PRIOR * whole) / (rows + _PRIOR)
    odds = _logit(row) + _logit(column) - _logit(whole)
    return (softplus(-odds) / math.log(2) + VALUE_BITS).reshape(alive.shape)


def _logit(share: Tensor) -> Tensor:
    return torch.logit(share.clamp(1e-5, 1 - 1e-3))
