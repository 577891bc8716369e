"""Huffman code lengths: for the paper's accounting of compressed size, and for weights in C.

Takes     how often each symbol occurs.
Gives     the length of each symbol's code word, and the bits of the whole message.
Paper     "maximum compression rate", after Deep Compression (Han 2016, section 4).
Unaware   of streams: `.reef` files are written by the range coder, which is always smaller.
"""

import heapq

import numpy as np


def code_lengths(counts: np.ndarray) -> np.ndarray:
    """The bits of each symbol's code word; 0 for symbols that never occur.

    A message with one distinct symbol costs nothing beyond its table: the length is 0 there too.

    >>> code_lengths(np.array([5, 0, 2, 1]))
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


def message_bits(counts: np.ndarray) -> int:
    """The bits of a message with these symbol counts, its code table not included.

    >>> message_bits(np.array([5, 0, 2, 1]))
    11
    """
    return int(np.asarray(counts, np.int64) @ code_lengths(counts))
