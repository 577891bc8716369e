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
MIN_ROW = 4  # rows of fewer elements are taken together
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
    worst_row: float = 0.0  # relative error of the row that has the largest; see `num_rows`
    norm: float = 0.0  # L2 norm of the tensor, unless it was kept
    bits: float | None = None  # per weight, by the order-0 entropy of its values


def network_error(changes: Iterable[Change]) -> float:
    """The L2 norm of all changes over that of all tensors that were not kept."""
    rows = [change for change in changes if change.norm]
    unit = max((change.norm for change in rows), default=1.0)
    norm = math.hypot(*(change.norm / unit for change in rows))
    return math.hypot(*(c.relative_error * (c.norm / unit) for c in rows)) / norm if norm else 0.0


def not_finite(changes: Sequence[Change]) -> list[str]:
    """A sentence about tensors that hold NaN or infinity, if there are any."""
    odd = [repr(change.name) for change in changes if change.done.endswith(NOT_FINITE)]
    return [f"NaN or infinity is in {', '.join(odd)}, which is kept exactly"] if odd else []


def unseen(changes: Sequence[Change]) -> list[str]:
    """A sentence about weights that inputs were given for, but did not reach, if there are any."""
    names = [repr(change.name) for change in changes if change.done.endswith(UNSEEN)]
    if not names:
        return []
    return [
        f"the inputs of {_listed(names)} were not seen, so they are packed by their values alone: "
        "the model does not use them for these inputs, uses them other than in products and "
        "look-ups, or both as they are and transposed, changes them first (autocast, "
        "parametrizations), or computes in other threads"
    ]


def energy_lost(changes: Sequence[Change]) -> list[str]:
    """A sentence about tensors that lose much of their energy, if there are any."""
    lost = [change for change in changes if change.relative_error**2 > MUCH_ENERGY]
    if not lost:
        return []
    lost.sort(key=lambda change: -change.relative_error)
    named = _listed([f"{c.name!r} ({100 * min(c.relative_error**2, 1):.0f} %)" for c in lost])
    return [
        f"{len(lost)} of {len(changes)} tensors lose more than a tenth of their energy, the "
        f"sum of their squares: {named}; outputs may be far off: allow more bytes (more "
        "clusters, a higher density), keep these, or train with tying"
    ]


def _listed(names: list[str]) -> str:
    """The first eight of them."""
    return ", ".join(names[:8] + [f"and {len(names) - 8} more"] * (len(names) > 8))


def change_of(name: str, done: str, before: np.ndarray, after: np.ndarray, dtype: DType) -> Change:
    """What was done to a tensor, and the error, by its elements before and after."""
    unit, rows, largest = unit_of(before, dtype), num_rows(before.shape), 0.0
    lost, norm = np.zeros(rows), np.zeros(rows)
    for (at, old), (_, new) in zip(parts_of(before, dtype), parts_of(after, dtype), strict=True):
        old = old / unit
        away = np.abs(new / unit - old)
        # Not by BLAS, whose order of summation depends on the number of threads.
        lost += sums_of_rows(np.square(away), at, before.size, rows)
        norm += sums_of_rows(np.square(old), at, before.size, rows)
        largest = max(largest, float(away.max()))
    most = float(np.finfo(np.float64).max)
    whole = float(norm.sum())
    return Change(
        name,
        done,
        relative_error=(float(lost.sum()) / whole) ** 0.5 if whole else 0.0,
        largest_error=min(largest * unit, most),
        worst_row=float((lost[norm > 0] / norm[norm > 0]).max(initial=0.0)) ** 0.5,
        norm=min(whole**0.5 * unit, most),
    )


def num_rows(shape: tuple[int, ...]) -> int:
    """The rows of a tensor: what its first dimension counts, in most layers the outputs.

    A tensor of one dimension, or with rows of very few elements, counts as one row.
    """
    few = len(shape) < 2 or math.prod(shape[1:]) < MIN_ROW
    return 1 if few else max(shape[0], 1)


def sums_of_rows(numbers: np.ndarray, at: int, size: int, rows: int) -> np.ndarray:
    """Sums over each row of the numbers of a tensor's elements, of which some are given, from `at`.

    Rows of which nothing is given have 0.
    """
    places = np.arange(at, at + len(numbers)) // max(size // rows, 1)
    return np.bincount(places, numbers, rows)


def parts_of(
    values: np.ndarray, dtype: DType, units: np.ndarray | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """The elements as float64, some at a time, each with the number of its first.

    With units, one for each row of the tensor, in these.
    """
    flat = values.reshape(-1)
    for at in range(0, len(flat), CHUNK):
        part = to_numbers(flat[at : at + CHUNK], dtype)
        if units is not None:
            part /= units[np.arange(at, at + len(part)) // (len(flat) // len(units))]
        yield at, part


def is_finite(values: np.ndarray, dtype: DType) -> bool:
    """Whether no element is NaN or infinite."""
    return all(np.isfinite(part).all() for _, part in parts_of(values, dtype))


def as_bits(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Elements as unsigned integers, in one dimension."""
    return np.ascontiguousarray(values).reshape(-1).view(f"<u{dtype.item_bytes}")


def distinct_bits(values: np.ndarray, dtype: DType, most: int) -> np.ndarray | None:
    """The raw bits of a tensor's distinct values, ascending; None if there are more than `most`."""
    flat = as_bits(values, dtype)
    seen = flat[:0]
    for at in range(0, len(flat), CHUNK):
        seen = np.union1d(seen, flat[at : at + CHUNK])
        if len(seen) > most:
            return None
    return seen


def unit_of(values: np.ndarray, dtype: DType) -> float:
    """A power of two near the largest magnitude; no square of a multiple over- or underflows."""
    largest = max((float(np.abs(part).max()) for _, part in parts_of(values, dtype)), default=0.0)
    return 2.0 ** min(max(math.frexp(largest)[1], -1000), 1000)
