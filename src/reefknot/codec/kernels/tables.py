"""The integer tables of the model: logistic function, its inverse, reciprocals, buckets.

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


SQUASH: Final = _squash()
# The inverse for probabilities p of 12 bits: the smallest x whose squash is at least 16·p + 8.
STRETCH: Final = (np.searchsorted(SQUASH, 16 * np.arange(4096) + 8) - STRETCH_MAX).astype(np.int16)
# 2^32 / n, which for n = 1 is one too large to store.
RECIPROCAL: Final = np.array(
    [min((1 << 32) // max(n, 1), (1 << 32) - 1) for n in range(LIMIT + PRIOR_MAX + 1)], np.uint32
)
# The logarithm to base 2 of a coder's range, from its 12 highest bits, in 1/256. It is used only to
# report what bits cost, so this table is not part of the format.
LOG_RANGE: Final = np.rint(256 * np.log2(np.arange(4096).clip(1) + 0.5)).astype(np.int16)
LENGTH: Final = np.array([n.bit_length() for n in range(65)], np.uint8)

# Buckets of the sums over neighbours: by sign and bit length to predict signs, by bit length to
# predict magnitudes.
STRENGTH: Final = np.array(
    [7 + (n.bit_length() if n > 0 else -n.bit_length()) for n in range(-64, 65)], np.uint8
)
PULL_BUCKET: Final = np.array(
    [min(5, 1 + (n >> 1).bit_length()) if n else 0 for n in range(32)], np.uint8
)
PAIR_BUCKET: Final = np.array([7, 6, 6, 6] + [min(5, n.bit_length()) for n in range(17)], np.uint8)
