"""Look-up tables, such as embeddings: how often inputs read each row, and what that is worth.

Takes     a model and batches of calibration inputs; a table and how often its rows are read.
Gives     counts for each table, and new elements that are multiples of one step.
Unaware   of products, budgets and files.

An error in a row does harm as often as the row is read. So rows that are read often have a smaller
step, by a power of two, which keeps all values multiples of the smallest one. Calibration inputs
read a small part of a vocabulary: a row that they do not read is assumed to be read as often as
those read once suggest (Good 1953), and has a step at most four times as large as if all rows were
read alike. Different steps cost bits, too, because the coder has to find out which rows have which;
where that is more than they save all rows have the same.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from reefknot.bits import entropy
from reefknot.dtypes import DType, from_numbers, significant
from reefknot.packing.changes import CHUNK, parts_of
from reefknot.packing.quantizer import COARSEST, FINEST, Histogram, Quantizer
from reefknot.packing.suspended import call

LEAST, MOST = 1 / 16, 16.0  # what an error in a row may count, relative to the mean of all rows
SOME_ROWS = 4096  # that are compared at a time
STEP_BITS = 8  # significant bits of a step, so that its multiples have few

_aten = torch.ops.aten
_BAGS = (_aten.embedding_bag, _aten._embedding_bag, _aten._embedding_bag_forward_only)


def reads_of(model: nn.Module, batches: Sequence[Any]) -> dict[str, np.ndarray]:
    """How often the batches read each row of each table of a model."""
    tables = {name: p.detach() for name, p in model.named_parameters() if p.dim() == 2}
    with _Reading(tables) as reading:
        for batch in batches:
            call(model, batch)
    return reading.counts


class _Reading(TorchDispatchMode):
    """Counts which rows of tables are read, in whatever way a model does it."""

    def __init__(self, tables: dict[str, Tensor]) -> None:
        super().__init__()
        self.counts: dict[str, np.ndarray] = {}
        self._names = {table.data_ptr(): name for name, table in tables.items()}
        self._tables = tables

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kind = func.overloadpacket
        if kind is _aten.embedding:
            self._count(args[0], args[1], *args[2:3])
        elif kind in _BAGS:
            self._count(args[0], args[1])
        elif kind is _aten.index_select and args[1] == 0:
            self._count(args[0], args[2])
        elif kind is _aten.index:
            self._count(args[0], args[1][0])
        return func(*args, **(kwargs or {}))

    def _count(self, table: Tensor, rows: Tensor | None, padding: int = -1) -> None:
        name = self._names.get(table.data_ptr())
        if name is None or rows is None or table.shape != self._tables[name].shape:
            return
        if rows.dtype == torch.bool:
            rows = rows.nonzero()[:, 0]
        found = np.bincount(rows.numpy().ravel() % len(table), minlength=len(table))
        if padding >= 0:
            found[padding] = 0  # it is read where a text has ended, and does nothing there
        if found.any():
            self.counts[name] = self.counts.get(name, 0) + found


def row_weights(reads: np.ndarray) -> np.ndarray:
    """What an error in each row counts, relative to the mean of all rows."""
    return np.clip(_expected(reads) / _mean(reads), LEAST, MOST)


def weights_as_read(reads: np.ndarray) -> np.ndarray:
    """What an error in each row counts for calibration inputs alone: nothing if they skip it."""
    found = reads / _mean(reads)
    most = np.argmax(found)
    found[most] = min(found[most], MOST)
    return found


def _expected(reads: np.ndarray) -> np.ndarray:
    """How often each row would be read by as many other inputs."""
    unread = max(int((reads == 0).sum()), 1)
    return np.where(reads > 0, reads, min(int((reads == 1).sum()) / unread, 1.0))


def _mean(reads: np.ndarray) -> float:
    """How often a row is read on average, but for the one read most often: it may be padding."""
    return float(reads.sum() - reads.max()) / max(len(reads) - 1, 1) or 1.0


def weighted_error(table: Tensor, changed: Tensor, weights: np.ndarray) -> float:
    """The relative squared error of a table, each row with its weight."""
    lost = whole = 0.0
    counts = torch.from_numpy(weights).double()
    pairs = zip(table.split(SOME_ROWS), changed.split(SOME_ROWS), strict=True)
    for (old, new), count in zip(pairs, counts.split(SOME_ROWS), strict=True):
        lost += float((new.double() - old.double()).square().sum(1) @ count)
        whole += float(old.double().square().sum())
    return lost / (whole or 1.0)


def have_own_steps(weights: np.ndarray) -> bool:
    """Whether different steps for rows with different weights save bits.

    At the same weighted error they save half of the logarithm of the arithmetic over the geometric
    mean of the weights, per element. They cost what a multiple tells about the step of its row:
    with a step that was halved k times, half of the multiples have k digits after the binary point,
    in units of the largest step, a quarter k - 1, and so on.
    """
    halved = _halved(weights)
    saved = math.log2(np.mean(4.0**halved)) / 2 - halved.mean()
    shares = np.bincount(halved) / len(halved)
    digits = np.zeros((len(shares), len(shares)))  # how often each number of digits, for each k
    for k, row in enumerate(digits):
        row[0], row[1 : k + 1] = 2.0**-k, 2.0 ** np.arange(-k, 0)
    known = shares @ [entropy(row) for row in digits]
    return bool(saved > entropy(shares @ digits) - known)


def _halved(weights: np.ndarray) -> np.ndarray:
    """How often the step of each row is halved."""
    return np.rint(np.log2(weights / LEAST) / 2).astype(np.int64)


def quantize_rows(
    values: np.ndarray, dtype: DType, weights: np.ndarray, step: float
) -> tuple[np.ndarray, np.ndarray]:
    """Quantize a table: its new elements, and how often each of their values occurs.

    Args:
        values: (rows, width), finite.
        dtype: of its elements.
        weights: what an error in each row counts (`row_weights`).
        step: of a row with a weight of 1, in units of the root mean square.
    """
    halved = _halved(weights)
    most = int(halved.max())
    largest = min(max(step * LEAST**-0.5, FINEST), COARSEST)
    largest *= Histogram.of(values, dtype).rms or 1.0
    smallest = float(significant(np.array(largest * 2.0**-most), STEP_BITS))
    multiples = np.empty(values.shape, np.int32)
    for times in np.unique(halved).tolist():
        rows = np.flatnonzero(halved == times)
        part = values[rows]
        histogram = Histogram.of(part, dtype)
        rms = histogram.rms or 1.0
        quantizer = Quantizer.of(histogram, smallest * 2.0 ** (most - times) / rms)
        found = np.empty(part.size, np.int32)
        for at, some in parts_of(part, dtype):
            found[at : at + CHUNK] = quantizer.assign(some / rms)
        multiples[rows] = found.reshape(part.shape) << (most - times)
    counts = np.bincount(multiples.ravel() - multiples.min())
    elements = np.empty(multiples.size, dtype.storage)
    for at in range(0, elements.size, CHUNK):
        elements[at : at + CHUNK] = from_numbers(
            multiples.reshape(-1)[at : at + CHUNK] * smallest, dtype
        )
    return elements.reshape(multiples.shape), counts[counts > 0]
