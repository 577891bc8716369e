"""Order statistics of numbers that are spread over several processes.

Takes     magnitudes, of which only some may be in this process.
Gives     the n-th smallest of all, exactly.
Unaware   of what the numbers are.

The bit patterns of floating-point magnitudes are ordered as the magnitudes are. So this is a radix
selection: sixteen bits at a time are counted, the highest first, and numbers with other bits than
the one sought are dropped.
"""

import numpy as np
from numpy.typing import NDArray

from reefknot.kernels.parts import ONE_PLACE, Parts

_DIGIT = 16


def order_statistic(magnitudes: NDArray, place: int, parts: Parts = ONE_PLACE) -> float:
    """The number at index `place` when all of them are sorted; none is negative."""
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
