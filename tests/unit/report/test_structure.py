"""Dead rows and columns, pictures of masks, and the bytes of a PNG."""

import struct
import zlib

import numpy as np

from reefknot.dtypes import DTYPES
from reefknot.lab.report.structure import (
    DEAD,
    LEVELS,
    block_size,
    count_pixels,
    encode_png,
    input_counts,
    mask_pixels,
    nonzero_mask,
    occupancy,
)
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor

F32 = DTYPES["F32"]


def _state(*tensors: TiedTensor | KeptTensor) -> TiedState:
    return TiedState((Codebook(F32, np.array([0.0, 0.5], "<f4")),), tensors)


def _found(state: TiedState):
    tensor = state.tensors[0]
    mask = nonzero_mask(state, tensor)
    return mask, occupancy(state, tensor, mask)


def test_matrix_counts_rows_and_columns_without_weights() -> None:
    state = _state(TiedTensor("w", 0, np.array([[0, 1, 0], [0, 0, 0]])))
    _, found = _found(state)
    assert (found.elements, found.nonzeros) == (6, 1)
    assert found.dead_rows.tolist() == [False, True]
    assert found.dead_columns.tolist() == [True, False, True]
    assert found.num_dead == (1, 2)


def test_convolution_counts_filters_and_channels() -> None:
    indices = np.zeros((2, 3, 2, 2), int)
    indices[0, 1, 1, 0] = 1
    mask, found = _found(_state(TiedTensor("conv", 0, indices)))
    assert found.num_dead == (1, 2)
    # One row for each filter, its three channels of four side by side; only channel 1 is alive.
    pixels = mask_pixels(mask, found)
    assert pixels.shape == (2, 12)
    assert pixels[0].tolist() == [DEAD] * 4 + [0, 0, LEVELS, 0] + [DEAD] * 4
    assert set(pixels[1].tolist()) == {DEAD}


def test_vectors_scalars_empty_tensors_and_buffers_have_no_rows() -> None:
    square = np.ones((2, 2), "<f4")
    for tensor in (
        TiedTensor("bias", 0, np.array([0, 1])),
        TiedTensor("scale", 0, np.array(1)),
        TiedTensor("none", 0, np.zeros((0, 4), int)),
        KeptTensor("buffer", F32, square, trainable=False),
    ):
        _, found = _found(_state(tensor))
        assert not found.is_matrix
    _, kept = _found(_state(KeptTensor("w", F32, square)))
    assert kept.is_matrix


def test_large_matrix_is_drawn_in_blocks_that_keep_single_weights() -> None:
    assert block_size((500, 1000)) == (1, 1)
    assert block_size((501, 1001)) == (2, 2)
    indices = np.zeros((501, 1001), int)
    indices[0, 0] = indices[1, 2] = indices[500, 1000] = 1
    mask, found = _found(_state(TiedTensor("w", 0, indices)))
    pixels = mask_pixels(mask, found)
    assert pixels.shape == (251, 501)
    assert pixels[0, 0] == 8  # one of four: half the shades, rounded up
    assert pixels[0, 1] == 8
    assert pixels[250, 500] == LEVELS  # the last block is a single weight
    assert pixels[100, 100] == DEAD


def test_inputs_that_form_a_square_are_counted() -> None:
    mask = np.zeros((3, 16), bool)
    mask[:2, 5] = True
    mask[0, 15] = True
    counts = input_counts(mask)
    assert counts is not None
    assert counts.shape == (4, 4)
    assert (counts[1, 1], counts[3, 3], counts.sum()) == (2, 1, 3)
    pixels = count_pixels(counts)
    assert (pixels[1, 1], pixels[3, 3], pixels[0, 0]) == (LEVELS, 8, DEAD)


def test_other_inputs_are_not_counted() -> None:
    assert input_counts(np.ones((3, 15), bool)) is None  # no square
    assert input_counts(np.ones((3, 16, 1), bool)) is None
    assert input_counts(np.ones((129, 16), bool)) is None  # an embedding


def test_png_holds_the_pixels_and_the_palette() -> None:
    pixels = np.array([[0, 1, 2], [2, 1, 0]])
    data = encode_png(pixels, [(1, 2, 3, 0), (4, 5, 6, 128), (7, 8, 9, 255)])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        (check,) = struct.unpack_from(">I", data, at + 8 + length)
        assert check == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (3, 2, 8, 3, 0, 0, 0)
    assert chunks[b"PLTE"] == bytes(range(1, 10))
    assert chunks[b"tRNS"] == bytes([0, 128, 255])
    assert zlib.decompress(chunks[b"IDAT"]) == bytes([0, 0, 1, 2, 0, 2, 1, 0])
