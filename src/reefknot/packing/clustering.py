"""Tying without training: k-means and magnitude pruning of a network that is finished.

Takes     tensors, how many shared values they may keep, and how many elements may stay non-zero.
Gives     a `TiedState`, and what was done to each tensor.
Paper     section 3.3 for the k-means; without training this is its baseline, not its method.
Unaware   of files. It knows numpy only; torch tensors are turned into arrays first.

Without a number of clusters and a density nothing is changed: tensors that have few distinct
values already are found and tied, the others are kept as they are. With them, one-dimensional and
small tensors (biases, gains of norm layers) are kept all the same unless they are asked for: they
are few bytes, and networks do not survive their loss.
"""

import fnmatch
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from reefknot.dtypes import DTYPES, DType, from_numbers, is_zero, to_numbers
from reefknot.errors import ConfigError, ReefknotError, did_you_mean
from reefknot.kernels.kmeans1d import kmeans1d, nearest
from reefknot.packing import low_bit
from reefknot.packing.changes import (
    CHUNK,
    NOT_FINITE,
    Change,
    Loss,
    is_finite,
    parts_of,
    warnings_about,
)
from reefknot.progress import doing, each
from reefknot.state import MAX_CODEBOOK, Codebook, KeptTensor, TiedState, TiedTensor
from reefknot.tensorfile import reader_of

Scope = Literal["tensor", "network"]
Tensor = KeptTensor | TiedTensor
MANY = 1 << 17  # more distinct values than this are counted in bins
BIN_BITS = 21  # leading bits that decide the bin: of a float32 sign, exponent, 12 bits of fraction
FEW_VALUES = 4096  # with more distinct values than this, coding by index does not pay
BYTE = 256  # with at most so many distinct values, no scales are looked for
MIN_SIZE = 1_024
_CAN_BE_TIED = ("F32", "F16", "BF16", "F64")

log = logging.getLogger("reefknot")


@dataclass(frozen=True)
class Settings:
    """How `cluster` and `pack` tie: see `cluster`."""

    num_clusters: int | None = None
    density: float | None = None
    scope: Scope = "tensor"
    keep: tuple[str, ...] = ()
    min_size: int = MIN_SIZE

    def __post_init__(self) -> None:
        if self.num_clusters is not None and not 2 <= self.num_clusters <= MAX_CODEBOOK:
            raise ReefknotError(
                f"num_clusters (--clusters) is from 2 to {MAX_CODEBOOK:,}, not {self.num_clusters}"
                + ": with one value nothing of a tensor is left" * (self.num_clusters == 1)
            )
        if self.density is not None and not 0 <= self.density <= 1:
            raise ReefknotError(f"density is a fraction from 0 to 1, not {self.density}")
        if self.scope not in ("tensor", "network"):
            raise ReefknotError(f"scope is 'tensor' or 'network', not {self.scope!r}")

    @property
    def lossless(self) -> bool:
        """True if nothing may be changed."""
        return self.num_clusters is None and self.density is None

    def why_kept(self, name: str, dtype: DType, values: np.ndarray) -> str:
        """Why a tensor stays exact, in words; empty if it need not."""
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.keep):
            return "asked for"
        if not dtype.is_float:
            return "not floating point"
        if dtype.tag not in _CAN_BE_TIED:
            return f"{dtype.tag} is small already"
        if values.size < max(self.min_size, 1):
            return "too small"
        if sum(size > 1 for size in values.shape) < 2 and self.min_size:
            return "one-dimensional"  # also a norm layer's weights as (1, channels, 1)
        return "" if is_finite(values, dtype) else NOT_FINITE


