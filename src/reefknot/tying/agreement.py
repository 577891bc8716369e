"""What processes must have alike, compared before anything depends on it.

Takes     facts of this process, as text or as whole numbers, and the groups of processes.
Gives     nothing if all have the same; otherwise one sentence, the same on all of them.
Unaware   of what the facts mean.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reefknot.errors import TyingError
from reefknot.tying.collectives import Processes, local, rank
from reefknot.tying.ops import flat

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_PIECE = 1 << 20
_PRIME = 65_521
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_HINT = "start all of them with the same code, settings and weights"


def require_alike(
    facts: Mapping[str, str], groups: Sequence["ProcessGroup"], device: str, what: str
) -> None:
    """Refuse facts that are not the same in all processes of these groups.

    A digest of 32 bytes tells whether they are. Only if not, the facts themselves are exchanged.
    """
    processes = Processes(groups, device)
    if not processes.is_distributed:
        return
    text = json.dumps([rank(), dict(facts)])
    digest = np.frombuffer(hashlib.sha256(json.dumps(dict(facts)).encode()).digest(), np.int64)
    if np.array_equal(processes.all_reduce_max(digest), -processes.all_reduce_max(-digest)):
        return
    told = [json.loads(line) for line in processes.gather_texts(text)]
    for (one, first), (other, second) in pairwise(sorted(told, key=lambda fact: fact[0])):
        for key in [*first, *second]:
            if first.get(key) != second.get(key):
                raise TyingError(
                    f"{what} must be the same in all processes, but {key} is "
                    f"{first.get(key, 'missing')} in process {one} and "
                    f"{second.get(key, 'missing')} in process {other}; {_HINT}"
                )
    raise AssertionError("digests of equal facts are equal")


def fingerprint(tensors: Iterable[Tensor]) -> NDArray[np.int64]:
    """Two sums over the bits of tensors, which differ if the tensors do, but for a rare accident.

    They are computed where the tensors are, and wrap around.
    """
    rows = []
    for tensor in tensors:
        here = flat(local(tensor))
        whole = here.view(_WHOLE[here.itemsize])
        sums = torch.zeros(2, dtype=torch.int64, device=here.device)
        for begin, piece in enumerate(whole.split(_PIECE)):
            bits = piece.long()
            places = torch.arange(len(bits), device=here.device) % _PRIME + 1 + begin
            sums += torch.stack([bits.sum(), (bits * places).sum()])
        rows.append(sums)
    return torch.stack(rows).cpu().numpy()
