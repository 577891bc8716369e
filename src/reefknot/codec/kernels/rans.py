"""Fast streams: symbols by their overall frequency, from four interleaved rANS states.

Takes     symbols and their frequencies, or the words of a stream.
Gives     words, or symbols.
Unaware   of how tables of frequencies are stored.
"""

import numpy as np

from reefknot.kernels.jit import compiled, inlined

STATES = 4
STATE_LOW = 1 << 24  # a state is in [STATE_LOW, STATE_LOW · 65536)


@compiled(
    "int64(uint16[::1], int64[::1], int64[::1], int64, uint16[::1], int64[::1])",
    allocates=False,
    steps=lambda symbols, *_: len(symbols),
)
def rans_encode(symbols, frequency, start, precision, words, states):
    """Write symbols, and words for a decoder, from last to first; gives the number of words."""
    at = np.int64(0)
    for i in range(len(symbols) - 1, -1, -1):
        symbol = symbols[i]
        share = frequency[symbol]
        state = states[i & (STATES - 1)]
        if state >= ((STATE_LOW >> precision) << 16) * share:
            words[at] = state & 0xFFFF
            at += 1
            state >>= 16
        states[i & (STATES - 1)] = ((state // share) << precision) + state % share + start[symbol]
    return at


@inlined
def taken(state, entries, precision):
    """The symbol of a state, and the state after it."""
    entry = entries[state & ((np.int64(1) << precision) - 1)]
    return entry >> 32, (((entry >> 16) & 0xFFFF) + 1) * (state >> precision) + (entry & 0xFFFF)


@inlined
def renewed(state, words, at, words_left):
    """The state, refilled if it is too small, the next word, and how many words are left.

    A damaged stream may ask for more words than there are: it gets none.
    """
    if state < STATE_LOW and words_left > 0:
        state = (state << 16) | np.int64(words[at])
        at += 1
        words_left -= 1
    return state, at, words_left


@compiled(
    "int64(uint16[::1], int64[::1], int64, uint16[::1], int64[::1])",
    allocates=False,
    steps=lambda symbols, *_: len(symbols),
)
def rans_decode(symbols, entries, precision, words, states):
    """Read symbols; `entries` has symbol, frequency - 1 and offset of a slot. Gives words used."""
    at = np.int64(0)
    full = len(symbols) & ~(STATES - 1)
    one, two, three, four = states[0], states[1], states[2], states[3]
    for i in range(0, full, STATES):
        symbols[i], one = taken(one, entries, precision)
        symbols[i + 1], two = taken(two, entries, precision)
        symbols[i + 2], three = taken(three, entries, precision)
        symbols[i + 3], four = taken(four, entries, precision)
        words_left = min(STATES, len(words) - at)
        one, at, words_left = renewed(one, words, at, words_left)
        two, at, words_left = renewed(two, words, at, words_left)
        three, at, words_left = renewed(three, words, at, words_left)
        four, at, words_left = renewed(four, words, at, words_left)
    states[0], states[1], states[2], states[3] = one, two, three, four
    for i in range(full, len(symbols)):
        symbols[i], state = taken(states[i & (STATES - 1)], entries, precision)
        states[i & (STATES - 1)], at, _ = renewed(state, words, at, len(words) - at)
    return at
