"""Low-bit checkpoints: tensors whose elements are an integer times a scale, found exactly.

Takes     a tensor's elements.
Gives     integers and scales that give back exactly its bits, or nothing.
Unaware   of who quantized it, and of how it is stored.

The elements of a group (a row, a channel, some neighbours) are integer multiples of its scale. The
smallest of them is assumed to be 1, 2, 3, ... times the scale, until all others are integer
multiples, too. The scales that give the same elements after rounding are an interval, of which the
one with the fewest significant bits is taken. Then everything is multiplied out again and compared,
bit for bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from reefknot.bits import message_entropy
from reefknot.dtypes import DType, from_numbers, to_numbers
from reefknot.packing.changes import CHUNK, as_bits, distinct_bits
from reefknot.scales import NEGATIVE_ZERO, SCALED, Scales

LARGEST = 255  # of the integers: eight bits, around any zero point
GROUPS = (256, 128, 64, 32, 16)  # elements of a row that share a scale
MOST_DISTINCT = 2 * LARGEST + 2  # elements that one scale can give; zero has two signs
MIN_GROUP = 16  # with fewer, scales take up what integers save
SAMPLE_GROUPS, SAMPLE = 16, 512  # groups that are tried first, and elements of each
_SIGNIFICANT = {"F32": 24, "F16": 11, "BF16": 8}  # bits of an element
MANY_BITS = 24
_SMALLEST = {"F32": -149, "F16": -24, "BF16": -133}  # exponent of the smallest element
SAMPLE_BYTES = 1 << 18  # elements whose bytes are counted
GAIN, MIN_GAIN = 0.95, 64  # its bytes plus MIN_GAIN must be below GAIN of those of version 1
TRUSTED = 0.4  # an integer is known if its quotient is less uncertain than this
REFINEMENTS = 3


@dataclass(frozen=True)
class LowBit:
    """Integers in a tensor's shape, and its scales."""

    integers: np.ndarray  # int8 if they fit, else int16
    scales: Scales

    @property
    def layout(self) -> tuple[int, int]:
        """How the scales are laid out: see `layouts`."""
        return self.scales.run, len(self.scales.values)

    def pays(self, values: np.ndarray, dtype: DType, distinct: int | None) -> bool:
        """Whether this is clearly smaller than what version 1 of the format can do.

        That is a codebook of so many distinct values or, if they are not few, bytes as they are.
        The estimates are entropies, and favour version 1, which more programs can read.
        """
        bits = as_bits(values, dtype)
        if distinct is None:
            sample = bits[:SAMPLE_BYTES].view(np.uint8).reshape(-1, dtype.item_bytes)
            plain = _byte_entropy(sample) * len(bits) / max(len(sample), 1)
        else:
            plain = _entropy(bits) + (dtype.item_bytes - 1) * distinct
        return self.estimate() + MIN_GAIN < GAIN * plain

    def estimate(self) -> float:
        """Bytes in a file, about."""
        used = self.scales.values.view(np.uint8).reshape(-1, 4).any(0)  # low bytes may all be zero
        return _entropy(self.integers) + len(self.scales.values) * int(used.sum())


def find(values: np.ndarray, dtype: DType, layout: tuple[int, int] | None = None) -> LowBit | None:
    """The integers and scales of a tensor, in the best layout or in the given one.

    The layout with the fewest scales is the best. In types of few bits, two scales may appear to be
    multiples of a third one, with larger integers; there layouts with more scales are tried as long
    as they are smaller.
    """
    best: LowBit | None = None
    ways = () if dtype.tag not in SCALED else layouts(values.shape) if layout is None else [layout]
    for run, count in ways:
        found = _found(values, dtype, run, count)
        if found is None:
            continue
        if best is not None and found.estimate() >= best.estimate():
            break
        best = found
        if _SIGNIFICANT[dtype.tag] == MANY_BITS:
            break
    return best


