"""The element types a state can hold, by the names that safetensors gives them.

numpy knows no bfloat16 and no float8, so those are held as raw bits in an unsigned integer
array. Everything here is plain data; the torch side has its own table of the same tags.
"""

from typing import NamedTuple

import numpy as np

from reefknot.errors import FormatError

_BF16_CUT = 45  # fraction bits of a float64 beyond those of a bfloat16
_BF16_SMALLEST = 2.0**-126  # the smallest normal bfloat16


class DType(NamedTuple):
    """How one element type is held: `storage` is its numpy type, raw bits where numpy has none."""

    tag: str
    storage: np.dtype
    is_float: bool
    is_raw: bool  # held as raw bits: arithmetic on `storage` means nothing

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return self.storage.itemsize


def _table() -> dict[str, DType]:
    rows = [
        ("F32", "<f4", True, False),
        ("F16", "<f2", True, False),
        ("BF16", "<u2", True, True),
        ("F64", "<f8", True, False),
        ("F8_E4M3", "u1", True, True),
        ("F8_E5M2", "u1", True, True),
        ("F8_E8M0", "u1", True, True),
        ("F8_E4M3FNUZ", "u1", True, True),
        ("F8_E5M2FNUZ", "u1", True, True),
        ("C64", "<c8", False, False),
        ("BOOL", "?", False, False),
        ("U8", "u1", False, False),
        ("I8", "i1", False, False),
        ("U16", "<u2", False, False),
        ("I16", "<i2", False, False),
        ("U32", "<u4", False, False),
        ("I32", "<i4", False, False),
        ("U64", "<u8", False, False),
        ("I64", "<i8", False, False),
    ]
    return {tag: DType(tag, np.dtype(kind), flt, raw) for tag, kind, flt, raw in rows}


DTYPES = _table()


def dtype_of(tag: str) -> DType:
    """The element type with this tag, or a `FormatError` that names the known ones."""
    try:
        return DTYPES[tag]
    except KeyError:
        raise FormatError(f"unknown element type {tag!r}; known are {', '.join(DTYPES)}") from None


def is_zero(values: np.ndarray, dtype: DType) -> np.ndarray:
    """True where an element is zero of either sign, also for types held as raw bits."""
    if not dtype.is_raw:
        with np.errstate(invalid="ignore"):  # for signalling NaNs
            return np.asarray(values == 0)
    if dtype.tag == "F8_E8M0":  # powers of two only: it has no zero
        return np.zeros(values.shape, bool)
    if dtype.tag.endswith("FNUZ"):  # no negative zero: its bit pattern is the only NaN
        return np.asarray(values == 0)
    magnitude = (1 << (8 * dtype.item_bytes - 1)) - 1
    return np.asarray((values & magnitude) == 0)


def significant(values: np.ndarray, bits: int) -> np.ndarray:
    """The nearest values with at most so many significant bits."""
    fraction, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits))


def to_numbers(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Elements as float64."""
    if dtype.tag == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # no warning about a signalling NaN
        return values.astype(np.float64)


def from_numbers(numbers: np.ndarray, dtype: DType) -> np.ndarray:
    """Each number rounded once to the nearest element of a type, ties to even; may overflow."""
    with np.errstate(over="ignore", under="ignore"):
        if dtype.tag != "BF16":
            return numbers.astype(dtype.storage)
        numbers = np.asarray(numbers, np.float64)
        bits = numbers.view(np.int64)
        up = ((bits >> _BF16_CUT) & 1) + ((1 << (_BF16_CUT - 1)) - 1)
        normal = ((bits + up) >> _BF16_CUT << _BF16_CUT).view(np.float64)
        tiny = np.copysign(np.rint(numbers * 2.0**133) * 2.0**-133, numbers)
        numbers = np.where(np.abs(numbers) < _BF16_SMALLEST, tiny, normal)
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(dtype.storage)
