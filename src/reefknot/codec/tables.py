"""The integer tables of the model: logistic function, its inverse, reciprocals, density levels.

They are made from exact integer arithmetic, so they are the same on every machine; the tables are
part of the file format (docs/format.md, "Tables").
"""

from typing import Final

import numpy as np

LIMIT: Final = 1020  # a context that has seen this many bits is halved: recent bits count more
# 6.93 with 8 fractional bits, odds of 1 : 1023. No mixed bit is surer than this, so that a file
# of n bytes cannot ask for more than some 5,700 · n of them: decoding time is bounded by file size.
STRETCH_MAX: Final = 1775
PRIOR_MAX: Final = 64
LEVELS: Final = 8


def _squash() -> np.ndarray:
    """65536 / (1 + exp(-x/256)) for x from -STRETCH_MAX to STRETCH_MAX."""
    one = 1 << 64
    factor = term = one
    for n in range(1, 12):  # exp(1/256) with 64 fractional bits
        term //= 256 * n
        factor += term
    power, upper = one, []
    for _ in range(STRETCH_MAX + 1):
        upper.append((power << 16) // (power + one))
        power = power * factor >> 64
    return np.array([65536 - p for p in upper[:0:-1]] + upper).clip(1, 65535).astype(np.uint16)


def _level(density: int) -> int:
    """0 to 7 for a density in 1/1024, on a roughly logarithmic scale."""
    level = 0
    while density > 24 and level < LEVELS - 1:
        density = density * 5 >> 3
        level += 1
    return level


SQUASH: Final = _squash()
# The inverse for probabilities p of 12 bits: the smallest x whose squash is at least 16·p + 8.
STRETCH: Final = (np.searchsorted(SQUASH, 16 * np.arange(4096) + 8) - STRETCH_MAX).astype(np.int16)
# 2^32 / n, which for n = 1 is one too large to store.
RECIPROCAL: Final = np.array(
    [min((1 << 32) // max(n, 1), (1 << 32) - 1) for n in range(LIMIT + PRIOR_MAX + 1)], np.uint32
)
LEVEL: Final = np.array([_level(density) for density in range(1025)], np.uint8)
LENGTH: Final = np.array([n.bit_length() for n in range(65)], np.uint8)
