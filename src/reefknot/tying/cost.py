"""An estimate of the bits that a non-zero weight costs in the file, for each position.

Takes     which elements of a tensor are not zero.
Gives     the bits that a non-zero element costs, or would cost, in each position.
Unaware   of the coder, whose contexts (how full the row and the column are) it imitates.

A weight in a full row and column is cheap, an isolated one is expensive, and an empty row or column
is nearly free. So a price on these bits empties rows and columns.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from reefknot.tying.collectives import ONE_PROCESS, Processes, places

VALUE_BITS = 3.0  # for sign and magnitude
_PRIOR = 4.0  # pseudo-counts: elements of average density added to each row and column
_BLOCK, _VECTOR = 1 << 15, 64  # see `_each`


def nonzero_bits(
    alive: Tensor, parameter: Tensor | None = None, processes: Processes = ONE_PROCESS
) -> Tensor:
    """The bits of a non-zero in each position of a tensor, in its shape.

    The odds of a non-zero are those of its row times those of its column, divided by those of the
    tensor. The first dimension is the rows, as in the file; a vector is one row. If `alive` is the
    local part of a sharded `parameter`, counts of rows and columns are sums over all `processes`.
    """
    matrix = _matrix(alive)
    row_counts, column_counts = matrix.sum(1), matrix.sum(0)
    if processes.is_distributed:
        assert parameter is not None
        row_counts, column_counts, here = _over_all(row_counts, column_counts, parameter, processes)
    rows, columns = len(row_counts), len(column_counts)
    whole = (row_counts.sum().float() + 1) / (rows * columns + 10)
    row = (row_counts.float()[:, None] + _PRIOR * whole) / (columns + _PRIOR)
    column = (column_counts.float()[None] + _PRIOR * whole) / (rows + _PRIOR)
    row, column, whole = _logit(row), _logit(column), _logit(whole)
    if processes.is_distributed:
        row, column = row[here[0]], column[:, here[1]]
    return (_each(softplus, whole - (row + column)) / math.log(2) + VALUE_BITS).reshape(alive.shape)


def _matrix(alive: Tensor) -> Tensor:
    """The rows and columns of a tensor."""
    shape = alive.shape if alive.ndim > 1 else (1, alive.numel())
    return alive.reshape(shape[0], math.prod(shape[1:]))


def _over_all(
    row_counts: Tensor, column_counts: Tensor, parameter: Tensor, processes: Processes
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """The counts of all rows and columns of a whole parameter, and which of them are here."""
    shape, indices = tuple(parameter.shape), places(parameter)
    if len(shape) < 2:
        shape, indices = (1, math.prod(shape)), [np.zeros(1, np.int64), *indices]
    columns = np.ravel_multi_index(np.ix_(*indices[1:]), shape[1:]).reshape(-1)
    counts = np.zeros(shape[0] + math.prod(shape[1:]), np.int64)
    counts[indices[0]] = row_counts.cpu().numpy()
    counts[shape[0] + columns] = column_counts.cpu().numpy()
    device = row_counts.device
    found = torch.from_numpy(processes.total(counts)).to(device)
    here = torch.from_numpy(indices[0]).to(device), torch.from_numpy(columns).to(device)
    return found[: shape[0]], found[shape[0] :], here


def _logit(share: Tensor) -> Tensor:
    return _each(torch.logit, share.clamp(1e-5, 1 - 1e-3))


def _each(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """A function of each element, the same wherever the element stands.

    On the CPU torch computes most elements by vectors and the last few, of each thread, one by
    one, which may differ in the last bit. Blocks that one thread does, in full vectors, have none.
    """
    if values.device.type != "cpu":
        return function(values)
    row = values.reshape(-1)
    blocks = [function(_padded(block))[: len(block)] for block in row.split(_BLOCK)]
    return torch.cat(blocks).reshape(values.shape) if blocks else row.reshape(values.shape)


def _padded(block: Tensor) -> Tensor:
    missing = -len(block) % _VECTOR
    return pad(block, (0, missing), value=0.5) if missing else block
