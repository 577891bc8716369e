"""Static tables: symbols by their overall frequency, fast in both directions (`fast`).

Takes     a row of symbols below `size`.
Gives     bytes, from which the same symbols come back at tens of millions a second.
Unaware   of where the bytes are kept.

A part is stored plainly where a table would not pay. Frequencies sum to 2^12, or 2^16 for more
than 256 symbols; the symbols are coded by four interleaved rANS states.
"""

from collections.abc import Callable

import numpy as np

from reefknot.codec.coder import Coder
from reefknot.codec.kernels import rans as k
from reefknot.errors import FormatError
from reefknot.state import occurrences

STATE_BYTES = 5
CHUNK = 1 << 20  # symbols that are decoded at a time, to bound memory; a multiple of the states


def write_symbols(coder: Coder, symbols: np.ndarray, size: int) -> bytes:
    """Write the table to `coder`; gives the bytes of the symbols."""
    symbols = np.ascontiguousarray(symbols, np.uint16)
    precision = _precision(size)
    frequency = normalised(occurrences(symbols, size), precision)
    coder.numbers(frequency.copy(), "frequency")
    start = np.concatenate(([0], np.cumsum(frequency)[:-1]))
    words = np.zeros(len(symbols) + 8, np.uint16)
    states = np.full(k.STATES, k.STATE_LOW, np.int64)
    used = int(k.rans_encode(symbols, frequency, start, precision, words, states))
    coder.number(used, "words")
    head = b"".join(int(state).to_bytes(STATE_BYTES, "little") for state in states)
    return head + words[:used][::-1].astype("<u2").tobytes()


def read_symbols(
    coder: Coder, take: Callable[[int], bytes], symbols: np.ndarray, size: int
) -> None:
    """Fill a row with symbols below `size`; `take(n)` gives the next n bytes of them."""
    precision = _precision(size)
    total = 1 << precision
    frequency = coder.numbers(np.zeros(size, np.int64), "frequency")
    coder.check()
    left = coder.number(0, "words")
    coder.check()
    if not size or frequency.max() > total or frequency.sum() != total:
        raise FormatError("a table of frequencies does not fit its symbols; fetch the file again")
    head = take(k.STATES * STATE_BYTES)
    states = np.array(
        [
            int.from_bytes(head[at : at + STATE_BYTES], "little")
            for at in range(0, len(head), STATE_BYTES)
        ],
        np.int64,
    )
    present = np.flatnonzero(frequency)
    share = frequency[present]
    first = np.cumsum(share) - share
    entries = np.arange(total) + np.repeat((present << 32) + ((share - 1) << 16) - first, share)
    part = np.zeros(min(CHUNK, len(symbols)), np.uint16)
    words, held = np.zeros(len(part), np.uint16), 0
    for at in range(0, len(symbols), CHUNK):
        number = min(CHUNK, len(symbols) - at)
        more = max(0, min(number - held, left))  # a symbol takes one word at most
        words[held : held + more] = np.frombuffer(take(2 * more), "<u2")
        held, left = held + more, left - more
        used = int(k.rans_decode(part[:number], entries, precision, words[:held], states))
        symbols[at : at + number] = part[:number]
        held -= used
        words[:held] = words[used : used + held].copy()
    if left or held or np.any(states != k.STATE_LOW):
        raise FormatError("a stream of symbols does not end where it should; fetch the file again")


def normalised(counts: np.ndarray, precision: int) -> np.ndarray:
    """Frequencies that sum to 2^precision, at least 1 for each symbol that occurs."""
    total, number = 1 << precision, int(counts.sum())
    if not number:
        result = np.zeros(len(counts), np.int64)
        result[0] = total
        return result
    result = np.maximum(counts.astype(np.int64) * total // number, counts > 0).astype(np.int64)
    missing = total - int(result.sum())
    order = np.lexsort((np.arange(len(counts)), -counts.astype(np.int64)))
    while missing:
        for symbol in order:  # the most frequent symbols absorb what rounding left
            if not missing:
                break
            step = max(missing, -(int(result[symbol]) // 2)) if missing < 0 else missing
            if counts[symbol] and result[symbol] + step >= 1:
                result[symbol] += step
                missing -= step
    return result


def _precision(size: int) -> int:
    return 12 if size <= 256 else 16
