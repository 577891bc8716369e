"""Checkpoints of others, tensor by tensor: safetensors, whole or in shards, and torch's files.

Takes     a path.
Gives     names, element types, shapes, and each tensor's raw elements when asked for.
Unaware   of torch, unless the file is one of torch's own: those are read with `weights_only=True`,
          so that nothing in them is run.
"""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reefknot.dtypes import DType, dtype_of
from reefknot.errors import FormatError, ReefknotError
from reefknot.files import write_atomically
from reefknot.state import TiedState

MAX_HEADER_BYTES = 100 << 20
_TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")


class FoundTensor(NamedTuple):
    """A tensor of a checkpoint; `read` gives its elements in the storage type of `dtype`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    same_as: str = ""  # the name of an earlier tensor that has the same storage

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * self.dtype.item_bytes


def open_tensors(path: Path | str) -> list[FoundTensor]:
    """The tensors of a checkpoint in order; only torch's own files are read at once."""
    path = Path(path)
    try:
        if path.name.endswith(".index.json"):
            return _sharded(path)
        if path.is_dir():
            found = sorted(path.glob("*.safetensors.index.json")) or sorted(
                path.glob("*.safetensors")
            )
            if len(found) != 1:
                raise ReefknotError(f"{path} is a folder with {len(found)} checkpoints; name one")
            return open_tensors(found[0])
        if path.suffix in _TORCH_ENDINGS:
            return _torch(path)
        return _safetensors(path)
    except OSError as error:
        raise ReefknotError(f"{path} could not be read: {error.strerror or error}") from error


def _safetensors(path: Path) -> list[FoundTensor]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise FormatError(
                f"{path} is not a safetensors file: its header would have {length:,} bytes"
            )
        text = file.read(length)
    try:
        table = json.loads(text)
        rows = [(name, row) for name, row in table.items() if name != "__metadata__"]
        rows.sort(key=lambda item: item[1]["data_offsets"][0])
        return [_row(path, name, row, 8 + length, size) for name, row in rows]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise FormatError(f"{path} is not a safetensors file: {error}") from error


def _row(path: Path, name: str, row: dict[str, Any], base: int, size: int) -> FoundTensor:
    dtype, shape = dtype_of(row["dtype"]), tuple(int(n) for n in row["shape"])
    begin, end = row["data_offsets"]
    count = math.prod(shape)
    if (
        min((*shape, 0)) < 0
        or not 0 <= begin <= end <= size - base
        or count * dtype.item_bytes != end - begin
    ):
        raise FormatError(f"{path}: {name!r} has the shape {shape} but {end - begin:,} bytes")

    def read() -> np.ndarray:
        with path.open("rb") as file:
            file.seek(base + begin)
            data = np.fromfile(file, dtype.storage, count)
        if len(data) != count:
            raise FormatError(f"{path} ends inside {name!r}")
        return data.reshape(shape)

    return FoundTensor(name, dtype, shape, read)


def _sharded(path: Path) -> list[FoundTensor]:
    try:
        where = json.loads(path.read_text("utf-8"))["weight_map"]
        shards = sorted(set(where.values()))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(f"{path} is not the index of a sharded checkpoint: {error}") from error
    for shard in shards:
        if Path(shard).name != shard:  # an index may only name its neighbours
            raise FormatError(f"{path} names the shard {shard!r}, which is not beside it")
    found = [tensor for shard in shards for tensor in _safetensors(path.parent / shard)]
    missing = set(where) - {tensor.name for tensor in found}
    if missing:
        raise FormatError(f"{path} promises {min(missing)!r}, which none of its shards holds")
    return found


def _torch(path: Path) -> list[FoundTensor]:
    from pickle import UnpicklingError  # noqa: TID251  # the name of an error

    import torch

    from reefknot.tensors import dtype_for, to_array

    try:
        loaded = torch.load(  # noqa: TID251  # tensors only
            path, map_location="cpu", weights_only=True, mmap=True
        )
    except (RuntimeError, UnpicklingError, EOFError, ValueError):
        try:  # files of old versions cannot be mapped
            loaded = torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251
        except (RuntimeError, UnpicklingError, EOFError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else "it is damaged"
            raise FormatError(f"{path} is not a checkpoint of tensors alone: {reason}") from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not any(
        isinstance(v, torch.Tensor) for v in loaded.values()
    ):
        raise FormatError(f"{path} holds no state dict")
    found: list[FoundTensor] = []
    owners: dict[tuple[Any, ...], str] = {}
    for name, value in loaded.items():
        if not isinstance(value, torch.Tensor):
            raise FormatError(f"{path}: {name!r} is a {type(value).__name__}, not a tensor")
        storage = (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
        same = owners.setdefault(storage, str(name)) if value.numel() else str(name)
        found.append(
            FoundTensor(
                name=str(name),
                dtype=dtype_for(value.dtype),
                shape=tuple(value.shape),
                read=partial(to_array, value),
                same_as="" if same == str(name) else same,
            )
        )
    return found


def write_safetensors(state: TiedState, path: Path | str) -> None:
    """Write a state as a safetensors file: every name with its elements, nothing shared."""
    table: dict[str, Any] = {}
    chunks, at = [], 0
    rows = sorted(
        state.arrays(), key=lambda row: -row[1].item_bytes
    )  # alignment, as the format asks
    for name, dtype, values in rows:
        data = np.ascontiguousarray(values)
        table[name] = {
            "dtype": dtype.tag,
            "shape": list(values.shape),
            "data_offsets": [at, at + data.nbytes],
        }
        chunks.append(data.tobytes())
        at += data.nbytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write_atomically(path, len(text).to_bytes(8, "little") + text + b"".join(chunks))
