"""Which number stands at a given place when all are sorted, of numbers that lie in several places.

Takes     magnitudes, of which only some may be here.
Gives     the one at a place, exactly.
Unaware   of what the numbers are.

Bits of floating-point magnitudes ascend as they do. So sixteen bits at a time are counted, the
highest first, and what begins otherwise than the number that is sought is left out.
"""

import numpy as np
from numpy.typing import NDArray

from reefknot.kernels.parts import ONE_PLACE, Parts

_DIGIT = 16


def at_place(magnitudes: NDArray, place: int, parts: Parts = ONE_PLACE) -> float:
    """The number that has `place` others before it among all of them; none is negative."""
    if parts is ONE_PLACE:
        return float(np.partition(magnitudes, place)[place])
    bits = magnitudes.view(f"u{magnitudes.itemsize}")
    found = 0
    for shift in range(8 * magnitudes.itemsize - _DIGIT, -1, -_DIGIT):
        digits = (bits >> shift).astype(np.uint16)
        ends = np.cumsum(parts.total(np.bincount(digits, minlength=1 << _DIGIT)))
        digit = int(np.searchsorted(ends, place, side="right"))
        place -= int(ends[digit - 1]) if digit else 0
        bits = bits[digits == digit]
        found = found << _DIGIT | digit
    return float(np.array(found, bits.dtype).view(magnitudes.dtype))
