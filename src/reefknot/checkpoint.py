"""Checkpoints: one safetensors file, written atomically. No pickle is read or written.

A tree of dicts, lists, tuples, numbers, strings and tensors (which is what optimizers, methods and
models save) becomes tensors with numbered names and one JSON text in the file's metadata, beside a
checksum of the whole file. A damaged file is refused. A forged one may hold anything, so `unlike`
compares what was read with what is expected before it is used.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from reefknot.errors import FormatError, ReefknotError
from reefknot.files import read_bytes, writing_atomically

# Quotes inside JSON strings are escaped, so the first occurrence of these bytes is the entry.
_ENTRY = b'"sha256":"'
_BLANK = b"0" * 64  # the placeholder while the checksum is computed


def write_checkpoint(path: Path, tree: Any) -> None:
    """Write the tree, replacing an older file only once the new one is on disk."""
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_skeleton(tree, tensors))
    content = memoryview(save(tensors, {"reefknot": skeleton, "sha256": _BLANK.decode()}))
    place = _checksum_place(content)
    with writing_atomically(path) as file:
        file.write(content[: place.start])
        file.write(_checksum(content, place))
        file.write(content[place.stop :])


def read_checkpoint(path: Path) -> Any:
    """The tree that was written, tensors on the CPU."""
    try:
        content = memoryview(read_bytes(path))
        place = _checksum_place(content)
        if content[place] != _checksum(content, place):
            raise FormatError("it is damaged, its checksum does not match")
        header = json.loads(bytes(_header(content)))
        return _tree(json.loads(header["__metadata__"]["reefknot"]), load(bytes(content)))
    except (
        ReefknotError,
        SafetensorError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise FormatError(f"{path} is not a checkpoint that can be read: {error}") from error


def unlike(found: Any, expected: Any, where: str) -> Iterator[str]:
    """The differences of two trees in keys, types, dtypes and shapes.

    >>> list(unlike({"a": 1, "b": [2]}, {"a": 1.0, "b": [2]}, "tree"))
    ["tree['a'] is of type int, expected float"]
    """
    if isinstance(found, Tensor) and isinstance(expected, Tensor):
        if (found.dtype, found.shape) != (expected.dtype, expected.shape):
            yield f"{where} is {_kind(found)}, expected {_kind(expected)}"
    elif type(found) is not type(expected):
        yield f"{where} is of type {type(found).__name__}, expected {type(expected).__name__}"
    elif isinstance(found, dict):
        for key in sorted(found.keys() ^ expected.keys(), key=repr):
            yield f"{where} has {'an unknown' if key in found else 'no'} entry {key!r}"
        for key in expected:
            if key in found:
                yield from unlike(found[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(found, list | tuple):
        if len(found) != len(expected):
            yield f"{where} has {len(found)} entries, expected {len(expected)}"
        for number, (one, other) in enumerate(zip(found, expected, strict=False)):
            yield from unlike(one, other, f"{where}[{number}]")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _header(content: memoryview) -> memoryview:
    return content[8 : 8 + int.from_bytes(content[:8], "little")]


def _checksum_place(content: memoryview) -> slice:
    found = bytes(_header(content)).find(_ENTRY)
    if found < 0:
        raise FormatError("it has no checksum, so it is damaged or of another version or program")
    begin = 8 + found + len(_ENTRY)
    return slice(begin, begin + len(_BLANK))


def _checksum(content: memoryview, place: slice) -> bytes:
    """SHA-256 of the whole file, with the checksum itself blanked."""
    digest = hashlib.sha256(content[: place.start])
    digest.update(_BLANK)
    digest.update(content[place.stop :])
    return digest.hexdigest().encode()


def _skeleton(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        name = str(len(tensors))
        tensors[name] = tree.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(tree, dict):
        for key in tree:
            if not isinstance(key, bool | int | float | str):
                raise ReefknotError(
                    f"a checkpoint cannot hold a {type(key).__name__} as a key; numbers and texts"
                )
        return {"dict": [[k, _skeleton(v, tensors)] for k, v in tree.items()]}
    if isinstance(tree, list | tuple):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [_skeleton(v, tensors) for v in tree]}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise ReefknotError(
        f"a checkpoint cannot hold a {type(tree).__name__}; tensors and numbers only"
    )


def _tree(skeleton: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(skeleton, dict):
        return skeleton
    ((kind, inside),) = skeleton.items()
    if kind == "tensor":
        return tensors[inside]
    if kind == "dict":
        return {key: _tree(value, tensors) for key, value in inside}
    items = [_tree(value, tensors) for value in inside]
    return {"list": list, "tuple": tuple}[kind](items)
