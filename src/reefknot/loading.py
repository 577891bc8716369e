"""From a `.reef` file back to torch tensors."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from reefknot.errors import ReefknotError, did_you_mean
from reefknot.format import MAX_BYTES, open_state, tensor_names
from reefknot.state import TiedState
from reefknot.tensors import to_tensor


def load(
    path: Path | str,
    names: Iterable[str] | None = None,
    device: torch.device | str | None = None,
    max_bytes: int = MAX_BYTES,
) -> dict[str, Tensor]:
    """Read a `.reef` file into tensors, ready for `model.load_state_dict`.

    Args:
        path: the file.
        names: only these tensors; all by default.
        device: where to put them; the CPU by default.
        max_bytes: refuse a file whose tensors would take up more than this.
    """
    if names is None:
        return tensors(open_state(path, max_bytes=max_bytes), None, device)
    wanted = set(names)
    _refuse_unknown(wanted, tensor_names(path))
    return tensors(open_state(path, names=wanted, max_bytes=max_bytes), wanted, device)


def tensors(
    state: TiedState,
    names: Iterable[str] | None = None,
    device: torch.device | str | None = None,
) -> dict[str, Tensor]:
    """A state's tensors by name; names that share storage share it here too."""
    wanted = None if names is None else set(names)
    made: dict[str, Tensor] = {}  # by the name that owns the storage
    result: dict[str, Tensor] = {}
    known = []
    for name, dtype, values in state.arrays():
        known.append(name)
        if wanted is None or name in wanted:
            owner = state.aliases.get(name, name)
            if owner not in made:
                made[owner] = to_tensor(values, dtype).to(device or "cpu")
            result[name] = made[owner]
    _refuse_unknown(wanted or set(), known)
    return result


def _refuse_unknown(wanted: set[str], known: list[str]) -> None:
    for name in sorted(wanted - set(known)):
        hint = did_you_mean(name, known)
        raise ReefknotError(f"the file holds no tensor {name!r}{hint and f'; {hint}'}")
