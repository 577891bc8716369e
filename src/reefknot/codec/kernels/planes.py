"""Kept tensors: elements as rows of bytes, each predicted from its neighbours.

Takes     rows of at most 8 bytes, the most significant byte first.
Gives     the same rows.
Unaware   of element types.
"""

import numpy as np

from reefknot.codec.kernels.prediction import code_mixed, count, shrunk
from reefknot.codec.kernels.range_coder import LOOKAHEAD, POSITION, code_bit
from reefknot.kernels.jit import compiled, inlined

PLANE_BITS = 15
PLANE_SLOTS = 2048 + (2 << PLANE_BITS)
PLANE_PRIORS = (4, 4)
PLANE_LR = 8


@inlined
def place_of(own, byte):
    """The slot of a bit, given another byte: a hash of both."""
    return (((own * 256 + byte) * 0x2545F491) & 0xFFFFFFFF) >> (32 - PLANE_BITS)


@inlined
def random_byte(coder, buffer, goal):
    """A byte whose bits are not predicted."""
    node = np.int64(0)
    for shift in range(7, -1, -1):
        node = node * 2 + code_bit(coder, buffer, (goal >> shift) & 1, 32768)
    return node


@compiled(
    "void(int64[::1], uint8[::1], uint8[:, ::1], int64, uint32[::1], "
    "int64[::1], int64[::1], int64[::1])",
    allocates=False,
    steps=lambda coder, buffer, data, predicted, *_: (
        len(data) * (2 * data.shape[1] + 10 * predicted)
    ),
)
def code_planes(coder, buffer, data, predicted, table, weights, slots, work):
    """Code rows of bytes.

    The first `predicted` bytes of each are predicted from the same byte of the element before and
    from the byte before it; the others are taken to be uniformly distributed.
    """
    for i in range(data.shape[0]):
        if coder[POSITION] - len(buffer) > LOOKAHEAD:
            return
        for plane in range(data.shape[1]):
            goal = np.int64(data[i, plane])
            if plane >= predicted:
                data[i, plane] = random_byte(coder, buffer, goal)
                continue
            before = np.int64(data[i - 1, plane]) if i > 0 else 0
            above = np.int64(data[i, plane - 1]) if plane > 0 else 0
            node = np.int64(1)
            for shift in range(7, -1, -1):
                own = plane * 256 + node
                slots[0] = 2048 + place_of(own, before)
                slots[1] = 2048 + (1 << PLANE_BITS) + place_of(own, above)
                bit = code_mixed(
                    coder, buffer, (goal >> shift) & 1, shrunk(table, own, 2, 32768), table, slots,
                    PLANE_PRIORS, weights, 4 * plane, PLANE_LR, work,
                )  # fmt: skip
                count(table, own, bit)
                node = node * 2 + bit
            data[i, plane] = node & 0xFF
