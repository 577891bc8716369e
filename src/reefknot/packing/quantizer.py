"""Nearly uniform quantization for an entropy coder: one number, the step, decides everything.

Takes     a tensor's values, and a step.
Gives     indices of multiples of the step, and the value that stands for each.
Unaware   of names, files, networks and budgets.

Each value is assigned to the multiple k of the step with the least (w − k·step)² + price · bits(k),
where bits(k) is −log2 of the frequency of k and the price is the Lagrange multiplier of the
rate–distortion trade-off. The price follows from the step: at the optimum of an entropy-coded
quantizer the error is step²/12 and falls by a factor of 4 per bit, so a bit is worth
ln 2/6 · step². That is right within 1 % down to one bit per weight, for Gaussian and Laplacian
values alike. What is stored for a multiple is the mean of its bin; zero stays exactly zero. The
number of values is a result, not a setting.

The cost of a step is estimated from a histogram. Results do not depend on the number of threads:
counts are integers, means are summed in the order of the elements.
"""

import math
from dataclasses import dataclass

import numpy as np

from reefknot.bits import entropy
from reefknot.dtypes import DType, from_numbers, is_zero, significant, to_numbers
from reefknot.packing.changes import CHUNK, as_bits, num_rows, parts_of, sums_of_rows, unit_of
from reefknot.scales import SCALED, Scales
from reefknot.state import Codebook, occurrences

BIT_WORTH = math.log(2) / 6  # of a bit, in squared steps
FINEST = 1 / 128  # the smallest step, relative to the root mean square: some 9 bits per weight
COARSEST = 16.0  # a step with which nearly everything is zero
BINS_PER_RMS = 512
DENSE_RMS = 64  # up to here every bin has a counter; the few values beyond are sorted
COARSE = 1 / 4  # frequencies matter from this step on; below, the nearest multiple is the best
BINS_PER_STEP = 64
# Significant bits of a row's unit: of rows with at least so many elements, and of others, where the
# bytes of the units count for more.
UNIT_BITS, WIDE, NARROW_UNIT_BITS = 3, 64, 2
STEP_BITS = 8  # significant bits of the step that the units multiply
MOST = 2**15 - 2  # the largest multiple of a row's step
ROUNDS = 4  # of assigning and counting


@dataclass(frozen=True)
class Histogram:
    """How often values of each size occur in a tensor, in units of its root mean square."""

    size: int
    rms: float
    bins: np.ndarray  # those that are occupied, ascending; bin 0 holds zero
    counts: np.ndarray  # of each of them

    @classmethod
    def of(cls, values: np.ndarray, dtype: DType, units: np.ndarray | None = None) -> "Histogram":
        """Count a tensor, in units of its rows if there are any; all of its values are finite."""
        unit = unit_of(values, dtype) if units is None else 1.0
        parts = parts_of(values, dtype, units)
        total = sum(float(np.square(part / unit).sum()) for _, part in parts)
        rms = math.sqrt(total / values.size) * unit if values.size else 0.0
        middle = DENSE_RMS * BINS_PER_RMS
        dense, beyond = np.zeros(2 * middle + 1, np.int64), [np.zeros(0, np.int64)]
        for _, part in parts_of(values, dtype, units):
            if rms:
                where = np.rint(part / rms * BINS_PER_RMS).astype(np.int64)
                far = np.abs(where) > middle
                if far.any():
                    beyond.append(where[far])
                    where = where[~far]
                dense += np.bincount(where + middle, minlength=dense.size)
        near = np.flatnonzero(dense)
        rare, rare_counts = np.unique(np.concatenate(beyond), return_counts=True)
        bins = np.concatenate([near - middle, rare])
        counts = np.concatenate([dense[near], rare_counts])
        order = np.argsort(bins)
        return cls(values.size, rms, bins[order], counts[order])

    def coarse(self, step: float) -> tuple[np.ndarray, np.ndarray]:
        """Occupied bins and their counts, no finer than needed for a step (of the rms)."""
        shift = max(0, int(math.log2(max(step * BINS_PER_RMS / BINS_PER_STEP, 1))))
        occupied, place = np.unique(np.rint(self.bins / (1 << shift)), return_inverse=True)
        return occupied * ((1 << shift) / BINS_PER_RMS), np.bincount(place, self.counts)


