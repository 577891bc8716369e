"""What symbols cost: the bits of a message, given how often each of its symbols occurs.

Takes     counts of symbols.
Gives     the entropy of one symbol or of the whole message; the lengths of Huffman code words.
Unaware   of what symbols stand for, and of streams: `.reef` files are written by the range coder.
"""

import heapq

import numpy as np


def entropy(counts: np.ndarray) -> float:
    """The order-0 entropy in bits per symbol.

    >>> entropy(np.array([8, 8]))
    1.0
    """
    share = counts[counts > 0] / max(counts.sum(), 1)
    return max(float(-(share * np.log2(share)).sum()), 0.0)


def message_entropy(counts: np.ndarray) -> float:
    """The order-0 entropy of the whole message in bits.

    >>> message_entropy(np.array([8, 8]))
    16.0
    """
    seen = np.asarray(counts, np.float64)
    seen = seen[seen > 0]
    return float(np.sum(seen * np.log2(seen.sum() / seen)))


def huffman_lengths(counts: np.ndarray) -> np.ndarray:
    """The bits of each symbol's Huffman code word; 0 for symbols that never occur.

    A message with one distinct symbol costs nothing beyond its table: the length is 0 there too.

    >>> huffman_lengths(np.array([5, 0, 2, 1]))
    array([1, 0, 2, 2])
    """
    counts = np.asarray(counts)
    lengths = np.zeros(len(counts), np.int64)
    # Ties are broken by the order in which nodes were made, so the result is always the same.
    heap = [(int(counts[symbol]), int(symbol)) for symbol in np.flatnonzero(counts)]
    heapq.heapify(heap)
    members = {symbol: [symbol] for _, symbol in heap}
    fresh = len(counts)
    while len(heap) > 1:
        (low, first), (high, second) = heapq.heappop(heap), heapq.heappop(heap)
        members[fresh] = members.pop(first) + members.pop(second)
        lengths[members[fresh]] += 1
        heapq.heappush(heap, (low + high, fresh))
        fresh += 1
    return lengths


def huffman_bits(counts: np.ndarray) -> int:
    """The bits of a Huffman-coded message, its code table not included.

    >>> huffman_bits(np.array([5, 0, 2, 1]))
    11
    """
    return int(np.asarray(counts, np.int64) @ huffman_lengths(counts))
