"""One budget for a whole checkpoint: steps for all tensors, so that a bit is worth the same in all.

Takes     tensors, and a size, bits per weight, or a relative error of the weights.
Gives     a `BudgetPlan`, which ties each tensor when asked, as `clustering.Plan` does.
Unaware   of files; their size is passed to it.

Without inputs it is unknown what a tensor's error does to the outputs. The assumption here: the
same relative error does the same harm in every tensor. So `error² / share` is equal over tensors,
where share is (number of elements)^LARGER_IS_COARSER. Embedding tables, of which an input reads a
few rows, may be coarser; position embeddings, which every input reads, are finer, and so is an
output layer, after which no layer is left to average errors out.
"""

import math
import numbers
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from reefknot.bits import entropy
from reefknot.dtypes import DType
from reefknot.errors import ConfigError
from reefknot.packing.changes import Change, change_of
from reefknot.packing.clustering import Settings, Tensor
from reefknot.packing.quantizer import COARSEST, FINEST, Histogram, Quantizer, quantize
from reefknot.state import Codebook, KeptTensor, TiedTensor, occurrences
from reefknot.tensorfile import FoundTensor

LARGER_IS_COARSER = 0.75
# Factors on squared error: of embeddings, of position embeddings, of output layers.
COARSER_TABLE, FINER_TABLE, FINER_OUTPUTS = 2.0, 0.5, 0.125
MANY_ROWS = 4096  # an embedding table has at least so many
STEPS = FINEST * 2.0 ** np.array([0, 2, 4, *np.arange(5, 11.01, 0.25)])
MIN_SIZE = 256  # less than with clusters: a small tensor gets a fine step
BOOK_BYTES = 1.5  # that a value of a codebook takes in a file, about
_POSITIONS = re.compile(r"(^|[._])(wpe|pos|pos_?emb\w*|\w*position\w*|places)([._]|$)", re.I)
_LOOK_UP = re.compile(r"embed|(^|[._])(wte|tok|tokens?|emb|vocab)([._]|$)", re.I)
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
    bits: np.ndarray  # per weight
    errors: np.ndarray  # squared, relative
    share: float  # how much squared relative error it may have, relative to others

    @classmethod
    def of(cls, name: str, values: np.ndarray, dtype: DType) -> "Curve":
        """Measure a tensor."""
        histogram = Histogram.of(values, dtype)
        found = [Quantizer.of(histogram, step) for step in STEPS]
        books = [8 * BOOK_BYTES * len(q.multiples) / values.size for q in found]
        bits = np.minimum.accumulate([q.bits + book for q, book in zip(found, books, strict=True)])
        errors = np.maximum.accumulate([q.error for q in found])
        return cls(histogram, bits, errors, share_of(name, values.shape))

    def step_for(self, error: float) -> float:
        """The step that brings this squared relative error."""
        at = np.interp(math.log2(max(error, 1e-12)), self._log_errors, np.log2(STEPS))
        return float(2.0**at) if error < self.errors[-1] else COARSEST

    def bits_at(self, step: float) -> float:
        """Bits per weight, by order-0 entropy."""
        return float(np.interp(math.log2(step), np.log2(STEPS), self.bits))

    def error_at(self, step: float) -> float:
        """The squared relative error."""
        return float(2.0 ** np.interp(math.log2(step), np.log2(STEPS), self._log_errors))

    @property
    def _log_errors(self) -> np.ndarray:
        return np.log2(np.maximum(self.errors, 1e-12))


def share_of(name: str, shape: tuple[int, ...]) -> float:
    """How much squared relative error a tensor may have, relative to others."""
    share = math.prod(shape) ** LARGER_IS_COARSER
    if _POSITIONS.search(name):
        return share * FINER_TABLE
    if _OUTPUTS.search(name):
        return share * FINER_OUTPUTS
    is_table = len(shape) == 2 and shape[0] >= MANY_ROWS and _LOOK_UP.search(name)
    return share * (COARSER_TABLE if is_table else 1.0)


class BudgetPlan:
    """Steps for all tensors of a checkpoint; they all follow from `level`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.codebooks: list[Codebook] = []
        self.level = 0.0  # log2 of squared relative error over share
        self._curves: dict[str, Curve] = {}

    @classmethod
    def of(cls, settings: Settings, tensors: Iterable[FoundTensor]) -> "BudgetPlan":
        """Look at every tensor once."""
        plan = cls(settings)
        for tensor in tensors:
            values = tensor.read()
            if not settings.why_kept(tensor.name, tensor.dtype, values):
                plan._curves[tensor.name] = Curve.of(tensor.name, values, tensor.dtype)
        return plan

    @property
    def changes_nothing(self) -> bool:
        """Whether there is no tensor that may be changed."""
        return not self._curves

    def ties(self, name: str) -> bool:
        """Whether a tensor is among those that are tied."""
        return name in self._curves

    def at_level(self, level: float) -> None:
        """Start over with this level."""
        self.level, self.codebooks = level, []

    def level_for_bytes(self, num_bytes: float) -> float:
        """The level at which the tensors that are tied take this many bytes, as estimated."""
        return _bisect(lambda level: -self.estimate(level), -num_bytes)

    def level_for_error(self, error: float) -> float:
        """The level of this relative error of all weights that are tied."""
        return _bisect(self._error, error * error)

    def estimate(self, level: float) -> float:
        """Bytes of the tied tensors, by order-0 entropy."""
        curves = self._curves.values()
        return sum(c.bits_at(self._step(c, level)) * c.histogram.size for c in curves) / 8

    def _step(self, curve: Curve, level: float) -> float:
        return curve.step_for(2.0**level * curve.share)

    def _error(self, level: float) -> float:
        lost = norm = 0.0
        unit = max((c.histogram.rms for c in self._curves.values()), default=1.0) or 1.0
        for curve in self._curves.values():
            energy = curve.histogram.size * (curve.histogram.rms / unit) ** 2
            lost += energy * curve.error_at(self._step(curve, level))
            norm += energy
        return lost / norm if norm else 0.0

    def tie(self, name: str, dtype: DType, values: np.ndarray) -> tuple[Tensor, Change]:
        """One tensor as it is to be stored."""
        if name not in self._curves:
            reason = self.settings.why_kept(name, dtype, values)
            return KeptTensor(name, dtype, values), Change(name, f"kept exactly: {reason}")
        curve = self._curves[name]
        step = self._step(curve, self.level)
        book, indices = quantize(values, dtype, curve.histogram, step)
        self.codebooks.append(book)
        tensor = TiedTensor(name, len(self.codebooks) - 1, indices)
        done = f"tied to {len(book):,} values"
        change = change_of(name, done, values, book.values[indices], dtype)
        return tensor, replace(change, bits=entropy(occurrences(indices, len(book))))


LOWEST, HIGHEST = -60.0, 4.0


def _bisect(rising: Callable[[float], float], target: float) -> float:
    """Where a function that does not fall reaches a target."""
    low, high = LOWEST, HIGHEST
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < target else (low, middle)
    return high