@dataclass(frozen=True)
class Quantizer:
    """Which multiple of a step each value is assigned to, and what that costs by the histogram."""

    step: float
    multiples: np.ndarray  # ascending
    limits: np.ndarray  # between two neighbours; not used by a fine step
    bits: float  # per weight, by order-0 entropy
    error: float  # mean squared error over mean square

    @classmethod
    def of(cls, histogram: Histogram, step: float) -> "Quantizer":
        """The best quantizer for a step, in units of the root mean square."""
        places, counts = histogram.coarse(step)
        if not len(places):
            return cls(step, np.zeros(1, np.int64), np.zeros(0), 0.0, 0.0)
        chosen = np.rint(places / step).astype(np.int64)
        multiples, limits = np.unique(chosen), np.zeros(0)
        if step >= COARSE:
            for _ in range(ROUNDS):
                multiples, limits = _limits(chosen, counts, step)
                chosen = multiples[np.searchsorted(limits, places, side="right")]
        low = int(chosen.min())
        mass = np.bincount(chosen - low, counts)
        mean = np.bincount(chosen - low, counts * places) / np.maximum(mass, 1)
        error = float((counts * np.square(places - mean[chosen - low])).sum() / counts.sum())
        error += 1 / (12 * BINS_PER_RMS**2)  # inside a bin of the histogram
        return cls(step, multiples, limits, entropy(mass), error)

    def assign(self, values: np.ndarray) -> np.ndarray:
        """The multiple of each value, given in units of the root mean square."""
        near = np.rint(values / self.step).astype(np.int32)
        if self.step >= COARSE:
            near = np.clip(near, self.multiples[0], self.multiples[-1])
            where = np.searchsorted(self.multiples, near)
            edges = np.concatenate([[-np.inf], self.limits, [np.inf]])
            for _ in range(2):  # frequent multiples attract values, across at most two limits
                where += values >= edges[np.minimum(where + 1, len(edges) - 1)]
                where -= values < edges[where]
            near = self.multiples[where].astype(np.int32)
        return near