@doing("clustering")
def cluster(
    state_dict: Mapping[str, Any],
    num_clusters: int | None = None,
    density: float | None = None,
    scope: Scope = "tensor",
    keep: Sequence[str] = (),
    min_size: int = MIN_SIZE,
) -> TiedState:
    """Tie a finished network: each floating-point tensor to a few shared values.

    Args:
        state_dict: tensors by name, numpy or torch.
        num_clusters: how many values a scope may keep, zero included.
        density: the fraction of elements that may stay non-zero; the smallest go first.
        scope: a codebook (and a threshold) for each tensor, or one for the network.
        keep: patterns of names (`*.bias`) that stay exact.
        min_size: tensors with fewer elements stay exact, and so do those of fewer than two
            dimensions; with 0 all of them are tied.

    Zeros stay zero, and zero then is one of the `num_clusters` values, however rare it is: with 2
    clusters all non-zeros get the one value left. Non-zeros stay non-zero, unless a density is
    given; then they become zero where that is the nearest value. A logged warning names tensors
    that lose more than a tenth of their energy, and those kept because of NaN or infinity.
    """
    if not isinstance(state_dict, Mapping):
        raise ReefknotError(
            f"cluster takes tensors by name, found {type(state_dict).__name__}; "
            "try reefknot.cluster(model.state_dict())"
        )
    check_patterns(keep, list(state_dict))
    found: dict[str, tuple[DType, np.ndarray]] = {}
    aliases: dict[str, str] = {}
    owners: dict[Any, str] = {}
    for name, value in state_dict.items():
        identity, dtype, read = reader_of(name, value)
        if identity in owners:
            aliases[name] = owners[identity]
            continue
        owners[identity] = name
        found[name] = (dtype, read())
    settings = Settings(num_clusters, density, scope, tuple(keep), min_size)
    plan = Plan.of(settings, [(n, d, partial(np.asarray, a)) for n, (d, a) in found.items()])
    rows = each("tying", list(found), name=str, size=lambda name: found[name][1].nbytes)
    done = [plan.tie(name, *found[name]) for name in rows]
    for sentence in warnings_about([change for _, change in done]):
        log.warning("reefknot: %s", sentence)
    return TiedState(tuple(plan.codebooks), tuple(tensor for tensor, _ in done), aliases)


def check_patterns(patterns: Iterable[str], names: list[str]) -> None:
    """Refuse a pattern of `keep` that matches no tensor: it is probably a typing error."""
    mistakes = []
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            hint = did_you_mean(pattern, names) or f"names are like {names[:3]}"
            mistakes.append(f"the pattern {pattern!r} of keep (--keep) matches no tensor; {hint}")
    if mistakes:
        raise ConfigError(*mistakes)


