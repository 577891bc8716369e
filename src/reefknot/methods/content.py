"""What a file of tied weights holds, in parts: codebooks, and tensors one at a time.

Takes     groups with their clusters, and the values that are to be written.
Gives     codebooks of distinct values, and the indices of each tensor; what is sharded is gathered
          when its turn comes.
Unaware   of methods, and of bytes.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from reefknot.dtypes import DTYPES
from reefknot.state import Codebook, KeptTensor, TiedTensor, index_dtype
from reefknot.tensors import dtype_for, to_array
from reefknot.tying.collectives import whole
from reefknot.tying.group import Group


class Content(NamedTuple):
    """What a `TiedState` is made of. All processes must take its tensors, one by one."""

    codebooks: tuple[Codebook, ...]
    tensors: Iterator[TiedTensor | KeptTensor]
    aliases: dict[str, str]


def indices_of(group: Group, name: str, renamed: np.ndarray) -> np.ndarray:
    """The values of all elements of a member in the codebook."""
    return renamed[to_array(whole(group.assignment(name).contiguous(), group.members[name]))]


def codebook_of(group: Group, centers: np.ndarray) -> tuple[Codebook, np.ndarray]:
    """The values a group's weights have, equal ones merged, and the new index of each cluster."""
    dtype = dtype_for(group.dtype)
    values = to_array(torch.from_numpy(centers + 0.0).to(group.dtype))  # -0.0 becomes +0.0
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
