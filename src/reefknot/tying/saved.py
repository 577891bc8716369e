"""Entries of a saved state, checked before they are used.

Takes     a mapping from names to tensors and numbers, which may be damaged or forged.
Gives     an entry of the requested type, shape and range; for any other, a one-sentence error.
Unaware   of what the entries mean.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from reefknot.errors import TyingError
from reefknot.tying.collectives import local

_HINT = "was it saved for another model, or damaged?"
_MOST = 1 << 62  # the largest count


def saved_tensor(
    state: Mapping[str, Any],
    key: str,
    *,
    dtype: torch.dtype,
    shape: Sequence[int] | None = None,
) -> Tensor:
    """A tensor of this type and shape (None: any), all of its elements finite."""
    value = _entry(state, key)
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        raise _mistake(key, f"must be a tensor, found {_kind(value)}")
    if value.dtype != dtype:
        raise _mistake(key, f"must be {_short(dtype)}, found {_short(value.dtype)}")
    if shape is not None and value.shape != torch.Size(shape):
        raise _mistake(key, f"must have shape {tuple(shape)}, found {tuple(value.shape)}")
    if value.is_floating_point() and not bool(local(value).isfinite().all()):
        raise _mistake(key, "holds a number that is not finite")
    return value.detach()


def saved_count(state: Mapping[str, Any], key: str, *, least: int = 0, most: int = _MOST) -> int:
    """A whole number in this range."""
    value = _entry(state, key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        bound = f"at least {least:,}" if most == _MOST else f"from {least:,} to {most:,}"
        raise _mistake(key, f"must be a whole number {bound}, found {_kind(value)}")
    return value


def saved_number(
    state: Mapping[str, Any], key: str, *, least: float = 0.0, most: float = math.inf
) -> float:
    """A finite number in this range."""
    value = _entry(state, key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most or not abs(value) <= torch.finfo(torch.float64).max:
        bound = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise _mistake(key, f"must be a finite number {bound}, found {_kind(value)}")
    return float(value)


def refuse_other_plan(state: Mapping[str, Any], plan: Mapping[str, int | float]) -> None:
    """Refuse a state that was saved with other phases, other steps or another target."""
    for key, here in plan.items():
        found = state.get(key)
        known = isinstance(found, int | float) and not isinstance(found, bool)
        if not known or found != here:
            there = _kind(found) if key in state else "missing"
            raise TyingError(
                f"the saved state is of another plan: its entry {key!r} is {there}, expected "
                f"{here!r}; give the method the settings that it was saved with"
            )


def refuse_unknown(state: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse a state with an entry of an unknown name."""
    for key in state:
        if key not in known:
            raise _mistake(str(key), "is not known here")


def _entry(state: Mapping[str, Any], key: str) -> Any:
    if key not in state:
        raise _mistake(key, "is missing")
    return state[key]


def _mistake(key: str, what: str) -> TyingError:
    return TyingError(f"the saved state cannot be used: its entry {key!r} {what}; {_HINT}")


def _kind(value: Any) -> str:
    known = isinstance(value, int | float)
    return f"{value!r:.40}" if known else f"a {type(value).__name__}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
