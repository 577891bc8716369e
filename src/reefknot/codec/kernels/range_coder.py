"""The range coder: bits of known probability to bytes, and back.

Takes     a bit, and the probability of a 1, in 1/65536.
Gives     the bit, and the coder's interval one bit further.
Unaware   of where probabilities come from.

Parts of loops whose names are participles (`coded`, `written`) take values and give the next ones,
which a loop keeps in registers; those whose names are verbs (`code_bit`) change arrays.
"""

from typing import NamedTuple

import numpy as np

from reefknot.codec.kernels.tables import LOG_RANGE
from reefknot.kernels.jit import inlined

# The state of a coder, a row of int64. LOW holds the code word when decoding.
RANGE, LOW, POSITION, ENCODING = 0, 1, 2, 3
BUDGET = 4  # costly elements that may still be coded: bounds the decoding time of a small file
ON_VALUES = 5  # what a decoder has spent on the values of elements, in 1/256 bit
TOP_BITS = 48
TOP = 1 << TOP_BITS
BOTTOM = 1 << (TOP_BITS - 8)
LOOKAHEAD = TOP_BITS // 8  # bytes that a decoder holds beyond those it has used


class Interval(NamedTuple):
    """The part of a coder's state that every bit changes."""

    size: int
    low: int
    at: int  # position in the buffer


@inlined
def loaded(coder):
    """The interval of a coder."""
    return Interval(coder[RANGE], coder[LOW], coder[POSITION])


@inlined
def store(coder, interval):
    """Store the interval in the coder again."""
    coder[RANGE], coder[LOW], coder[POSITION] = interval.size, interval.low, interval.at


@inlined
def written(buffer, size, low, at):
    """Carry, and write the bytes that are settled."""
    if low >= TOP:
        low -= TOP
        place = min(at, len(buffer)) - 1
        while place >= 0:  # a carry runs back over bytes already written
            byte = (np.int64(buffer[place]) + 1) & 0xFF
            buffer[place] = byte
            if byte:
                break
            place -= 1
    while size < BOTTOM:
        if at < len(buffer):
            buffer[at] = low >> (TOP_BITS - 8)
        at += 1
        low = (low & (BOTTOM - 1)) << 8
        size <<= 8
    return Interval(size, low, at)


@inlined
def refilled(buffer, size, low, at):
    """Read the bytes that are needed next, zeros after the end."""
    while size < BOTTOM:
        byte = np.int64(buffer[np.uint64(at)]) if at < len(buffer) else 0
        at += 1
        low = (low << 8) | byte
        size <<= 8
    return Interval(size, low, at)


@inlined
def settled(encoding, buffer, size, low, at):
    """The interval after a bit, wide enough for the next one."""
    if encoding:
        return written(buffer, size, low, at)
    return refilled(buffer, size, low, at)


@inlined
def coded(encoding, buffer, interval, bit, probability):
    """Code one bit that is 1 with `probability` / 65536 (1 to 65535).

    Gives the bit and the interval after it.
    """
    size, low, at = interval
    bound = (size >> 16) * probability
    if encoding:
        low += 0 if bit else bound
    else:
        bit = np.int64(low < bound)
        low -= 0 if bit else bound
    size = bound if bit else size - bound
    return bit, settled(encoding, buffer, size, low, at)


@inlined
def code_bit(coder, buffer, bit, probability):
    """`coded` with the interval in memory; gives the bit."""
    bit, interval = coded(coder[ENCODING], buffer, loaded(coder), bit, probability)
    store(coder, interval)
    return bit


@inlined
def spent(interval):
    """The length of the stream so far, in 1/256 bit, plus a constant."""
    return (interval.at << 11) - np.int64(LOG_RANGE[np.uint64(interval.size >> (TOP_BITS - 12))])
