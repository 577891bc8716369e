"""One budget for a whole checkpoint: steps for all tensors, so that a bit is worth the same in all.

Takes     tensors, and a size, bits per weight, or a relative error that no row exceeds.
Gives     a `BudgetPlan`, which ties each tensor when asked, as `clustering.Plan` does.
Unaware   of files; their size is passed to it.

Without inputs it is unknown what a tensor's error does to the outputs. The assumption here: the
same relative error does the same harm in every row of a tensor, and in every tensor. So the steps
of rows are relative to their size, and `error² / number of elements` is equal over tensors, which
is when a bit is worth the same in all of them. Embedding tables, of which an input reads a few
rows, may be coarser; position embeddings, which every input reads, are finer. So is an output
layer, after which no layer is left to average errors out, and an input layer, since what it reads
may range over decades, from silence to noise.

All steps follow from one number, a bound: no row of any tensor has a larger relative error.
"""

import math
import numbers
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from reefknot.bits import entropy, message_entropy
from reefknot.dtypes import DTYPES, DType
from reefknot.errors import ConfigError
from reefknot.packing.changes import Change, change_of
from reefknot.packing.clustering import Settings, Tensor
from reefknot.packing.quantizer import (
    COARSEST,
    FINEST,
    Histogram,
    Quantizer,
    quantize,
    quantize_by_row,
    units_of_rows,
)
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor, occurrences
from reefknot.tensorfile import FoundTensor

# Factors on squared error: of embeddings, of position embeddings, of output and input layers.
COARSER_TABLE, FINER_TABLE, FINER_OUTPUTS, FINER_INPUTS = 2.0, 0.5, 1 / 8, 1 / 32
FEW_CHANNELS = 4  # that a convolution reads which is an input layer, or depthwise
MANY_ROWS = 4096  # an embedding table has at least so many
STEPS = FINEST * 2.0 ** np.array([0, 2, 4, *np.arange(5, 11.01, 0.25)])
MIN_SIZE = 256  # less than with clusters: a small tensor gets a fine step
SLACK = 1.15  # a row may have so many times the error that its tensor is meant to have
LEAST, EVERYTHING = 2.0**-30, 2.0**30  # bounds: with the last one everything is zero
# For rows that share a step: by a little more than needed, at most by so much, and the last one.
FINER, FINER_AT_ONCE, FINEST_OF_ALL = 0.99, 0.25, 2.0**-12
BOOK_BYTES = 1.5  # that a value of a codebook takes in a file, about
_POSITIONS = re.compile(r"(^|[._])(wpe|pos|pos_?emb\w*|\w*position\w*|places)([._]|$)", re.I)
_LOOK_UP = re.compile(r"embed|(^|[._])(wte|tok|tokens?|emb|vocab)([._]|$)", re.I)
_INPUTS = re.compile(r"(^|[._])(weight_ih_l0(_reverse)?$|stem[._]|patch_embed)", re.I)
_OUTPUTS = re.compile(r"(^|\.)(classifier|logits|\w*head)\.weight$|^(model\.)?fc\.weight$")


