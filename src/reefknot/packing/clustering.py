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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from reefknot.dtypes import DTYPES, DType, is_zero, to_numbers
from reefknot.errors import ConfigError, ReefknotError, did_you_mean
from reefknot.kernels.kmeans1d import kmeans1d, nearest
from reefknot.packing import low_bit
from reefknot.packing.changes import (
    CHUNK,
    NOT_FINITE,
    Change,
    as_bits,
    change_of,
    distinct_bits,
    energy_lost,
    is_finite,
    not_finite,
    parts_of,
)
from reefknot.packing.quantizer import codebook_of
from reefknot.progress import doing, each
from reefknot.state import MAX_CODEBOOK, Codebook, KeptTensor, TiedState, TiedTensor
from reefknot.tensorfile import FoundTensor, reader_of

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

    def asks_for(self, name: str) -> bool:
        """Whether a tensor has to stay exact because of its name."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.keep)

    def why_kept(self, name: str, dtype: DType, values: np.ndarray) -> str:
        """Why a tensor stays exact, in words; empty if it need not."""
        if self.asks_for(name):
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
    found = found_of(state_dict)
    own = [tensor for tensor in found if not tensor.same_as]
    plan = Plan.of(Settings(num_clusters, density, scope, tuple(keep), min_size), own)
    rows = each("tying", own, size=lambda tensor: tensor.num_bytes)
    done = [plan.tie(tensor.name, tensor.dtype, tensor.read()) for tensor in rows]
    changes = [change for _, change in done]
    for sentence in energy_lost(changes) + not_finite(changes):
        log.warning("reefknot: %s", sentence)
    aliases = {tensor.name: tensor.same_as for tensor in found if tensor.same_as}
    return TiedState(tuple(plan.codebooks), tuple(tensor for tensor, _ in done), aliases)


def found_of(
    tensors: Mapping[str, Any], like: Mapping[str, Any] | None = None
) -> list[FoundTensor]:
    """Tensors of a state dict as if from a file; names that share storage in `like` share it."""
    found: list[FoundTensor] = []
    owners: dict[Any, str] = {}
    for name, value in tensors.items():
        identity = reader_of(name, (like or tensors)[name])[0]
        _, dtype, read = reader_of(name, value)
        owner = owners.setdefault(identity, name)
        same = "" if owner == name else owner
        found.append(FoundTensor(name, dtype, tuple(value.shape), read, same))
    return found


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
        # By element type the codebook of the network, and its threshold.
        self._network: dict[str, int | None] = {}
        self._threshold = -1.0

    @classmethod
    def of(cls, settings: Settings, tensors: Sequence[FoundTensor]) -> "Plan":
        """The first pass: look at every tensor once."""
        plan = cls(settings)
        if settings.lossless:
            plan._find_few(each("looking at", tensors))
        elif settings.scope == "network":
            plan._fit_network(
                [t for t in tensors if not settings.why_kept(t.name, t.dtype, t.read())]
            )
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
            change = Change(name, f"kept exactly: {reason}")
            return (None if self.settings.asks_for(name) else self._known(kept)) or kept, change
        if self.settings.scope == "network":
            number, limit = self._network.get(dtype.tag), self._threshold
        else:
            counts = Counts(dtype)
            counts.add(values)
            limit = self._limit([counts])
            number = self._fitted(counts, limit)
        if number is None:
            return _only_pruned(name, dtype, values, limit)
        return _tied(name, dtype, values, limit, self.codebooks[number], number)

    def _known(self, kept: KeptTensor) -> TiedTensor | None:
        """The same elements by index, if a codebook has all of them and that is smaller."""
        elements = as_bits(kept.data, kept.dtype)
        for number, book in enumerate(self.codebooks):
            if book.dtype == kept.dtype and _is_small(len(book), kept.dtype):
                indices = _lookup(kept.data, book)
                if np.array_equal(as_bits(book.values, book.dtype)[indices.ravel()], elements):
                    return TiedTensor(kept.name, number, indices)
        return None

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

    def _find_few(self, tensors: Iterable[FoundTensor]) -> None:
        shared: dict[str, list[tuple[set[int], list[str]]]] = {}
        others: list[tuple[str, DType, set[int]]] = []
        for tensor in tensors:
            name, dtype = tensor.name, tensor.dtype
            if self.settings.asks_for(name) or dtype.tag == "C64":
                continue
            elements = tensor.read()
            bits = few_values(elements, dtype)
            if bits is None or len(bits) > BYTE:
                low = low_bit.find(elements, dtype)
                count = None if bits is None else len(bits)
                if low is not None and low.pays(elements, dtype, count):
                    self._layouts[name] = low.layout
                    dtype = DTYPES["I8" if low.integers.dtype == np.int8 else "I16"]
                    bits = set(np.unique(low.integers).view(f"<u{dtype.item_bytes}").tolist())
            if bits is None:
                if elements.size <= FEW_VALUES:
                    others.append((name, dtype, set(as_bits(elements, dtype).tolist())))
                continue
            for values, names in shared.setdefault(dtype.tag, []):
                # Share a codebook with tensors whose values are mostly the same.
                most = min(max(len(values), len(bits)) + 1, FEW_VALUES)
                if len(values | bits) <= most:
                    values |= bits
                    names.append(name)
                    break
            else:
                shared[dtype.tag].append((set(bits), [name]))
        for name, dtype, bits in others:  # too small for values of their own: those of larger ones?
            for values, names in shared.get(dtype.tag, []):
                if bits <= values and _is_small(len(values), dtype):
                    names.append(name)
                    break
        for dtype, groups in ((DTYPES[tag], groups) for tag, groups in shared.items()):
            for values, names in groups:
                array = np.array(sorted(values), f"<u{dtype.item_bytes}").view(dtype.storage)
                self.codebooks.append(Codebook(dtype, array))
                self._few |= dict.fromkeys(names, len(self.codebooks) - 1)

    # -- k-means and pruning ----------------------------------------------------------------

    def _fit_network(self, tensors: Sequence[FoundTensor]) -> None:
        counts: dict[str, Counts] = {}
        for tensor in each("counting", tensors):
            counts.setdefault(tensor.dtype.tag, Counts(tensor.dtype)).add(tensor.read())
        self._threshold = self._limit(counts.values())
        self._network = {tag: self._fitted(c, self._threshold) for tag, c in counts.items()}

    def _limit(self, counts: Collection["Counts"]) -> float:
        """The magnitude up to which values go to zero; below 0 if none do."""
        if self.settings.density is None or not counts:
            return -1.0
        lines = zip(*(own.line() for own in counts), strict=True)
        points, masses = (np.concatenate(line) for line in lines)
        return threshold(points, masses, self.settings.density)

    def _fitted(self, counts: "Counts", limit: float) -> int | None:
        """Add a codebook for these values; its number, None if they are pruned alone."""
        book = fitted(counts, limit, self.settings.num_clusters)
        if book is None:
            return None
        self.codebooks.append(book)
        return len(self.codebooks) - 1


def _is_small(num_values: int, dtype: DType) -> bool:
    """Whether an index of so many values takes at most half of the bits of an element."""
    return 0 < num_values <= 2 ** (4 * dtype.item_bytes)


def few_values(values: np.ndarray, dtype: DType) -> set[int] | None:
    """The raw bits of a tensor's distinct values, if coding by index pays; None otherwise."""
    seen = distinct_bits(values, dtype, min(FEW_VALUES, values.size // 4))
    if seen is None or not len(seen):
        return None
    back = seen.view(dtype.storage)
    if np.any(seen[is_zero(back, dtype)] != 0):  # -0.0 cannot be tied exactly
        return None
    if dtype.tag in _CAN_BE_TIED and not is_finite(back, dtype):
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
        flat = as_bits(values, self.dtype)
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
    return codebook_of(centers, counts.dtype)[0]


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
    for at, part in parts_of(values, dtype):
        chosen = order[nearest(part, centers[order])]
        if zero >= 0:
            chosen[(np.abs(part) <= limit) | (part == 0)] = zero
        indices[at : at + CHUNK] = chosen
    tensor = TiedTensor(name, number, indices.reshape(values.shape))
    done = f"tied to {len(book):,} values"
    return tensor, change_of(name, done, values, book.values[indices], dtype)


def _only_pruned(
    name: str, dtype: DType, values: np.ndarray, limit: float
) -> tuple[Tensor, Change]:
    if limit < 0:
        return KeptTensor(name, dtype, values), Change(name, "kept exactly")
    data = np.array(values, order="C")
    flat = data.reshape(-1)
    for at, part in parts_of(values, dtype):
        flat[at : at + CHUNK][np.abs(part) <= limit] = 0
    return KeptTensor(name, dtype, data), change_of(name, "pruned", values, data, dtype)


def _lookup(values: np.ndarray, book: Codebook) -> np.ndarray:
    flat = as_bits(values, book.dtype)
    known = book.values.view(flat.dtype)  # ascending, see Plan
    result = np.empty(flat.size, np.uint8 if len(known) <= 256 else np.uint16)
    for at in range(0, len(flat), CHUNK):
        places = np.searchsorted(known, flat[at : at + CHUNK])
        result[at : at + CHUNK] = np.minimum(places, len(known) - 1)  # what it does not hold
    return result.reshape(values.shape)
