"""What a file of a model holds, in parts: codebooks, and tensors one at a time.

Takes     a model, its tied weights, and values that the file has instead of the model's own.
Gives     codebooks of distinct values, and the indices of each tensor; what is sharded is gathered
          when its turn comes.
Unaware   of phases, of methods, and of bytes.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from reefknot.dtypes import DTYPES
from reefknot.errors import TyingError
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor, index_dtype
from reefknot.tensors import dtype_for, to_array
from reefknot.tying.collectives import full_tensor, local
from reefknot.tying.group import Group
from reefknot.tying.selection import original_name
from reefknot.tying.tying import Tying


class Content(NamedTuple):
    """What a `TiedState` is made of. All processes must take its tensors, one by one."""

    codebooks: tuple[Codebook, ...]
    tensors: Iterator[TiedTensor | KeptTensor]
    aliases: dict[str, str]

    def state(self) -> TiedState:
        """All of it."""
        return TiedState(self.codebooks, tuple(self.tensors), self.aliases)


def content_of(
    model: nn.Module, tying: Tying | None = None, replaced: Mapping[str, Tensor] | None = None
) -> Content:
    """The content of a file; `replaced` are tensors that it has with other values, by name."""
    entries = entries_of(model)
    first = {id(value): name for name, value in reversed(entries.items())}
    owned = {name: value for name, value in entries.items() if first[id(value)] == name}
    aliases = {name: first[id(v)] for name, v in entries.items() if first[id(v)] != name}
    codebooks: list[Codebook] = []
    indices: dict[str, tuple[int, Callable[[], np.ndarray]]] = {}
    if tying is not None:
        for group in tying.groups:
            codebook, renamed = _codebook_of(group, tying.written(group))
            for name in group.members:
                indices[name] = len(codebooks), partial(_indices_of, group, name, renamed)
            codebooks.append(codebook)

    def tensors() -> Iterator[TiedTensor | KeptTensor]:
        for name, value in owned.items():
            if name in indices:
                codebook, found = indices[name]
                yield TiedTensor(name, codebook, found())
            else:
                kept = (replaced or {}).get(name, full_tensor(local(value), value))
                array = to_array(kept)
                yield KeptTensor(name, dtype_for(value.dtype), array, value.requires_grad)

    return Content(tuple(codebooks), tensors(), aliases)


def entries_of(model: nn.Module) -> dict[str, Tensor]:
    """The state dict, all of it tensors, under original names."""
    found = {}
    for key, value in model.state_dict(keep_vars=True).items():
        name = original_name(key)
        if not isinstance(value, Tensor):
            raise TyingError(
                f"the state dict holds {name!r}, a {type(value).__name__} and not a tensor, "
                "which a .reef file cannot hold; drop it from get_extra_state()"
            )
        found[name] = value
    return found


def _indices_of(group: Group, name: str, renamed: np.ndarray) -> np.ndarray:
    """The values of all elements of a member in the codebook."""
    return renamed[to_array(full_tensor(group.assignment(name).contiguous(), group.members[name]))]


def _codebook_of(group: Group, centers: np.ndarray) -> tuple[Codebook, np.ndarray]:
    """The values a group's weights have, equal ones merged, and the new index of each cluster."""
    dtype = dtype_for(group.members.dtype)
    values = to_array(torch.from_numpy(centers + 0.0).to(group.members.dtype))  # -0.0 becomes +0.0
    used = np.flatnonzero(group.counts)
    ordered = used[np.argsort(centers[used], kind="stable")]
    bits = values.view(f"u{DTYPES[dtype.tag].item_bytes}")
    kept: list[int] = []
    renamed = np.zeros(len(values), np.int64)
    for k in ordered:
        if not kept or bits[kept[-1]] != bits[k]:
            kept.append(int(k))
        renamed[k] = len(kept) - 1
    return Codebook(dtype, values[kept]), renamed.astype(index_dtype(max(len(kept), 1)))