def _found(values: np.ndarray, dtype: DType, run: int, count: int) -> LowBit | None:
    """The integers and scales of a tensor, if they have this layout."""
    groups = np.ascontiguousarray(values).reshape(-1, count, run)
    some = np.unique(np.linspace(0, count - 1, SAMPLE_GROUPS).astype(int))
    part = groups[:SAMPLE, some, : max(SAMPLE // min(len(groups), SAMPLE), 1)]
    if np.isnan(_scales_of(part, dtype)).any():
        return None
    scales = _scales_of(groups, dtype)
    if np.isnan(scales).any():
        return None
    found = _integers(groups, scales, dtype)
    return found and replace(found, integers=found.integers.reshape(values.shape))


def _entropy(symbols: np.ndarray) -> float:
    """Bytes of a message by the frequency of its symbols."""
    return message_entropy(np.unique(symbols, return_counts=True)[1]) / 8


def _byte_entropy(rows: np.ndarray) -> float:
    """Bytes of elements by entropy, each byte given the next higher one."""
    high = rows[:, ::-1].astype(np.uint16)
    pairs = high[:, :-1] << 8 | high[:, 1:]
    total = _entropy(high[:, 0])
    for column in range(pairs.shape[1]):
        total += _entropy(pairs[:, column]) - _entropy(high[:, column])
    return total


def layouts(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """(run, number of scales) that tools use, those with the fewest scales first."""
    size = int(np.prod(shape, dtype=np.int64))
    found = {(size, 1)}
    for axis in range(len(shape)):
        found.add((int(np.prod(shape[axis + 1 :], dtype=np.int64)), shape[axis]))
    row = size // shape[0] if len(shape) > 1 and shape[0] else size
    for run in (*GROUPS, *shape[-1:]):
        if run and row % run == 0:
            found.add((run, size // run))
    for run, count in sorted(found, key=lambda layout: (layout[1], -layout[0])):
        if count and size >= MIN_GROUP * count:
            yield run, count


def _scales_of(groups: np.ndarray, dtype: DType) -> np.ndarray:
    """A scale for each group along the second axis; NaN where there is none."""
    count = groups.shape[1]
    scales = np.zeros(count, np.float32)
    size = groups.size // max(count, 1)
    at_a_time = max(CHUNK // max(size, 1), 1)
    for at in range(0, count, at_a_time):
        part = groups[:, at : at + at_a_time].swapaxes(0, 1).reshape(-1, size)
        if size > CHUNK:  # a single group
            bits = distinct_bits(part, dtype, MOST_DISTINCT)
            if bits is None:
                return np.full(count, np.nan, np.float32)
            part = bits.view(dtype.storage)[None]
        scales[at : at + at_a_time] = _solve(np.abs(to_numbers(part, dtype)), dtype)
        if np.isnan(scales[at : at + at_a_time]).any():
            return scales
    return scales


def _solve(magnitudes: np.ndarray, dtype: DType) -> np.ndarray:
    """The scale of each row of magnitudes; 0 where all of them are 0, NaN where there is none."""
    relative = 2.0 ** -_SIGNIFICANT[dtype.tag]  # half of the distance between elements
    absolute = 2.0 ** (_SMALLEST[dtype.tag] - 1)
    scales = np.full(len(magnitudes), np.nan, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        largest = magnitudes.max(1, initial=0)
        smallest = np.where(magnitudes > 0, magnitudes, np.inf).min(1, initial=np.inf)
        scales[largest == 0] = 0
        rows = np.flatnonzero((largest > 0) & np.isfinite(largest))
        for times in range(1, LARGEST + 1):
            unit = smallest[rows] / times
            rows = rows[largest[rows] <= (LARGEST + 0.5) * unit]
            if not len(rows):
                break
            unit, own = smallest[rows, None] / times, magnitudes[rows]
            ratios = own / unit
            unsure = 1.01 * (ratios * (2 * relative + absolute / smallest[rows, None]))
            unsure += 1.01 * absolute / unit
            whole = (np.abs(ratios - np.rint(ratios)) <= unsure).all(1)
            found = np.full(len(rows), np.nan, np.float32)
            if whole.any():
                found[whole] = _exact(own[whole], ratios[whole], unsure[whole], dtype)
            scales[rows] = found
            rows = rows[np.isnan(found)]
    return scales


def _exact(
    magnitudes: np.ndarray, ratios: np.ndarray, unsure: np.ndarray, dtype: DType
) -> np.ndarray:
    """The scale with the fewest bits among those that give these elements; NaN if there is none."""
    relative = 2.0 ** -_SIGNIFICANT[dtype.tag]
    for _ in range(REFINEMENTS):  # small integers are certain first, and narrow down the large ones
        low, high = _interval(magnitudes, np.where(unsure < TRUSTED, np.rint(ratios), 0), dtype)
        middle = (low + high)[:, None] / 2
        ratios = magnitudes / middle
        unsure = ratios * (relative + np.abs(high - low)[:, None] / middle / 2)
    integers = np.rint(ratios)
    low, high = _interval(magnitudes, integers, dtype)
    first, last = _floats_between(low, high, open_ended=True)
    one, two = first.view(np.int32).astype(np.int64) - 1, last.view(np.int32).astype(np.int64)
    # A bit pattern above `one` and up to `two`, with as many trailing zeros as possible.
    _, length = np.frexp((one ^ two).astype(np.float64))
    shift = np.maximum(length.astype(np.int64) - 1, 0)
    found = (two >> shift << shift).astype(np.int32).view(np.float32)
    found = np.where(first <= last, found, np.float32(np.nan))
    # At an end of the interval a product is halfway between two elements, and may round either way.
    for end in _floats_between(low, high, open_ended=False):
        products = from_numbers(end.astype(np.float64)[:, None] * integers, dtype)
        right = (to_numbers(products, dtype) == magnitudes).all(1)
        found = np.where(np.isnan(found) & right, end, found)
    return found


def _floats_between(
    low: np.ndarray, high: np.ndarray, *, open_ended: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last float32 between float64 ends, which may be off by rounding."""
    slack = 2.0**-51 if open_ended else -(2.0**-51)
    low, high = low * (1 + slack), high * (1 - slack)
    first, last = low.astype(np.float32), high.astype(np.float32)
    first = np.where(first < low, np.nextafter(first, np.float32(np.inf)), first)
    last = np.where(last > high, np.nextafter(last, np.float32(0)), last)
    return first, last


def _interval(
    magnitudes: np.ndarray, integers: np.ndarray, dtype: DType
) -> tuple[np.ndarray, np.ndarray]:
    """The interval of scales whose products all round to these magnitudes; zeros are ignored."""
    fraction, exponent = np.frexp(magnitudes)
    half = np.ldexp(0.5, np.maximum(exponent - _SIGNIFICANT[dtype.tag], _SMALLEST[dtype.tag]))
    below = np.where(fraction == 0.5, half / 2, half)
    counts = (integers > 0) & (magnitudes > 0)
    divisor = np.where(counts, integers, 1)
    low = np.where(counts, (magnitudes - below) / divisor, 0).max(1)
    high = np.where(counts, (magnitudes + half) / divisor, np.inf).min(1)
    return low, high


def _integers(groups: np.ndarray, found: np.ndarray, dtype: DType) -> LowBit | None:
    """The integers of a tensor whose scales are known; None if a single bit would differ."""
    bits = groups.view(f"<u{dtype.item_bytes}")
    sign = 1 << (8 * dtype.item_bytes - 1)
    # Zeros have the sign of their scale: a group without +0.0 has a negative one.
    negative = (bits == sign).any((0, 2)) & ~(bits == 0).any((0, 2))
    scales = Scales(dtype, np.where(negative, -found, found).astype("<f4"), groups.shape[2])
    flat, result = as_bits(groups, dtype), np.empty(groups.size, np.int16)
    divisor = np.where(found > 0, scales.values, 1).astype(np.float64)
    for at in range(0, len(flat), CHUNK):
        part = to_numbers(flat[at : at + CHUNK].view(dtype.storage), dtype)
        places = np.arange(at, at + len(part)) // scales.run % len(divisor)
        numbers = np.rint(part / divisor[places])
        integers = numbers.astype(np.int16)
        integers[(numbers == 0) & np.signbit(numbers)] = NEGATIVE_ZERO
        if not np.array_equal(
            scales.elements(integers, at).view(bits.dtype), flat[at : at + CHUNK]
        ):
            return None
        result[at : at + CHUNK] = integers
    small = int(result.min()) >= -128 and int(result.max()) <= 127
    return LowBit(result.astype(np.int8) if small else result, scales)
