"""The weights of all stages as one bit stream, with the codes to read it.

Takes     matrices of weights and their biases, stage by stage.
Gives     `WeightBits`: bytes, two prefix codes, the shared values, and where the biases are.
Unaware   of convolutions and of C.

An output is its bias (a bit, then its value, where biases are shared values too), then a step and a
value for each weight that is not zero, then a step of 0. A step is the distance from the non-zero
weight before; it is coded as its number of bits (its class), then the bits below the highest.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reefknot.bits import huffman_lengths
from reefknot.errors import ConfigError

MAX_VALUES = 255


@dataclass(frozen=True, eq=False)
class Matrix:
    """The weights of one stage: a row for each output."""

    name: str
    weight: np.ndarray
    bias: np.ndarray
    scale: np.ndarray | None = None

    @property
    def has_tables(self) -> bool:
        """Whether its outputs are scaled, or have a bias."""
        return self.scale is not None or bool(self.bias.any())


@dataclass(frozen=True)
class PrefixCode:
    """`symbols` in the order of their codes; `counts[i]` of them have i + 1 bits."""

    symbols: tuple[int, ...]
    counts: tuple[int, ...]

    def codes(self) -> dict[int, str]:
        """The bits of each symbol, in the order they are written.

        >>> PrefixCode((0, 3, 1), (1, 2)).codes()
        {0: '0', 3: '10', 1: '11'}
        """
        made, code, at = {}, 0, 0
        for length, count in enumerate(self.counts, start=1):
            code <<= 1
            for symbol in self.symbols[at : at + count]:
                made[symbol] = f"{code:0{length}b}"
                code += 1
            at += count
        return made


def huffman(frequencies: np.ndarray) -> PrefixCode:
    """The shortest canonical code of the symbols 0, 1, 2, ...; a single one has one bit.

    >>> huffman(np.array([1, 5, 0, 1]))
    PrefixCode(symbols=(1, 0, 3), counts=(1, 2))
    """
    lengths = huffman_lengths(frequencies)
    used = np.flatnonzero(frequencies)
    if len(used) == 1:
        lengths[used] = 1
    order = used[np.argsort(lengths[used], kind="stable")]
    return PrefixCode(tuple(order.tolist()), tuple(np.bincount(lengths[used])[1:].tolist()))


@dataclass(frozen=True, eq=False)
class WeightBits:
    """Everything that the engine needs to decode the weights."""

    data: bytes
    step_code: PrefixCode  # of classes; 0 ends a row
    value_code: PrefixCode  # of ranks: a stage's values from frequent to rare
    values: tuple[np.ndarray, ...]  # one table for all stages, or one for each
    biases: Literal["none", "coded", "table"]
    tables: tuple[
        np.ndarray, ...
    ]  # biases, and scales if there are any, of matrices that have them

    def table(self, stage: int) -> int:
        """Where the values of a stage begin."""
        return 0 if len(self.values) == 1 else sum(map(len, self.values[:stage]))

    def count(self, stage: int) -> int:
        """How many values a stage has."""
        return len(self.values[0 if len(self.values) == 1 else stage])

    @property
    def flash_bytes(self) -> int:
        """What the tables take up."""
        codes = len(self.step_code.counts) + len(self.step_code.symbols)
        codes += len(self.value_code.counts)
        return len(self.data) + codes + 4 * sum(map(len, (*self.values, *self.tables)))


def weight_bits(matrices: Sequence[Matrix]) -> WeightBits:
    """The smaller of one table of values for all stages and one for each."""
    found = [_nonzero_counts(matrix) for matrix in matrices]
    everything = sum(found, Counter())
    choices: list[tuple[np.ndarray, ...]] = []
    if len(everything) <= MAX_VALUES:
        choices.append((_by_frequency(everything),))
    if len(matrices) > 1:
        choices.append(tuple(map(_by_frequency, found)))
    coded = [_coded(matrices, tables, _place(matrices, tables)) for tables in choices]
    return min(coded, key=lambda one: one.flash_bytes)


def _nonzero_counts(matrix: Matrix) -> Counter[float]:
    values, counts = np.unique(matrix.weight[matrix.weight != 0], return_counts=True)
    if len(values) > MAX_VALUES:
        raise ConfigError(
            f"{matrix.name!r} has {len(values):,} different weights, C takes at most {MAX_VALUES}: "
            "tie them first, with a method or with `reefknot pack --clusters`, which leaves small "
            "tensors as they are unless you give --min-size 0"
        )
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))


def _place(
    matrices: Sequence[Matrix], tables: tuple[np.ndarray, ...]
) -> Literal["none", "coded", "table"]:
    """Where the biases go: among the weights, if all of them have values of the weights."""
    if any(matrix.scale is not None for matrix in matrices):
        return "table"  # outputs are scaled, and biases are not
    if not any(matrix.has_tables for matrix in matrices):
        return "none"
    each = tables * len(matrices) if len(tables) == 1 else tables
    shared = all(
        np.isin(matrix.bias[matrix.bias != 0], table).all()
        for matrix, table in zip(matrices, each, strict=True)
    )
    return "coded" if shared else "table"


def _tables(matrices: Sequence[Matrix]) -> tuple[np.ndarray, ...]:
    """Biases, and scales if any output is scaled, row by row."""
    mine = [matrix for matrix in matrices if matrix.has_tables]
    found = [np.concatenate([matrix.bias for matrix in mine])]
    if any(matrix.scale is not None for matrix in mine):
        scales = (np.ones_like(m.bias) if m.scale is None else m.scale for m in mine)
        found.append(np.concatenate([*scales]))
    return tuple(found)


def _by_frequency(counts: Counter[float]) -> np.ndarray:
    ordered = sorted(counts, key=lambda value: (-counts[value], value))
    return np.array(ordered or [0.0], np.float32)  # a stage of zeros still has a table


def _coded(
    matrices: Sequence[Matrix],
    tables: tuple[np.ndarray, ...],
    biases: Literal["none", "coded", "table"],
) -> WeightBits:
    rows = []  # (rank of the bias or None, [(step, rank), ...])
    for stage, matrix in enumerate(matrices):
        table = tables[0 if len(tables) == 1 else stage]
        rank = {value: number for number, value in enumerate(table.tolist())}
        for weights, bias in zip(matrix.weight, matrix.bias.tolist(), strict=True):
            places = np.flatnonzero(weights)
            steps = np.diff(places, prepend=-1).tolist()
            ranks = [rank[value] for value in weights[places].tolist()]
            rows.append((rank[bias] if bias and biases == "coded" else None, steps, ranks))
    step_classes = np.zeros(64, np.int64)
    ranks_used = np.zeros(max(map(len, tables)), np.int64)
    for bias_rank, steps, ranks in rows:
        for step in (*steps, 0):
            step_classes[step.bit_length()] += 1
        for number in ranks if bias_rank is None else (*ranks, bias_rank):
            ranks_used[number] += 1
    step_code, value_code = huffman(step_classes), _monotone(ranks_used)
    steps_as, ranks_as = step_code.codes(), value_code.codes()
    bits = []
    for bias_rank, steps, ranks in rows:
        if biases == "coded":
            bits.append("0" if bias_rank is None else "1" + ranks_as[bias_rank])
        for step, number in zip(steps, ranks, strict=True):
            length = step.bit_length()
            bits += [steps_as[length], f"{step:b}"[1:], ranks_as[number]]
        bits.append(steps_as[0])
    text = "".join(bits)
    packed = np.packbits(np.frombuffer(text.encode(), np.uint8) - ord("0"), bitorder="little")
    more = _tables(matrices) if biases == "table" else ()
    return WeightBits(packed.tobytes(), step_code, value_code, tables, biases, more)


def _monotone(counts: np.ndarray) -> PrefixCode:
    """A code whose lengths do not fall with the rank, so that its symbols are 0, 1, 2, ...

    Every rank has a code, so that no table of symbols is needed. Ranks are sorted by frequency in
    each stage, so they nearly are over all stages.
    """
    code = huffman(np.sort(np.maximum(counts, 1))[::-1])
    return PrefixCode(tuple(range(len(counts))), code.counts)  # equal counts may differ in length