def _limits(chosen: np.ndarray, counts: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Multiples that are the best choice somewhere, and the limits between them.

    Without w², (w − k·step)² + price · bits(k) is a line in w for each k. The lines that are lowest
    somewhere are the lower convex hull of step²·k² + price · bits(k) over k.
    """
    low = int(chosen.min())
    mass = np.bincount(chosen - low, counts)
    ks = np.flatnonzero(mass)
    bits = -np.log2(mass[ks] / mass.sum())
    ks = ks + low
    heights = (ks.astype(np.float64) * step) ** 2 + BIT_WORTH * step * step * bits
    hull: list[int] = []
    for n in range(len(ks)):
        while len(hull) > 1:
            a, b = hull[-2:]
            left = (heights[b] - heights[a]) * (ks[n] - ks[b])
            if left < (heights[n] - heights[b]) * (ks[b] - ks[a]):
                break
            hull.pop()
        hull.append(n)
    kept, height = ks[hull], heights[hull]
    return kept, np.diff(height) / (2 * step * np.diff(kept))


def quantize(
    values: np.ndarray, dtype: DType, histogram: Histogram, step: float
) -> tuple[Codebook, np.ndarray]:
    """A tensor as a codebook and indices, for a step in units of its root mean square."""
    rms = histogram.rms or 1.0
    quantizer = Quantizer.of(histogram, step)
    multiples = np.empty(values.size, np.int32)
    for at, part in parts_of(values, dtype):
        multiples[at : at + CHUNK] = quantizer.assign(part / rms)
    low = int(multiples.min())
    multiples -= low
    counts = occurrences(multiples, int(multiples.max()) + 1)
    sums = np.zeros(len(counts))
    for at, part in parts_of(values, dtype):
        sums += np.bincount(multiples[at : at + CHUNK], part / rms, len(counts))
    used = np.flatnonzero(counts)
    means = np.where(used + low == 0, 0.0, sums[used] / counts[used])
    book, place = codebook_of(rms * _shortened(means, step), dtype)
    table = np.zeros(len(counts), np.uint16)
    table[used] = place
    indices = table[multiples] if len(book) > 256 else table.astype(np.uint8)[multiples]
    return book, indices.reshape(values.shape)


def units_of_rows(values: np.ndarray, dtype: DType) -> np.ndarray | None:
    """A unit of few bits for each row, near its root mean square; None for types without scales."""
    if dtype.tag not in SCALED:
        return None
    rows = num_rows(values.shape)
    squares = np.zeros(rows)
    for at, part in parts_of(values, dtype):
        squares += sums_of_rows(np.square(part), at, values.size, rows)
    rms = np.sqrt(squares * rows / values.size)
    least = rms[rms > 0].min(initial=np.inf)
    rms[rms == 0] = least if np.isfinite(least) else 1.0
    return significant(rms, _unit_bits(values.size // rows))


def _unit_bits(length: int) -> int:
    return UNIT_BITS if length >= WIDE else NARROW_UNIT_BITS


def quantize_by_row(
    values: np.ndarray, dtype: DType, histogram: Histogram, step: float, units: np.ndarray,
    most: float,
) -> tuple[np.ndarray, Scales] | None:  # fmt: skip
    """A tensor as integers and a scale for each row; the step is in units of its root mean square.

    Rows whose relative error would be above `most` get smaller steps. None if integers of 16 bits
    are not enough for that.
    """
    rms = histogram.rms or 1.0
    base = float(significant(np.array(step * rms), STEP_BITS))
    quantizer = Quantizer.of(histogram, base / rms)
    matrix = np.ascontiguousarray(values).reshape(len(units), -1)
    units, integers = units.copy(), np.zeros(matrix.shape, np.int16)
    left, at_once, first = np.arange(len(units)), max(CHUNK // matrix.shape[1], 1), True
    while len(left):
        above = []
        for at in range(0, len(left), at_once):
            rows = left[at : at + at_once]
            part, scales = to_numbers(matrix[rows], dtype), base * units[rows, None]
            chosen = quantizer.assign(part * (quantizer.step / scales)) if first else part / scales
            if not np.abs(chosen).max() <= MOST:
                return None
            chosen = np.rint(chosen)
            _balance(chosen, part / scales)
            integers[rows] = chosen
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # that has an error
                stored = from_numbers(chosen * scales.astype("<f4").astype(np.float64), dtype)
            lost = np.square(to_numbers(stored, dtype) - part).sum(1)
            above.append(rows[~(lost <= most**2 * np.square(part).sum(1))])
        left, first = np.concatenate(above), False  # the nearest multiples from here on
        units[left] = _next_below(units[left], _unit_bits(matrix.shape[1]))
    # A row of zeros has the scale of the row before it, which is the cheapest; equal ones are one.
    last = np.maximum.accumulate(np.where(integers.any(1), np.arange(len(units)), 0))
    with np.errstate(over="ignore", under="ignore"):
        found, run = (base * units[last]).astype("<f4"), matrix.shape[1]
    if (found == found[0]).all():
        found, run = found[:1], values.size
    if not np.isfinite(found).all():
        return None
    if int(np.abs(integers).max()) < 128:
        integers = integers.astype(np.int8)
    return integers.reshape(values.shape), Scales(dtype, found, run)


def _balance(chosen: np.ndarray, exact: np.ndarray) -> None:
    """Move a few multiples by one, where that is nearly as good, so that rows keep their sums.

    Inputs of a layer often have a common mean, as those after a ReLU do; the error of a row then
    does harm by its sum, too. Zeros stay zero.
    """
    away = chosen - exact
    total = np.rint(away.sum(1, keepdims=True))
    away *= np.sign(total)
    order = np.argsort(-away, axis=1, kind="stable")
    moved = np.minimum(np.abs(total), (away > 0).sum(1, keepdims=True))
    down = np.where(np.arange(chosen.shape[1]) < moved, np.sign(total), 0)
    np.put_along_axis(chosen, order, np.take_along_axis(chosen, order, 1) - down, 1)


def _next_below(units: np.ndarray, bits: int) -> np.ndarray:
    """The next smaller units of so many bits."""
    fraction, exponent = np.frexp(units)
    count = fraction * 2**bits
    lower = np.where(count > 2 ** (bits - 1), count - 1, count - 0.5)
    return np.asarray(np.ldexp(lower, exponent - bits))


def _shortened(values: np.ndarray, step: float) -> np.ndarray:
    """Values rounded to so few significant bits that the codebook is small, and no more."""
    most = float(np.abs(values).max(initial=0.0)) / step
    bits = 5 + math.ceil(math.log2(max(most, 2)))
    return significant(values, bits)


def codebook_of(values: np.ndarray, dtype: DType) -> tuple[Codebook, np.ndarray]:
    """A codebook of these values in an element type, and where each of them is in it."""
    stored = from_numbers(values, dtype)
    bits = as_bits(stored, dtype).copy()
    bits[is_zero(stored, dtype)] = 0
    distinct, place = np.unique(bits, return_inverse=True)
    return Codebook(dtype, distinct.view(dtype.storage)), place.astype(np.uint16)
