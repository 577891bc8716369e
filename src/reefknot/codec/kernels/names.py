"""Names: text in which each byte is predicted from the five before it.

Takes     bytes that end with 0, and the five before them.
Gives     the same bytes.
Unaware   of encodings of text.
"""

import numpy as np

from reefknot.codec.kernels.prediction import code_mixed, count, shrunk
from reefknot.codec.kernels.range_coder import LOOKAHEAD, POSITION
from reefknot.kernels.jit import compiled, inlined

TEXT_BITS = 14
TEXT_SLOTS = (1 << TEXT_BITS) + 256
TEXT_PRIORS = (2, 1, 1, 1, 1)
TEXT_LR = 24


@inlined
def text_slot(context, node):
    """The slot of a bit: a hash of the bytes before and of the bits of its byte so far."""
    mixed = ((context * 1000003 + node) * 0x2545F491) & 0xFFFFFFFF
    return 256 + (mixed >> (32 - TEXT_BITS))


@compiled(
    "int64(int64[::1], uint8[::1], uint8[::1], int64, uint32[::1], "
    "int64[::1], int64[::1], int64[::1])",
    allocates=False,
    steps=lambda coder, buffer, text, at, *_: 16 * (len(text) - at),
)
def code_text(coder, buffer, text, at, table, weights, slots, work):
    """Code text[at] up to and including the next 0; gives the index after it, or -1."""
    while at < len(text) and coder[POSITION] - len(buffer) <= LOOKAHEAD:
        history = np.int64(0)
        for back in range(1, 6):
            byte = np.int64(text[at - back]) if at >= back else 0
            history |= byte << (8 * (back - 1))
        goal = np.int64(text[at])
        node = np.int64(1)
        for shift in range(7, -1, -1):
            slots[0] = text_slot((history & 0xFF) * 8 + 1, node)
            slots[1] = text_slot((history & 0xFFFF) * 8 + 2, node)
            slots[2] = text_slot((history & 0xFFFFFF) * 8 + 3, node)
            slots[3] = text_slot((history & 0xFFFFFFFF) % 0xFFFFFB * 8 + 4, node)
            slots[4] = text_slot(history % 0xFFFFFB * 8 + 5, node)
            bit = code_mixed(
                coder, buffer, (goal >> shift) & 1, shrunk(table, node, 2, 32768), table, slots,
                TEXT_PRIORS, weights, 0, TEXT_LR, work,
            )  # fmt: skip
            count(table, node, bit)
            node = node * 2 + bit
        text[at] = node & 0xFF
        at += 1
        if node == 256:
            return at
    return -1
