"""Compression rates: original size over compressed size, in each way of counting.

Takes     a `TiedState`, or the counts of its values while it is still training.
Gives     `rate_file` (real bytes), `rate_fixed` (equation 2), `rate_paper` (CSR and Huffman),
          and `predicted_bytes`, an estimate for progress bars.
Paper     equation 2, and the "maximum compression rate" of its Table 1.
Unaware   of how a `.reef` file is coded: `rate_file` is told the size.

Only `rate_file` is a size that can be had on a disk; the others make published figures comparable.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from reefknot.codec.huffman import message_bits
from reefknot.state import KeptTensor, TiedState, TiedTensor

DENSE_GAP_BITS = 5
CONV_GAP_BITS = 8
TABLE_LENGTH_BITS = 5  # what a Huffman table spends on a code length, beside the symbol itself


def rate_file(state: TiedState, file_bytes: int) -> float:
    """Original bytes over the bytes of a file that holds this state, everything counted."""
    return state.original_bytes / file_bytes


def rate_fixed(state: TiedState) -> float:
    """Equation 2, N·b / (N·log2 K + K·b), summed over codebooks; kept tensors at their own size."""
    bits = float(_kept_bits(state))
    for number, codebook in enumerate(state.codebooks):
        tied = (t for t in state.tensors if isinstance(t, TiedTensor) and t.codebook == number)
        num_weights = sum(tensor.indices.size for tensor in tied)
        bits += num_weights * math.log2(max(len(codebook), 1)) + 8 * codebook.values.nbytes
    return _rate(state, bits)


def rate_paper(state: TiedState) -> float:
    """The paper's "maximum compression rate": compressed sparse rows, Huffman coded per layer.

    A layer is the tied tensors whose names agree up to the last dot: its weight, with the bias as
    one more row. A weight is a matrix of shape[0] rows; any other tensor is one row. Each layer has
    three Huffman codes: value ids, gaps to the previous entry of the row, entries per row. A gap
    has 5 bits in dense layers and 8 in convolutions; a longer one is bridged with filler zeros.
    Codebooks are stored once, and kept tensors as they are.
    """
    layers: dict[tuple[str, int], list[TiedTensor]] = {}
    for tensor in state.tensors:
        if isinstance(tensor, TiedTensor):
            layers.setdefault((tensor.name.rpartition(".")[0], tensor.codebook), []).append(tensor)
    bits = _kept_bits(state) + sum(8 * codebook.values.nbytes for codebook in state.codebooks)
    for (_, number), tensors in layers.items():
        bits += _layer_bits(tensors, state.codebooks[number].zeros)
    return _rate(state, bits)


def predicted_bytes(counts: Iterable[np.ndarray], codebook_bytes: int, kept_bytes: int) -> int:
    """The zero-order entropy of a network, in bytes: an estimate of its file while it trains.

    `counts` has one array per tensor: how often each shared value occurs in it. Real files are
    usually smaller, since the coder also uses where the zeros are.

    >>> predicted_bytes([np.array([8, 8]), np.array([4, 0])], codebook_bytes=8, kept_bytes=0)
    10
    """
    bits = 0.0
    for tensor_counts in counts:
        seen = np.asarray(tensor_counts, np.float64)
        seen = seen[seen > 0]
        bits += float(np.sum(seen * np.log2(seen.sum() / seen)))
    return math.ceil(bits / 8) + codebook_bytes + kept_bytes


def _rate(state: TiedState, bits: float) -> float:
    return 8 * state.original_bytes / bits if bits else 1.0


def _kept_bits(state: TiedState) -> int:
    return 8 * sum(tensor.data.nbytes for tensor in state.tensors if isinstance(tensor, KeptTensor))


@dataclass
class _Symbols:
    """How often each symbol of one Huffman code occurs."""

    symbol_bits: int
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, symbols: np.ndarray) -> None:
        more = np.bincount(symbols, minlength=len(self.counts))
        more[: len(self.counts)] += self.counts
        self.counts = more

    @property
    def bits(self) -> int:
        """The message and its table."""
        entries = int(np.count_nonzero(self.counts))
        return message_bits(self.counts) + entries * (self.symbol_bits + TABLE_LENGTH_BITS)


def _layer_bits(tensors: list[TiedTensor], zeros: np.ndarray) -> int:
    gap_bits = CONV_GAP_BITS if any(len(t.shape) > 2 for t in tensors) else DENSE_GAP_BITS
    span = 1 << gap_bits
    zero_id = int(np.argmax(zeros)) if zeros.any() else 0
    values, gaps = _Symbols(max(len(zeros) - 1, 1).bit_length()), _Symbols(gap_bits)
    row_counts: list[np.ndarray] = []
    for tensor in tensors:
        rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        if not tensor.indices.size:
            continue
        matrix = tensor.indices.reshape(rows, -1)
        row, column = np.nonzero(~zeros[matrix])
        # Distance to the previous entry of the same row, or to just before its first column.
        before = np.concatenate(([-1], column[:-1]))
        before[np.concatenate(([True], row[1:] != row[:-1]))[: len(row)]] = -1
        skipped = column - before[: len(column)] - 1
        fillers = skipped // span
        values.add(matrix[row, column].astype(np.int64))
        values.add(np.full(int(fillers.sum()), zero_id))
        gaps.add(skipped % span)
        gaps.add(np.full(int(fillers.sum()), span - 1))
        row_counts.append(np.bincount(row, 1 + fillers, minlength=rows).astype(np.int64))
    longest = max((int(counts.max()) for counts in row_counts), default=0)
    entries = _Symbols(max(longest, 1).bit_length())
    for counts in row_counts:
        entries.add(counts)
    return values.bits + gaps.bits + entries.bits
