"""Version 0 of the `.reef` file: simple, and with no promise to stay.

    4 bytes   "REEF"
    1 byte    0, the version
    4 bytes   CRC-32 of all that follows
    ...       LZMA2 (raw, default filter of `FILTERS`) of the body:
                  u32 length of the table, the table as JSON in UTF-8, then every array in the
                  order the table names them, in C order, little endian

The decoded size is limited before anything is allocated for it.
"""

import json
import lzma
import math
import zlib
from typing import Any

import numpy as np

from reefknot.dtypes import dtype_of
from reefknot.errors import FormatError, ReefknotError
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor, index_dtype

MAGIC = b"REEF\x00"
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "pb": 0}]
_HEAD = len(MAGIC) + 4


def encode(state: TiedState) -> bytes:
    """A state as the bytes of a version 0 file; the same state gives the same bytes."""
    table: dict[str, Any] = {
        "codebooks": [[book.dtype.tag, len(book)] for book in state.codebooks],
        "tensors": [_row(tensor) for tensor in state.tensors],
        "aliases": dict(state.aliases),
    }
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    arrays = [book.values for book in state.codebooks]
    arrays += [t.data if isinstance(t, KeptTensor) else t.indices for t in state.tensors]
    body = len(text).to_bytes(4, "little") + text + b"".join(a.tobytes() for a in arrays)
    packed = lzma.compress(body, format=lzma.FORMAT_RAW, filters=FILTERS)
    return MAGIC + zlib.crc32(packed).to_bytes(4, "little") + packed


def _row(tensor: TiedTensor | KeptTensor) -> list[Any]:
    if isinstance(tensor, KeptTensor):
        return [tensor.name, list(tensor.shape), tensor.dtype.tag, tensor.trainable]
    return [tensor.name, list(tensor.shape), tensor.codebook]


def decode(data: bytes, *, source: str = "the file", max_bytes: int) -> TiedState:
    """The state in these bytes, or a `FormatError` that says what is wrong."""
    if data[: len(MAGIC)] != MAGIC:
        raise FormatError(f"{source} is not a .reef file of version 0: it begins {data[:5]!r}")
    if len(data) < _HEAD or zlib.crc32(data[_HEAD:]) != int.from_bytes(data[5:_HEAD], "little"):
        raise FormatError(f"{source} is damaged: its checksum does not match; fetch it again")
    body = _unpacked(data[_HEAD:], source, max_bytes)
    try:
        state = _state(body)
    except (FormatError, MemoryError):
        raise
    except (
        ReefknotError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        raise FormatError(f"{source} is damaged: {error}") from error
    if state.original_bytes > max_bytes:  # indices are narrower than the values they stand for
        raise _too_large(source, max_bytes)
    return state


def _too_large(source: str, max_bytes: int) -> FormatError:
    return FormatError(
        f"{source} decodes to more than {max_bytes:,} bytes; raise max_bytes if you trust it"
    )


def _unpacked(packed: bytes, source: str, max_bytes: int) -> bytes:
    decompressor = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=FILTERS)
    try:
        body = decompressor.decompress(packed, max_length=max_bytes + 1)
    except lzma.LZMAError as error:
        raise FormatError(f"{source} is damaged: {error}") from error
    if len(body) > max_bytes:
        raise _too_large(source, max_bytes)
    return body


def _state(body: bytes) -> TiedState:
    end = 4 + int.from_bytes(body[:4], "little")
    table = json.loads(body[4:end])
    at = end

    def take(dtype: np.dtype, shape: list[int]) -> np.ndarray:
        nonlocal at
        if any(not isinstance(size, int) or size < 0 for size in shape):
            raise FormatError(f"a shape of {shape} is impossible")
        count = math.prod(shape)
        if at + count * dtype.itemsize > len(body):
            raise FormatError(f"the file ends inside a tensor of shape {shape}")
        array = np.frombuffer(body, dtype, count, at).reshape(shape)
        at += array.nbytes
        return array

    codebooks = []
    for tag, size in table["codebooks"]:
        codebooks.append(Codebook(dtype_of(tag), take(dtype_of(tag).storage, [size])))
    tensors: list[TiedTensor | KeptTensor] = []
    for name, shape, kind, *rest in table["tensors"]:
        if not isinstance(name, str):
            raise FormatError(f"a tensor is named {name!r}; a text was expected")
        if isinstance(kind, str):
            dtype = dtype_of(kind)
            tensors.append(KeptTensor(name, dtype, take(dtype.storage, shape), bool(rest[0])))
        else:
            indices = take(index_dtype(len(codebooks[kind])), shape)
            tensors.append(TiedTensor(name, kind, indices))
    if at != len(body):
        raise FormatError(f"{len(body) - at} bytes are left over after the last tensor")
    return TiedState(tuple(codebooks), tuple(tensors), table["aliases"])
