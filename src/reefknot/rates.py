"""Compression rates: original size over compressed size, by several accountings.

Takes     a `TiedState`, or the counts of its values while it is still training.
Gives     `rate_file` (real bytes), `rate_fixed` (equation 2), `rate_paper` (CSR and Huffman),
          `rate_live` (the same without dead rows and columns), and `predicted_bytes`, an estimate
          for progress bars.
Paper     equation 2, and the "maximum compression rate" of its Table 1.
Unaware   of how a `.reef` file is coded: `rate_file` is told the size.

Only `rate_file` is about real bytes on disk; the others make published figures comparable.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from reefknot.codec.sparse_rows import count_rows
from reefknot.huffman import message_bits
from reefknot.state import KeptTensor, TiedState, TiedTensor

DENSE_GAP_BITS = 5
CONV_GAP_BITS = 8
ROW_POINTER_BITS = 32
TABLE_LENGTH_BITS = 5  # of a code length in a Huffman table, beside the symbol itself


def rate_file(state: TiedState, file_bytes: int) -> float:
    """Original bytes over the bytes of a file that holds this state, everything counted."""
    return state.original_bytes / file_bytes


def rate_fixed(state: TiedState) -> float:
    """Equation 2, N·b / (N·log2 K + K·b), summed over codebooks; kept tensors at their own size."""
    return rate_of(state, fixed_bits(state))


def rate_paper(state: TiedState) -> float:
    """The paper's "maximum compression rate": compressed sparse rows, Huffman coded per layer.

    A layer is the tied tensors whose names agree up to the last dot: its weight, with the bias as
    one more row. A weight is a matrix of shape[0] rows; any other tensor is one row. Each row has a
    raw pointer of 32 bits, each layer a Huffman code for value ids and one for gaps to the previous
    entry of the row. A gap has 5 bits in dense layers and 8 in convolutions; a longer one is
    bridged with filler zeros. Codebooks are stored once, and kept tensors as they are.
    """
    return rate_of(state, paper_bits(state))


def rate_live(state: TiedState) -> float:
    """As `rate_paper`, but without the rows and columns of weights that are all zero.

    Which ones they are takes one bit for each row and each column. A column of a convolution is an
    input channel. Tensors with scales are counted as they are.
    """
    return rate_of(state, live_bits(state))


def fixed_bits(state: TiedState) -> float:
    """The bits that `rate_fixed` divides by."""
    bits = float(_kept_bits(state))
    for number, codebook in enumerate(state.codebooks):
        tied = (t for t in state.tensors if isinstance(t, TiedTensor) and t.codebook == number)
        num_weights = sum(tensor.indices.size for tensor in tied)
        bits += num_weights * math.log2(max(len(codebook), 1)) + 8 * codebook.values.nbytes
    return bits + _scale_bits(state)


def paper_bits(state: TiedState) -> int:
    """The bits that `rate_paper` divides by."""
    layers: dict[tuple[str, int], list[TiedTensor]] = {}
    for tensor in _tied(state):
        layers.setdefault((tensor.name.rpartition(".")[0], tensor.codebook), []).append(tensor)
    bits = _kept_bits(state) + _codebook_bits(state) + _scale_bits(state)
    return bits + sum(
        _layer_bits(tensors, state.codebooks[number].zeros)
        for (_, number), tensors in layers.items()
    )


def live_bits(state: TiedState) -> int:
    """The bits that `rate_live` divides by."""
    tensors, marks = list(state.tensors), 0
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, TiedTensor) or tensor.scales or len(tensor.shape) < 2:
            continue
        alive = ~state.codebooks[tensor.codebook].zeros[tensor.indices]
        alive = alive.any(axis=tuple(range(2, alive.ndim)))
        rows, columns = alive.any(1), alive.any(0)
        tensors[number] = replace(tensor, indices=tensor.indices[rows][:, columns])
        marks += len(rows) + len(columns)
    return paper_bits(replace(state, tensors=tuple(tensors))) + marks


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


def rate_of(state: TiedState, bits: float) -> float:
    """Original size over compressed size in bits; 1 for an empty state."""
    return 8 * state.original_bytes / bits if bits else 1.0


def _kept_bits(state: TiedState) -> int:
    return 8 * sum(tensor.data.nbytes for tensor in state.tensors if isinstance(tensor, KeptTensor))


def _codebook_bits(state: TiedState) -> int:
    return sum(8 * codebook.values.nbytes for codebook in state.codebooks)


def _scale_bits(state: TiedState) -> int:
    return 8 * sum(tensor.scales.values.nbytes for tensor in _tied(state) if tensor.scales)


def _tied(state: TiedState) -> Iterator[TiedTensor]:
    return (tensor for tensor in state.tensors if isinstance(tensor, TiedTensor))


def _layer_bits(tensors: list[TiedTensor], zeros: np.ndarray) -> int:
    """The bits of the compressed sparse rows of some tensors with one codebook."""
    is_conv = any(len(tensor.shape) > 2 for tensor in tensors)
    gap_bits = CONV_GAP_BITS if is_conv else DENSE_GAP_BITS
    values, gaps = np.zeros_like(zeros, np.int64), np.zeros(1 << gap_bits, np.int64)
    num_rows = 0
    for tensor in tensors:
        if tensor.indices.size:
            rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
            count_rows(tensor.indices.reshape(rows, -1), zeros, values, gaps)
            num_rows += rows
    id_bits = max(len(values) - 1, 1).bit_length()
    return ROW_POINTER_BITS * num_rows + _code_bits(values, id_bits) + _code_bits(gaps, gap_bits)


def _code_bits(counts: np.ndarray, symbol_bits: int) -> int:
    """The bits of a Huffman-coded message and its table."""
    entries = int(np.count_nonzero(counts))
    return message_bits(counts) + entries * (symbol_bits + TABLE_LENGTH_BITS)
