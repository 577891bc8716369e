"""Reads checkpoints tensor by tensor: safetensors, whole or in shards, and torch's own files.

Takes     a path.
Gives     names, element types, shapes, and each tensor's raw elements when asked for.
Unaware   of torch, unless the file is one of torch's own: those are read with `weights_only=True`,
          so that nothing in them is run.
"""

import itertools
import json
import math
import re
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reefknot.dtypes import DTYPES, DType, dtype_of
from reefknot.errors import FormatError, ReefknotError
from reefknot.files import reading, writing_atomically
from reefknot.format.layout import MAGIC, MAX_DIMENSIONS
from reefknot.state import TiedState

# Limits of a header or an index. The largest public models have an index of some hundred thousand
# tensors, 15 MB. Three bytes of JSON may become a hundred bytes of Python objects, so items are
# limited, too.
MAX_JSON_BYTES = 32 << 20
MAX_JSON_ITEMS = 1_000_000
# File names to look for in a folder. The first is that of an unsharded checkpoint on model hubs,
# which may have variants beside it.
_IN_FOLDERS = (
    *("model.safetensors", "*.safetensors.index.json", "*.safetensors", "*.bin.index.json"),
    "pytorch_model.bin",
)
# What a torch file may inflate to: the larger of this, and of so many times its own bytes.
_INFLATED_BYTES, _INFLATED_TIMES = 64 << 20, 32
_DAMAGED = "it is damaged or of another kind"
_NAMED = 8  # keys that a message names
_OTHERS = {
    ".onnx": "an ONNX model; pack the state dict that it was exported from",
    ".npz": "an archive of numpy arrays; give them to reefknot.pack as a dict of arrays",
    ".npy": "a numpy array; give it to reefknot.pack in a dict of arrays",
    ".py": "a Python program; pack a checkpoint, and name the program by --model MODULE:FUNCTION",
    ".gguf": "a GGUF file; pack the checkpoint that it was made from",
    ".h5": "an HDF5 file; save the weights as safetensors",
}
_TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")


