"""Prefix codes, as the C engine reads them.

Takes     how often each symbol occurs.
Gives     a canonical Huffman code: symbols by length, and how many have 1, 2, 3, ... bits.
Unaware   of what symbols mean.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from reefknot.bits import huffman_lengths

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class PrefixCode(Generic[T]):
    """`symbols` in the order of their codes; `counts[i]` of them have i + 1 bits."""

    symbols: tuple[T, ...]
    counts: tuple[int, ...]

    def codes(self) -> dict[T, str]:
        """The bits of each symbol, in the order they are written.

        >>> PrefixCode(("a", "b", "c"), (1, 2)).codes()
        {'a': '0', 'b': '10', 'c': '11'}
        """
        made, code, at = {}, 0, 0
        for length, count in enumerate(self.counts, start=1):
            code <<= 1
            for symbol in self.symbols[at : at + count]:
                made[symbol] = f"{code:0{length}b}"
                code += 1
            at += count
        return made


def huffman(frequencies: Counter[T], order: Sequence[T]) -> PrefixCode[T]:
    """The shortest code; symbols of equal length are in the order of `order`.

    >>> huffman(Counter({"a": 5, "b": 1, "c": 1}), "abc")
    PrefixCode(symbols=('a', 'b', 'c'), counts=(1, 2))
    """
    rank = {symbol: number for number, symbol in enumerate(order)}
    found = huffman_lengths(np.array([frequencies[symbol] for symbol in order], np.int64)).tolist()
    lengths = {symbol: n for symbol, n in zip(order, found, strict=True) if frequencies[symbol]}
    used = list(lengths)
    if len(used) == 1:
        lengths[used[0]] = 1
    symbols = tuple(sorted(used, key=lambda symbol: (lengths[symbol], rank[symbol])))
    longest = max(lengths.values(), default=0)
    counts = tuple(list(lengths.values()).count(n) for n in range(1, longest + 1))
    return PrefixCode(symbols, counts)
