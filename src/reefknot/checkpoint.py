"""Checkpoints: one safetensors file that is whole or not there. No pickle is read or written.

A tree of dicts, lists, tuples, numbers, strings and tensors (which is what optimizers, methods and
models save) becomes tensors under numbered names and one JSON text in the file's metadata.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from reefknot.errors import FormatError, ReefknotError
from reefknot.files import write_atomically


def write_checkpoint(path: Path, tree: Any) -> None:
    """Write the tree, replacing an older file only once the new one is on disk."""
    tensors: dict[str, Tensor] = {}
    skeleton = _skeleton(tree, tensors)
    write_atomically(path, save(tensors, metadata={"reefknot": json.dumps(skeleton)}))


def read_checkpoint(path: Path) -> Any:
    """The tree that was written, tensors on the CPU."""
    try:
        with safe_open(path, "pt") as file:
            skeleton = json.loads((file.metadata() or {})["reefknot"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _tree(skeleton, tensors)
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not a checkpoint that can be read: {error}") from error


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
