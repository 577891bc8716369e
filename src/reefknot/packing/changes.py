"""What packing changed in each tensor, and the error: measured in one way for all kinds of packing.

Takes     a tensor's elements before and after, some at a time.
Gives     a `Change` for each tensor, the error of the whole, and warnings in words.
Unaware   of how values were chosen.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from reefknot.dtypes import DType, to_numbers

CHUNK = 1 << 20
MUCH_ENERGY = 0.1  # of a tensor, the sum of its squares: losing more is worth a warning
NOT_FINITE = "has values that are not finite"
UNSEEN = ", without its inputs"  # at the end of what was done


@dataclass(frozen=True)
class Change:
    """What was done to one tensor, and the resulting error."""

    name: str
    done: str
    relative_error: float = 0.0  # L2 norm of the change over that of the tensor
    largest_error: float = 0.0
    norm: float = 0.0  # L2 norm of the tensor, unless it was kept
    bits: float | None = None  # per weight, by the order-0 entropy of its values


def network_error(changes: Iterable[Change]) -> float:
    """The L2 norm of all changes over that of all tensors that were not kept."""
    rows = [change for change in changes if change.norm]
    unit = max((change.norm for change in rows), default=1.0)
    norm = math.hypot(*(change.norm / unit for change in rows))
    return math.hypot(*(c.relative_error * (c.norm / unit) for c in rows)) / norm if norm else 0.0


def warnings_about(changes: Sequence[Change]) -> list[str]:
    """Warnings about the result, a sentence each."""
    return _energy_lost(changes) + not_finite(changes)


def not_finite(changes: Sequence[Change]) -> list[str]:
    """A sentence about tensors that hold NaN or infinity, if there are any."""
    odd = [repr(change.name) for change in changes if change.done.endswith(NOT_FINITE)]
    return [f"NaN or infinity is in {', '.join(odd)}, which is kept exactly"] if odd else []


def unseen(changes: Sequence[Change]) -> list[str]:
    """A sentence about weights that inputs were given for, but did not reach, if there are any."""
    names = [repr(change.name) for change in changes if change.done.endswith(UNSEEN)]
    if not names:
        return []
    named = ", ".join(names[:8] + [f"and {len(names) - 8} more"] * (len(names) > 8))
    return [
        f"the inputs of {named} were not seen, so they are packed by their values alone: the model "
        "does not use them for these inputs, uses them other than in products and look-ups, "
        "changes them first (autocast, parametrizations), or computes in other threads"
    ]


def _energy_lost(changes: Sequence[Change]) -> list[str]:
    lost = [change for change in changes if change.relative_error**2 > MUCH_ENERGY]
    lost.sort(key=lambda change: -change.relative_error)
    found = []
    if lost:
        worst = [f"{c.name!r} ({100 * min(c.relative_error**2, 1):.0f} %)" for c in lost[:8]]
        named = ", ".join(worst + [f"and {len(lost) - 8} more"] * (len(lost) > 8))
        found.append(
            f"{len(lost)} of {len(changes)} tensors lose more than a tenth of their energy, the "
            f"sum of their squares: {named}; outputs may be far off: allow more bytes (more "
            "clusters, a higher density), keep these, or train with tying"
        )
    return found


class Loss:
    """The error of a tensor; scaled by a power of two, so that no square over- or underflows."""

    def __init__(self, values: np.ndarray, dtype: DType) -> None:
        largest = max(
            (float(np.abs(part).max()) for _, part in parts_of(values, dtype)), default=0.0
        )
        self._unit = 2.0 ** min(max(math.frexp(largest)[1], -1000), 1000)
        self._lost = self._norm = self._largest = 0.0

    @classmethod
    def between(cls, before: np.ndarray, after: np.ndarray, dtype: DType) -> "Loss":
        """That of all elements of a tensor."""
        loss = cls(before, dtype)
        pairs = zip(parts_of(before, dtype), parts_of(after, dtype), strict=True)
        for (_, old), (_, new) in pairs:
            loss.add(old, new)
        return loss

    def add(self, before: np.ndarray, after: np.ndarray) -> None:
        """Add some elements."""
        before = before / self._unit
        away = np.abs(after / self._unit - before)
        # Not by BLAS, whose order of summation depends on the number of threads.
        self._lost += float(np.square(away).sum())
        self._norm += float(np.square(before).sum())
        self._largest = max(self._largest, float(away.max()))

    def change(self, name: str, done: str) -> Change:
        """The change of all elements that were added."""
        most = float(np.finfo(np.float64).max)
        return Change(
            name,
            done,
            relative_error=(self._lost / self._norm) ** 0.5 if self._norm else 0.0,
            largest_error=min(self._largest * self._unit, most),
            norm=min(self._norm**0.5 * self._unit, most),
        )


def parts_of(values: np.ndarray, dtype: DType) -> Iterator[tuple[int, np.ndarray]]:
    """The elements as float64, some at a time, each with the number of its first."""
    flat = values.reshape(-1)
    for at in range(0, len(flat), CHUNK):
        yield at, to_numbers(flat[at : at + CHUNK], dtype)


def is_finite(values: np.ndarray, dtype: DType) -> bool:
    """Whether no element is NaN or infinite."""
    return all(np.isfinite(part).all() for _, part in parts_of(values, dtype))
