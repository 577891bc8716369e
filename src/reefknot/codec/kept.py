"""Kept tensors: elements as they are, coded byte by byte, the most significant byte first.

Takes     an array of bytes, one row per element.
Gives     the same array. Bytes that cannot be predicted (most of a mantissa) are stored plainly.
Unaware   of files and names.
"""

from dataclasses import dataclass, field

import numpy as np

from reefknot.codec.coder import Coder
from reefknot.codec.kernels import planes as k
from reefknot.dtypes import DType

CHUNK = 1 << 20  # elements that are converted at a time, to bound memory
SAMPLE = 16_384  # elements on which the number of predicted bytes is chosen


@dataclass
class PlaneModel:
    """The model of the bytes of one element type, with what it has learned so far in a stream."""

    table: np.ndarray = field(default_factory=lambda: np.zeros(k.PLANE_SLOTS, np.uint32))
    weights: np.ndarray = field(
        default_factory=lambda: np.array([65536, 26000, 26000, 0] * 8, np.int64)
    )

    def copy(self) -> "PlaneModel":
        """An independent copy."""
        return PlaneModel(self.table.copy(), self.weights.copy())


def to_planes(data: np.ndarray, dtype: DType) -> np.ndarray:
    """Elements as rows of bytes, high byte first; floats rotated so that the exponent fills it."""
    size = unit_bytes(dtype)
    bits = np.ascontiguousarray(data).reshape(-1).view(f"<u{size}")
    planes = np.empty((len(bits), size), np.uint8)
    for at in range(0, len(bits), CHUNK):
        part = bits[at : at + CHUNK]
        if dtype.is_float and size > 1:
            part = (part << 1) | (part >> (8 * size - 1))
        planes[at : at + CHUNK] = part.astype(f">u{size}").view(np.uint8).reshape(-1, size)
    return planes


def from_planes(planes: np.ndarray, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of `to_planes`, in the same memory, which becomes read-only."""
    size = unit_bytes(dtype)
    bits = planes.reshape(-1).view(f"<u{size}")
    for at in range(0, len(bits), CHUNK):
        part = bits[at : at + CHUNK].view(f">u{size}").astype(f"<u{size}")
        if dtype.is_float and size > 1:
            part = (part >> 1) | (part << (8 * size - 1))
        bits[at : at + CHUNK] = part
    if dtype.tag == "BOOL":  # only the bytes 0 and 1 are booleans
        bits &= 1
    planes.flags.writeable = False
    return planes.reshape(-1).view(dtype.storage).reshape(shape)


def unit_bytes(dtype: DType) -> int:
    """Bytes of one row of planes."""
    return 4 if dtype.tag == "C64" else dtype.item_bytes  # a complex number is two floats


def code_planes(coder: Coder, planes: np.ndarray, model: PlaneModel) -> np.ndarray:
    """Code rows of bytes in place: a reader gives an array to fill."""
    if not planes.size:
        return planes
    size = planes.shape[1]
    coder.grow(64 + planes.size + planes.size // 2)
    predicted = 0
    if coder.writing:
        mark, costs = coder.mark(), []
        for number in range(size + 1):
            _code(coder, planes[:SAMPLE].copy(), number, model.copy())
            costs.append(coder.spent())
            coder.back(mark)
        predicted = costs.index(min(costs))
    predicted = coder.uniform(predicted, size + 1)
    coder.spend(predicted * len(planes))
    _code(coder, planes, predicted, model)
    coder.check()
    return planes


def _code(coder: Coder, planes: np.ndarray, predicted: int, model: PlaneModel) -> None:
    k.code_planes(
        coder.state,
        coder.buffer,
        planes,
        predicted,
        model.table,
        model.weights,
        coder.slots,
        coder.work,
    )
