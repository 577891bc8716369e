"""What a non-zero weight costs in the file, place by place: roughly, and in closed form.

Takes     which elements of a tensor are not zero.
Gives     the bits that a non-zero element takes, or would take, in each place.
Unaware   of the coder, whose contexts (how full the row and the column are) it imitates.

A weight in a row and a column that are full of others is cheap, a lonely one is expensive, and a
row or column without any is nearly free. So a price on these bits empties rows and columns.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

VALUE_BITS = 3.0  # for sign and magnitude
_PRIOR = 4.0  # elements of average density that each row and column is thought to have besides


def nonzero_bits(alive: Tensor) -> Tensor:
    """The bits of a non-zero in each place of a tensor, of its shape.

    The odds of row and column are multiplied and divided by those of the tensor. The first
    dimension makes the rows, as in the file; a tensor of one dimension is one row.
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