class FoundTensor(NamedTuple):
    """A tensor of a checkpoint; `read` gives its elements in the storage type of `dtype`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    same_as: str = ""  # the name of an earlier tensor that has the same storage
    read_part: Callable[[int, int], np.ndarray] | None = None  # (index of the first, how many)

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * self.dtype.item_bytes


def reader_of(name: str, value: Any) -> tuple[Any, DType, Callable[[], np.ndarray]]:
    """A key that is equal for tensors with shared storage, the dtype, and a reader."""
    if isinstance(value, np.ndarray):
        for dtype in DTYPES.values():
            if dtype.storage == value.dtype and not dtype.is_raw:
                start = value.__array_interface__["data"][0]
                place = (start, value.shape, value.strides, dtype.tag)
                return (place if value.size else id(value)), dtype, lambda: value
        raise ReefknotError(
            f"{name!r} is an array of {value.dtype}, which cannot be stored; "
            f"known are {', '.join(DTYPES)}"
        )
    import torch

    from reefknot.tensors import dtype_for, to_array

    if not isinstance(value, torch.Tensor):
        raise ReefknotError(f"{name!r} is a {type(value).__name__}, not a tensor; leave it out")
    if value.layout != torch.strided or value.is_nested or value.is_meta:
        kind = "meta" if value.is_meta else "nested" if value.is_nested else value.layout
        raise ReefknotError(f"{name!r} is a {kind} tensor; only dense ones can be stored")
    dtype, bits = dtype_for(value.dtype), (value.is_conj(), value.is_neg())
    same = (value.data_ptr(), tuple(value.shape), value.stride(), dtype.tag, *bits)
    return (
        (same if value.numel() else id(value)),
        dtype,
        lambda: to_array(value.resolve_conj().resolve_neg()),
    )


def open_tensors(path: Path | str, key: str | None = None) -> list[FoundTensor]:
    """The tensors of a checkpoint in order, read lazily except from torch's own files.

    `key` names the state dict inside of a torch file that holds more, such as "net" or "ema.model".
    """
    files = files_of(path)
    promised: set[str] = set()
    if len(files) > 1:
        promised, files = set(_weight_map(files[0])), files[1:]
    found = [tensor for file in files for tensor in _open(file, key)]
    names: set[str] = set()
    for tensor in found:
        if tensor.name in names:
            raise FormatError(f"{path} holds {tensor.name!r} twice; rename one of them")
        names.add(tensor.name)
    if promised - names:
        raise FormatError(f"{path} lists {min(promised - names)!r}, which none of its shards holds")
    return found


def files_of(path: Path | str) -> list[Path]:
    """The files that a checkpoint is made of: one, or an index and its shards."""
    path = Path(path)
    if _is_folder(path):
        for pattern in _IN_FOLDERS:
            if found := sorted(path.glob(pattern)):
                break
        if len(found) != 1:
            raise ReefknotError(f"{path} is a folder with {len(found)} checkpoints; name one")
        path = found[0]
    if not path.name.endswith(".index.json"):
        return [path]
    return [path, *(path.parent / shard for shard in sorted(set(_weight_map(path).values())))]


def metadata_of(path: Path | str) -> tuple[str, ...]:
    """The keys of the metadata that the safetensors files of a checkpoint hold."""
    files = [file for file in files_of(path) if not file.name.endswith(".index.json")]
    found: dict[str, None] = {}
    for file in files:
        if file.suffix not in _TORCH_ENDINGS:
            metadata = _header(file)[0].get("__metadata__")
            found |= dict.fromkeys(metadata if isinstance(metadata, dict) else ())
    return tuple(found)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise ReefknotError(f"{path} could not be read: {error.strerror or error}") from error


def _weight_map(path: Path) -> dict[str, str]:
    """The shard of each tensor, from an index."""
    try:
        with reading(path) as file:
            index = _from_json(file.read(MAX_JSON_BYTES + 1))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not the index of a sharded checkpoint: {error}") from error
    where = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(where, dict) or not where:
        raise FormatError(f"{path} is not the index of a sharded checkpoint: it has no weight_map")
    for shard in where.values():  # an index may only name files in its own folder
        if not isinstance(shard, str) or not shard.isprintable() or Path(shard).name != shard:
            raise FormatError(f"{path} names the shard {shard!r}, which is not beside it")
    return where


def _open(path: Path, key: str | None) -> list[FoundTensor]:
    if path.suffix in _OTHERS:
        raise FormatError(f"{path} is {_OTHERS[path.suffix]}")
    if key is not None and path.suffix not in _TORCH_ENDINGS:
        raise ReefknotError(
            f"a key chooses in a torch file ({', '.join(_TORCH_ENDINGS)}), not in {path}"
        )
    try:
        with reading(path) as file:
            head = file.read(8)
        if head[:3] == MAGIC and int.from_bytes(head, "little") > path.stat().st_size:
            raise FormatError(
                f"{path} is a .reef file already; name a checkpoint, or unpack it first"
            )
        return _torch(path, key) if path.suffix in _TORCH_ENDINGS else _safetensors(path)
    except OSError as error:
        raise ReefknotError(f"{path} could not be read: {error.strerror or error}") from error


def _from_json(text: bytes) -> Any:
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"it has more than {MAX_JSON_BYTES:,} bytes of JSON, which is the limit")
    if sum(map(text.count, b",[{")) > MAX_JSON_ITEMS:
        raise ValueError(f"its JSON has more than {MAX_JSON_ITEMS:,} items, which is the limit")
    return json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r} is there twice")
        found[name] = value
    return found


# ---- safetensors ------------------------------------------------------------------------------


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and where its data begins."""
    with reading(path) as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise FormatError(
                f"{path} is not a safetensors file: its header would have {length:,} bytes"
            )
        text = file.read(min(length, MAX_JSON_BYTES + 1))
    try:
        table = _from_json(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not a safetensors file: {error}") from error
    if not isinstance(table, dict):
        raise FormatError(f"{path} is not a safetensors file: its header is not a table")
    return table, 8 + length


def _safetensors(path: Path) -> list[FoundTensor]:
    table, base = _header(path)
    rows = [_Row.of(path, name, row) for name, row in table.items() if name != "__metadata__"]
    rows.sort(key=lambda row: (row.begin, row.end))
    for row, following in itertools.pairwise(rows):
        if following.begin < row.end:
            raise FormatError(f"{path}: {row.name!r} and {following.name!r} overlap")
    if rows and rows[-1].end > path.stat().st_size - base:
        raise FormatError(f"{path} ends inside {rows[-1].name!r}; copy it again")
    parts = [partial(_read_part, path, row, base) for row in rows]
    return [
        FoundTensor(row.name, row.dtype, row.shape, partial(_read, row, part), read_part=part)
        for row, part in zip(rows, parts, strict=True)
    ]


class _Row(NamedTuple):
    """An entry of a safetensors header."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int

    @classmethod
    def of(cls, path: Path, name: str, row: Any) -> "_Row":
        row = row if isinstance(row, dict) else {}
        tag, shape, offsets = (row.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not (
            isinstance(tag, str) and _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2
        ):
            raise FormatError(
                f"{path}: {name!r} needs a dtype, and a shape and two data_offsets of whole numbers"
            )
        if len(shape) > MAX_DIMENSIONS:
            raise FormatError(
                f"{path}: {name!r} has {len(shape)} dimensions; {MAX_DIMENSIONS} is the limit"
            )
        try:
            dtype = dtype_of(tag)
        except FormatError as error:
            raise FormatError(f"{path}: {name!r} has an {error}") from error
        begin, end = offsets
        if (
            math.prod(n for n in shape if n) * dtype.item_bytes >= 1 << 63
            or math.prod(shape) * dtype.item_bytes != end - begin
        ):
            raise FormatError(f"{path}: {name!r} has the shape {shape} but {end - begin:,} bytes")
        return cls(name, dtype, tuple(shape), begin, end)


def _are_sizes(found: Any) -> bool:
    """Whether this is a list of integers from 0 to 2**63 - 1; booleans and floats are not."""
    return isinstance(found, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in found)


def _read(row: _Row, part: Callable[[int, int], np.ndarray]) -> np.ndarray:
    return part(0, math.prod(row.shape)).reshape(row.shape)


def _read_part(path: Path, row: _Row, base: int, start: int, count: int) -> np.ndarray:
    with reading(path) as file:
        file.seek(base + row.begin + start * row.dtype.item_bytes)
        data = np.fromfile(file, row.dtype.storage, count)
    if len(data) != count:
        raise FormatError(f"{path} ends inside {row.name!r}; copy it again")
    return _booleans_checked(path, row.name, data)


def _booleans_checked(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype == np.bool_ and values.size and (most := int(values.view(np.uint8).max())) > 1:
        raise FormatError(
            f"{path}: {name!r} is BOOL and holds the byte {most}; only 0 and 1 can be packed"
        )
    return values


# ---- torch ------------------------------------------------------------------------------------


def _torch(path: Path, key: str | None) -> list[FoundTensor]:
    whole = loaded = _loaded(path)
    for part in key.split(".") if key else ():
        loaded = loaded.get(part) if isinstance(loaded, dict) else None
    for usual in () if key else ("state_dict", "model_state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(usual), dict):
            loaded = loaded[usual]
    if not _is_state_dict(loaded):
        where = f" under the key {key!r}" if key else ""
        raise FormatError(f"{path} holds no state dict{where}{_keys_of(whole)}")
    found: list[FoundTensor] = []
    owners: dict[Any, str] = {}
    for key, value in loaded.items():
        name = str(key)
        try:
            identity, dtype, read = reader_of(name, value)
        except ReefknotError as error:
            raise FormatError(f"{path}: {error}") from error
        same = owners.setdefault(identity, name)
        elements = partial(_elements, path, name, read)
        shape = tuple(value.shape)
        found.append(FoundTensor(name, dtype, shape, elements, "" if same == name else same))
    return found


def _is_state_dict(found: Any) -> bool:
    import torch

    return isinstance(found, dict) and any(isinstance(v, torch.Tensor) for v in found.values())


def _keys_of(loaded: Any) -> str:
    """What a torch file holds, and where its state dicts are: the end of a sentence."""
    if not isinstance(loaded, dict):
        return f"; it holds a {type(loaded).__name__}"
    inner = {
        f"{key}.{name}": value
        for key, nested in loaded.items()
        if isinstance(nested, dict)
        for name, value in nested.items()
    }
    usable = [str(key) for key, value in (loaded | inner).items() if _is_state_dict(value)]
    known = ", ".join(repr(str(key)) for key in list(loaded)[:_NAMED])
    if not usable:
        return f"; its keys are {known}"
    choices = ", ".join(usable[:_NAMED])
    return f"; its keys are {known}; --key chooses one with tensors: {choices}"


def _loaded(path: Path) -> Any:
    """The content of a torch file, by torch's own reader, which loads tensors and runs no code."""
    import torch

    # Files of old versions cannot be mapped; what is compressed would be mapped as it lies there.
    ways = (False,) if _is_compressed(path) else (True, False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mmap in ways:
            try:
                return torch.load(  # noqa: TID251  # tensors only
                    path, map_location="cpu", weights_only=True, mmap=mmap
                )
            except OSError:
                raise
            except Exception as error:  # torch's reader raises all kinds for a damaged file
                reason = error
    needs = re.search(r"GLOBAL ([\w.]+)", str(reason))
    raise _not_tensors(path, f"it needs {needs[1]}" if needs else _DAMAGED) from reason


def _is_compressed(path: Path) -> bool:
    """Whether an entry of torch's archive is; torch itself stores them as they are.

    An archive that would take far more memory than its bytes is refused.
    """
    with reading(path) as file:
        if file.read(4) != b"PK\3\4":
            return False  # of an old version, which is no archive
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
        except Exception as error:  # zipfile raises all kinds for a damaged file
            raise _not_tensors(path, _DAMAGED) from error
    total, size = sum(entry.file_size for entry in entries), path.stat().st_size
    if total > max(_INFLATED_BYTES, _INFLATED_TIMES * size):
        raise _not_tensors(path, f"its {size:,} bytes would inflate to {total:,}")
    return any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)


def _not_tensors(path: Path, why: str) -> FormatError:
    return FormatError(
        f"{path} is not a checkpoint of tensors alone: {why}; save model.state_dict() and pack that"
    )


def _elements(path: Path, name: str, read: Callable[[], np.ndarray]) -> np.ndarray:
    try:
        return _booleans_checked(path, name, read())
    except (RuntimeError, ValueError, MemoryError) as error:
        reason = str(error).splitlines()[0] if str(error) else "no memory is left"
        raise ReefknotError(f"{path}: {name!r} could not be read: {reason}") from error


# ---- writing ----------------------------------------------------------------------------------


def write_safetensors(state: TiedState, path: Path | str) -> None:
    """Write a state as a safetensors file: every name with its elements, nothing shared."""
    table: dict[str, Any] = {}
    at = 0
    # The widest elements first: alignment, as the format asks.
    rows = sorted(state.names(), key=lambda row: -state.dtype(row[1]).item_bytes)
    for name, tensor in rows:
        if name == "__metadata__" or not _is_utf8(name):
            raise ReefknotError(
                f"a safetensors file cannot hold a tensor named {name!r}; "
                "use reefknot.load and rename it"
            )
        dtype = state.dtype(tensor)
        end = at + math.prod(tensor.shape) * dtype.item_bytes
        table[name] = {"dtype": dtype.tag, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with writing_atomically(path) as file:  # some elements at a time: memory for one copy is enough
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in rows:
            for piece in state.pieces(tensor):
                file.write(piece.tobytes())


def _is_utf8(name: str) -> bool:
    return not any("\ud800" <= sign <= "\udfff" for sign in name)