class Plan:
    """Which tensors are tied to which values: made in a first pass, carried out in a second.

    The codebooks of a network scope, and of tensors that share their few values, are known after
    the first pass; a tensor that is fitted alone adds its codebook when it is tied.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.codebooks: list[Codebook] = []
        self._few: dict[str, int] = {}  # tensors that are tied losslessly, and to which codebook
        self._layouts: dict[str, tuple[int, int]] = {}  # those of them that have scales
        self._network: dict[str, int] = {}  # by element type: the codebook of the network
        self._threshold = -1.0  # of the network

    @classmethod
    def of(
        cls, settings: Settings, tensors: Sequence[tuple[str, DType, Callable[[], np.ndarray]]]
    ) -> "Plan":
        """The first pass: look at every tensor once."""
        plan = cls(settings)
        if settings.lossless:
            plan._find_few(each("looking at", tensors, name=itemgetter(0)))
        elif settings.scope == "network":
            plan._fit_network([t for t in tensors if settings.why_kept(t[0], t[1], t[2]()) == ""])
        return plan

    def tie(self, name: str, dtype: DType, values: np.ndarray) -> tuple[Tensor, Change]:
        """One tensor as it is to be stored."""
        kept = KeptTensor(name, dtype, values)
        if self.settings.lossless:
            if name not in self._few:
                return kept, Change(name, "kept exactly")
            return self._tie_losslessly(name, dtype, values)
        reason = self.settings.why_kept(name, dtype, values)
        if reason:
            return kept, Change(name, f"kept exactly: {reason}")
        if self.settings.scope == "network":
            return self._tie_to_network(name, dtype, values)
        return self._tie_alone(name, dtype, values)

    # -- lossless ---------------------------------------------------------------------------

    def _tie_losslessly(self, name: str, dtype: DType, values: np.ndarray) -> tuple[Tensor, Change]:
        number, scales, done = self._few[name], None, "tied, nothing changed"
        if name in self._layouts:
            low = low_bit.find(values, dtype, self._layouts[name])
            if low is None:
                raise ReefknotError(f"{name!r} has changed while it was read; try again")
            book = self.codebooks[number]
            values, scales = low.integers.astype(book.dtype.storage), low.scales
            done = f"integers and {len(scales.values):,} scales, nothing changed"
        indices = _lookup(values, self.codebooks[number])
        return TiedTensor(name, number, indices, scales), Change(name, done)

    def _find_few(self, tensors: Iterable[tuple[str, DType, Callable[[], np.ndarray]]]) -> None:
        shared: dict[str, list[tuple[set[int], list[str]]]] = {}
        for name, dtype, read in tensors:
            if (
                any(fnmatch.fnmatchcase(name, pattern) for pattern in self.settings.keep)
                or dtype.tag == "C64"
            ):
                continue
            elements = read()
            bits = few_values(elements, dtype)
            if bits is None or len(bits) > BYTE:
                low = low_bit.find(elements, dtype)
                if low is not None and low.pays(
                    elements, dtype, None if bits is None else len(bits)
                ):
                    self._layouts[name] = low.layout
                    dtype = DTYPES["I8" if low.integers.dtype == np.int8 else "I16"]
                    bits = set(np.unique(low.integers).view(f"<u{dtype.item_bytes}").tolist())
            if bits is None:
                continue
            for values, names in shared.setdefault(dtype.tag, []):
                # Share a codebook with tensors whose values are mostly the same.
                if (
                    len(values | bits) <= max(len(values), len(bits)) + 1
                    and len(values | bits) <= FEW_VALUES
                ):
                    values |= bits
                    names.append(name)
                    break
            else:
                shared[dtype.tag].append((set(bits), [name]))
        for tag, groups in shared.items():
            for values, names in groups:
                array = np.array(sorted(values), f"<u{DTYPES[tag].item_bytes}").view(
                    DTYPES[tag].storage
                )
                self.codebooks.append(Codebook(DTYPES[tag], array))
                self._few |= dict.fromkeys(names, len(self.codebooks) - 1)

    # -- k-means and pruning ----------------------------------------------------------------

    def _fit_network(self, tensors: list[tuple[str, DType, Callable[[], np.ndarray]]]) -> None:
        counts: dict[str, Counts] = {}
        for _, dtype, read in each("counting", tensors, name=itemgetter(0)):
            counts.setdefault(dtype.tag, Counts(dtype)).add(read())
        if self.settings.density is not None and counts:
            points, masses = (
                np.concatenate(c) for c in zip(*(c.line() for c in counts.values()), strict=True)
            )
            self._threshold = threshold(points, masses, self.settings.density)
        for tag, found in counts.items():
            book = fitted(found, self._threshold, self.settings.num_clusters)
            if book is not None:
                self.codebooks.append(book)
                self._network[tag] = len(self.codebooks) - 1

    def _tie_to_network(self, name: str, dtype: DType, values: np.ndarray) -> tuple[Tensor, Change]:
        if dtype.tag not in self._network:
            return _only_pruned(name, dtype, values, self._threshold)
        number = self._network[dtype.tag]
        return _tied(name, dtype, values, self._threshold, self.codebooks[number], number)

    def _tie_alone(self, name: str, dtype: DType, values: np.ndarray) -> tuple[Tensor, Change]:
        counts = Counts(dtype)
        counts.add(values)
        density = self.settings.density
        limit = -1.0 if density is None else threshold(*counts.line(), density)
        book = fitted(counts, limit, self.settings.num_clusters)
        if book is None:
            return _only_pruned(name, dtype, values, limit)
        self.codebooks.append(book)
        return _tied(name, dtype, values, limit, book, len(self.codebooks) - 1)


def distinct_bits(values: np.ndarray, dtype: DType, most: int) -> np.ndarray | None:
    """The raw bits of a tensor's distinct values, ascending; None if there are more than `most`."""
    flat = np.ascontiguousarray(values).reshape(-1).view(f"<u{dtype.item_bytes}")
    seen = np.zeros(0, flat.dtype)
    for at in range(0, len(flat), CHUNK):
        seen = np.union1d(seen, flat[at : at + CHUNK])
        if len(seen) > most:
            return None
    return seen