@dataclass(frozen=True)
class Budget:
    """What a packed network may cost: exactly one of the three."""

    size: int | None = None  # bytes of the file
    bits: float | None = None  # 8 · bytes of the file / elements
    error: float | None = None  # relative, of the weights, or of the outputs where inputs are given

    def __post_init__(self) -> None:
        given = [name for name in ("size", "bits", "error") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(
                "give one of size (--size), bits (--bits) and error (--error), "
                f"found {' and '.join(given) or 'none'}"
            )
        value = getattr(self, given[0])
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ConfigError(f"{given[0]} is a number above 0, found {value!r}")
        if not math.isfinite(value) or value <= 0:
            raise ConfigError(f"{given[0]} (--{given[0]}) is a number above 0, not {value}")
        if self.error is not None and self.error >= 1:
            raise ConfigError(f"error (--error) is relative and below 1, not {self.error}")

    def bytes_for(self, elements: int) -> int | None:
        """The size of the file that is asked for; None if an error is."""
        if self.bits is not None:
            return int(self.bits * elements / 8)
        return self.size


@dataclass(frozen=True)
class Curve:
    """What a tensor costs at each of STEPS."""

    histogram: Histogram
    units: np.ndarray | None  # of its rows; None for a type without scales
    bits: np.ndarray  # per weight
    errors: np.ndarray  # squared, relative
    share: float  # how much squared relative error it may have, relative to others

    @classmethod
    def of(cls, name: str, values: np.ndarray, dtype: DType) -> "Curve":
        """Measure a tensor."""
        units = units_of_rows(values, dtype)
        histogram = Histogram.of(values, dtype, units)
        found = [Quantizer.of(histogram, step) for step in STEPS]
        extra = np.array([8 * BOOK_BYTES * len(q.multiples) for q in found])
        if units is not None:  # integers need no codebook
            extra = np.full(len(found), message_entropy(np.unique(units, return_counts=True)[1]))
        bits = np.array([q.bits for q in found]) + extra / values.size
        errors = np.maximum.accumulate([q.error for q in found])
        share = share_of(name, values.shape)
        return cls(histogram, units, np.minimum.accumulate(bits), errors, share)

    def step_for(self, error: float) -> float:
        """The step that brings this squared relative error."""
        logs = np.log2(np.maximum(self.errors, 1e-12))
        at = np.interp(math.log2(max(error, 1e-12)), logs, np.log2(STEPS))
        return float(2.0**at) if error < self.errors[-1] else COARSEST

    def bits_at(self, step: float) -> float:
        """Bits per weight, by order-0 entropy."""
        return float(np.interp(math.log2(step), np.log2(STEPS), self.bits))


def share_of(name: str, shape: tuple[int, ...]) -> float:
    """How much squared relative error a tensor may have, relative to others."""
    share = float(math.prod(shape))
    if _POSITIONS.search(name):
        return share * FINER_TABLE
    if _OUTPUTS.search(name):
        return share * FINER_OUTPUTS
    if _INPUTS.search(name) or (len(shape) > 2 and shape[1] <= FEW_CHANNELS):
        return share * FINER_INPUTS
    is_table = len(shape) == 2 and shape[0] >= MANY_ROWS and _LOOK_UP.search(name)
    return share * (COARSER_TABLE if is_table else 1.0)


class BudgetPlan:
    """Steps for all tensors of a checkpoint, which follow from `error`, a bound for every row."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.codebooks: list[Codebook] = []
        self.error = 0.0  # relative, that no row exceeds
        self._curves: dict[str, Curve] = {}
        self._largest_share = 0.0

    @classmethod
    def of(cls, settings: Settings, tensors: Iterable[FoundTensor]) -> "BudgetPlan":
        """Look at every tensor once."""
        plan = cls(settings)
        for tensor in tensors:
            values = tensor.read()
            if not settings.why_kept(tensor.name, tensor.dtype, values):
                plan._curves[tensor.name] = Curve.of(tensor.name, values, tensor.dtype)
        plan._largest_share = max((c.share for c in plan._curves.values()), default=0.0)
        return plan

    @property
    def tied(self) -> Collection[str]:
        """The names of the tensors that may be changed."""
        return self._curves.keys()

    def at_error(self, error: float) -> None:
        """Start over with this bound."""
        self.error, self.codebooks = error, []

    def error_for_bytes(self, num_bytes: float) -> float:
        """The bound at which the tensors that are tied take this many bytes, as estimated."""
        low, high = math.log2(LEAST), math.log2(EVERYTHING)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self.estimate(2**middle) < num_bytes else (middle, high)
        return float(2**high)

    def estimate(self, error: float) -> float:
        """Bytes of the tied tensors, by order-0 entropy."""
        curves = self._curves.values()
        return sum(c.bits_at(self._step(c, error)) * c.histogram.size for c in curves) / 8

    def _bound(self, curve: Curve, error: float) -> float:
        """The relative error that no row of a tensor exceeds."""
        return error * math.sqrt(curve.share / self._largest_share)

    def _step(self, curve: Curve, error: float) -> float:
        return curve.step_for((self._bound(curve, error) / SLACK) ** 2)

    def tie(self, name: str, dtype: DType, values: np.ndarray) -> tuple[Tensor, Change]:
        """One tensor as it is to be stored."""
        kept = KeptTensor(name, dtype, values)
        if name not in self._curves:
            reason = self.settings.why_kept(name, dtype, values)
            return kept, Change(name, f"kept exactly: {reason}")
        curve = self._curves[name]
        by_row = curve.units is not None
        found = (self._by_row if by_row else self._as_a_whole)(name, dtype, values, curve)
        if found is None:
            return kept, Change(name, "kept exactly: no steps keep all rows within the error")
        tensor, change = found
        counts = occurrences(tensor.indices, len(self.codebooks[tensor.codebook]))
        return tensor, replace(change, bits=entropy(counts))

    def _by_row(
        self, name: str, dtype: DType, values: np.ndarray, curve: Curve
    ) -> tuple[TiedTensor, Change] | None:
        step, bound = self._step(curve, self.error), self._bound(curve, self.error)
        assert curve.units is not None
        found = quantize_by_row(values, dtype, curve.histogram, step, curve.units, bound)
        if found is None:
            return None
        integers, scales = found
        tensor = TiedTensor(name, *self._book_of(integers), scales)
        stored = TiedState(tuple(self.codebooks), (tensor,)).values(tensor)
        done = f"integers and {len(scales.values):,} scales"
        return tensor, change_of(name, done, values, stored, dtype)

    def _as_a_whole(
        self, name: str, dtype: DType, values: np.ndarray, curve: Curve
    ) -> tuple[TiedTensor, Change] | None:
        """With one step for all rows, which is small enough for each of them."""
        step, bound = self._step(curve, self.error), self._bound(curve, self.error)
        while step > FINEST_OF_ALL:
            book, indices = quantize(values, dtype, curve.histogram, step)
            done = f"tied to {len(book):,} values"
            change = change_of(name, done, values, book.values[indices], dtype)
            if change.worst_row <= bound:
                self.codebooks.append(book)
                return TiedTensor(name, len(self.codebooks) - 1, indices), change
            step *= max(FINER * bound / change.worst_row, FINER_AT_ONCE)
        return None

    def _book_of(self, integers: np.ndarray) -> tuple[int, np.ndarray]:
        """The codebook of a tensor's integers, and where they are in it."""
        if integers.dtype == np.int8:  # one for all, which is the whole range and costs no bytes
            tags = [book.dtype.tag for book in self.codebooks]
            if "I8" not in tags:
                self.codebooks.append(Codebook(DTYPES["I8"], np.arange(-128, 128, dtype=np.int8)))
            at = tags.index("I8") if "I8" in tags else len(tags)
            return at, integers.view(np.uint8) ^ np.uint8(128)
        values, indices = np.unique(integers, return_inverse=True)
        self.codebooks.append(Codebook(DTYPES["I16"], values.astype("<i2")))
        return len(self.codebooks) - 1, indices.reshape(integers.shape).astype(np.uint16)
