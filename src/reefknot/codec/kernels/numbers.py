"""Flags and numbers: what headers, codebooks and frequency tables are made of.

Takes     a number, and the table of contexts of its kind.
Gives     the number that was coded.
Unaware   of what the numbers mean.
"""

import numpy as np

from reefknot.codec.kernels.prediction import code_adaptive
from reefknot.codec.kernels.range_coder import LOOKAHEAD, POSITION, code_bit
from reefknot.kernels.jit import compiled, inlined

NUMBER_SLOTS = 64 + 3 * 64  # slots of a context for numbers


@compiled(
    "int64(int64[::1], uint8[::1], int64, uint32[::1], int64, int64)",
    allocates=False,
    steps=lambda *_: 1,
)
def code_flag(coder, buffer, bit, table, slot, base):
    """One bit with a context of its own, near `base` at first."""
    return code_adaptive(coder, buffer, bit, table, slot, base)


@compiled("int64(int64[::1], uint8[::1], int64, int64)", allocates=False, steps=lambda *_: 20)
def code_uniform(coder, buffer, value, size):
    """A number below `size` (at most 2^46), all equally likely."""
    offset = np.int64(0)
    while size > 1:
        half = np.int64(1)
        while half * 2 < size:
            half *= 2
        p = min(max(((size - half) << 16) // size, 1), 65535)
        if code_bit(coder, buffer, 1 if value - offset >= half else 0, p):
            offset += half
            size -= half
        else:
            size = half
    return offset


@inlined
def number(coder, buffer, value, table):
    """A number from 0 to 2^48 - 2, small ones cheaper: bit length, then the other bits."""
    target = value + 1
    length = 0
    while length < 47:
        more = 1 if (target >> (length + 1)) > 0 else 0
        if not code_adaptive(coder, buffer, more, table, length, 32768):
            break
        length += 1
    result = np.int64(1)
    for i in range(length):
        bit = (target >> (length - 1 - i)) & 1
        if i < 2:  # the two highest bits have contexts of their own
            slot = 64 + 3 * length + (0 if i == 0 else result & 1) + i
            bit = code_adaptive(coder, buffer, bit, table, slot, 32768)
        else:
            bit = code_bit(coder, buffer, bit, 32768)
        result = result * 2 + bit
    return result - 1


@compiled("int64(int64[::1], uint8[::1], int64, uint32[::1])", allocates=False, steps=lambda *_: 20)
def code_number(coder, buffer, value, table):
    """One such number."""
    return number(coder, buffer, value, table)


@compiled(
    "void(int64[::1], uint8[::1], int64[::1], uint32[::1])",
    allocates=False,
    steps=lambda coder, buffer, values, table: 20 * len(values),
)
def code_numbers(coder, buffer, values, table):
    """A row of such numbers."""
    for i in range(len(values)):
        values[i] = number(coder, buffer, values[i], table)
        if coder[POSITION] - len(buffer) > LOOKAHEAD:
            return