def few_values(values: np.ndarray, dtype: DType) -> set[int] | None:
    """The raw bits of a tensor's distinct values, if coding by index pays; None otherwise."""
    seen = distinct_bits(values, dtype, min(FEW_VALUES, values.size // 4))
    if seen is None or not len(seen):
        return None
    back = seen.view(dtype.storage)
    if np.any(seen[is_zero(back, dtype)] != 0):  # -0.0 cannot be tied exactly
        return None
    if (
        dtype.is_float
        and dtype.tag in _CAN_BE_TIED
        and not np.isfinite(to_numbers(back, dtype)).all()
    ):
        return None
    return set(seen.tolist())


class Counts:
    """How often each value occurs, in any number of tensors of one element type.

    Many distinct values are counted in bins of neighbouring bit patterns, which are narrow enough
    to be clustered in their place. Every element is counted, so that outliers are never missed.
    """

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.exact = True
        self.zeros = 0
        self._bits = np.zeros(0, f"<u{dtype.item_bytes}")  # distinct, ascending, none a zero
        self._masses = np.zeros(0, np.int64)
        self._shift = max(8 * dtype.item_bytes - BIN_BITS, 0)
        self._bins = self._places = np.zeros(0)  # how many, and the sum of their lower bits

    def add(self, values: np.ndarray) -> None:
        """Count the elements of a tensor."""
        flat = np.ascontiguousarray(values).reshape(-1).view(self._bits.dtype)
        for at in range(0, len(flat), CHUNK):
            part = flat[at : at + CHUNK]
            found = part[(part << 1).astype(bool)]  # shifted, since zeros may have a sign
            self.zeros += len(part) - len(found)
            if self.exact:
                self._count(*np.unique(found, return_counts=True))
            else:
                self._put_in_bins(found)

    def line(self) -> tuple[np.ndarray, np.ndarray]:
        """Ascending values (or means of bins) as float64, and how often each occurs."""
        bits, masses = self._bits, self._masses
        if not self.exact:
            keys = np.flatnonzero(self._bins)
            masses = self._bins[keys].astype(np.int64)
            inside = np.rint(self._places[keys] / masses).astype(bits.dtype)
            bits = (keys.astype(bits.dtype) << self._shift) + inside
        points = to_numbers(bits.view(self.dtype.storage), self.dtype)
        if self.zeros:
            points, masses = np.append(points, 0.0), np.append(masses, self.zeros)
        order = np.argsort(points, kind="stable")
        return points[order], masses[order]

    def _count(self, bits: np.ndarray, masses: np.ndarray) -> None:
        both = np.concatenate([self._bits, bits])
        self._bits, where = np.unique(both, return_inverse=True)
        summed = np.bincount(where, np.concatenate([self._masses, masses]))
        self._masses = summed.astype(np.int64)
        if len(self._bits) > MANY:
            self.exact = False
            self._bins, self._places = np.zeros((2, 1 << BIN_BITS))
            self._put_in_bins(self._bits, self._masses)

    def _put_in_bins(self, bits: np.ndarray, masses: np.ndarray | None = None) -> None:
        keys = (bits >> self._shift).astype(np.int64)
        inside = (bits & ((1 << self._shift) - 1)).astype(np.float64)
        self._bins += np.bincount(keys, masses, len(self._bins))
        inside = inside if masses is None else inside * masses
        self._places += np.bincount(keys, inside, len(self._bins))


def threshold(points: np.ndarray, masses: np.ndarray, density: float) -> float:
    """The magnitude up to which values go to zero, so that a fraction `density` of them is left."""
    total = int(masses.sum())
    left = round(density * total)
    if left >= total:
        return -1.0
    order = np.argsort(np.abs(points), kind="stable")
    last = np.searchsorted(np.cumsum(masses[order]), total - left)
    return float(np.abs(points[order[last]]))


def fitted(counts: Counts, limit: float, num_clusters: int | None) -> Codebook | None:
    """The values to tie others to: zero if there is one, and the centers of the rest."""
    points, masses = counts.line()
    total, alive = int(masses.sum()), np.abs(points) > max(limit, 0.0)
    rest, their_masses = points[alive], masses[alive]
    zeros = total - int(their_masses.sum())
    distinct = len(rest) + (zeros > 0)
    if num_clusters is None:
        if not counts.exact or distinct > min(FEW_VALUES, total // 4):
            return None
        centers = rest
    elif distinct <= num_clusters:
        centers = rest
    else:
        centers = kmeans1d(rest, num_clusters - (zeros > 0), weights=their_masses).centers
        if zeros and limit >= 0 and _some_go_to_zero(rest, centers):
            with_zero = kmeans1d(
                np.append(rest, 0.0), num_clusters, weights=np.append(their_masses, zeros)
            ).centers
            centers = np.delete(with_zero, np.abs(with_zero).argmin())  # zero takes its place
    if zeros:
        centers = np.append(centers, 0.0)
    dtype = counts.dtype
    stored = from_numbers(np.sort(centers), dtype)
    bits = np.unique(stored.view(f"<u{dtype.item_bytes}"))
    back = bits.view(dtype.storage)
    bits[is_zero(back, dtype)] = 0
    return Codebook(dtype, np.unique(bits).view(dtype.storage))


def _some_go_to_zero(values: np.ndarray, centers: np.ndarray) -> bool:
    away = np.abs(centers[nearest(values, centers)] / 2 - values / 2)  # halves do not overflow
    return bool((away >= np.abs(values / 2)).any())


def _tied(
    name: str, dtype: DType, values: np.ndarray, limit: float, book: Codebook, number: int
) -> tuple[Tensor, Change]:
    centers = to_numbers(book.values, dtype)
    order = np.argsort(centers)
    if len(book) > 1 and limit < 0:  # without a density, what is not zero stays so
        order = order[~book.zeros[order]]
    indices = np.empty(values.size, np.uint8 if len(book) <= 256 else np.uint16)
    zero = int(np.argmax(book.zeros)) if book.zeros.any() else -1
    error = Loss(values, dtype)
    for at, part in parts_of(values, dtype):
        chosen = order[nearest(part, centers[order])]
        if zero >= 0:
            chosen[(np.abs(part) <= limit) | (part == 0)] = zero
        indices[at : at + CHUNK] = chosen
        error.add(part, centers[chosen])
    tensor = TiedTensor(name, number, indices.reshape(values.shape))
    return tensor, error.change(name, f"tied to {len(book):,} values")


def _only_pruned(
    name: str, dtype: DType, values: np.ndarray, limit: float
) -> tuple[Tensor, Change]:
    if limit < 0:
        return KeptTensor(name, dtype, values), Change(name, "kept exactly")
    data = np.array(values, order="C")
    flat, error = data.reshape(-1), Loss(values, dtype)
    for at, part in parts_of(values, dtype):
        gone = np.abs(part) <= limit
        flat[at : at + CHUNK][gone] = np.zeros((), dtype.storage)
        error.add(part, np.where(gone, 0.0, part))
    return KeptTensor(name, dtype, data), error.change(name, "pruned")


def _lookup(values: np.ndarray, book: Codebook) -> np.ndarray:
    bits = np.ascontiguousarray(values).view(f"<u{book.dtype.item_bytes}")
    known = book.values.view(bits.dtype)  # ascending, see Plan
    kind = np.uint8 if len(known) <= 256 else np.uint16
    flat, result = bits.reshape(-1), np.empty(bits.size, kind)
    for at in range(0, len(flat), CHUNK):
        result[at : at + CHUNK] = np.searchsorted(known, flat[at : at + CHUNK])
    return result.reshape(values.shape)
