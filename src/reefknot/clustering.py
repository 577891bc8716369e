"""Tying without training: k-means and magnitude pruning of a network that is finished.

Takes     tensors, how many shared values they may keep, and how many elements may stay non-zero.
Gives     a `TiedState`, and what was done to each tensor.
Paper     section 3.3 for the k-means; without training this is its baseline, not its method.
Unaware   of files. It knows numpy only; torch tensors are turned into arrays first.

Without a number of clusters and a density nothing is changed: tensors that have few distinct
values already are found and tied, the others are kept as they are.
"""

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from reefknot.dtypes import DTYPES, DType, is_zero
from reefknot.errors import ConfigError, ReefknotError
from reefknot.kernels.kmeans1d import kmeans1d
from reefknot.state import MAX_CODEBOOK, Codebook, KeptTensor, TiedState, TiedTensor

Scope = Literal["tensor", "network"]
Tensor = KeptTensor | TiedTensor
MAX_SAMPLE = 1 << 20  # values that centers are fitted to; more are thinned out evenly
CHUNK = 1 << 20
FEW_VALUES = 4096  # with more distinct values than this, coding by index does not pay
_CAN_BE_TIED = ("F32", "F16", "BF16", "F64")


@dataclass(frozen=True)
class Change:
    """What was done to one tensor, and the error that it brought."""

    name: str
    done: str
    relative_error: float = 0.0  # L2 norm of the change over that of the tensor
    largest_error: float = 0.0


@dataclass(frozen=True)
class Settings:
    """How `cluster` and `pack` tie: see `cluster`."""

    num_clusters: int | None = None
    density: float | None = None
    scope: Scope = "tensor"
    keep: tuple[str, ...] = ()
    min_size: int = 0

    def __post_init__(self) -> None:
        if self.num_clusters is not None and not 1 <= self.num_clusters <= MAX_CODEBOOK:
            raise ReefknotError(
                f"num_clusters (--clusters) is from 1 to {MAX_CODEBOOK:,}, not {self.num_clusters}"
            )
        if self.density is not None and not 0 <= self.density <= 1:
            raise ReefknotError(f"density is a fraction from 0 to 1, not {self.density}")
        if self.scope not in ("tensor", "network"):
            raise ReefknotError(f"scope is 'tensor' or 'network', not {self.scope!r}")

    @property
    def lossless(self) -> bool:
        """True if nothing may be changed."""
        return self.num_clusters is None and self.density is None


def cluster(
    state_dict: Mapping[str, Any],
    num_clusters: int | None = None,
    density: float | None = None,
    scope: Scope = "tensor",
    keep: Sequence[str] = (),
    min_size: int = 0,
) -> TiedState:
    """Tie a finished network: each floating-point tensor to a few shared values.

    Args:
        state_dict: tensors by name, numpy or torch.
        num_clusters: how many values a scope may keep, zero included.
        density: the fraction of elements that may stay non-zero; the smallest go first.
        scope: a codebook (and a threshold) for each tensor, or one for the network.
        keep: patterns of names (`*.bias`) that stay exact.
        min_size: tensors with fewer elements stay exact.

    Zeros stay zero, and zero then is one of the `num_clusters` values, however rare it is: with
    2 of them all that is not zero goes to the one value left, and with 1 everything is zero. What
    is not zero stays so, but with a density it goes to zero where that is nearest.
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
    tensors = [plan.tie(name, dtype, array)[0] for name, (dtype, array) in found.items()]
    return TiedState(tuple(plan.codebooks), tuple(tensors), aliases)


def check_patterns(patterns: Iterable[str], names: list[str]) -> None:
    """A pattern of `keep` that names nothing is a slip, and would be found out only later."""
    mistakes = []
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            close = difflib.get_close_matches(pattern, names, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"names are like {names[:3]}"
            mistakes.append(f"the pattern {pattern!r} of keep (--keep) matches no tensor; {hint}")
    if mistakes:
        raise ConfigError(*mistakes)


def reader_of(name: str, value: Any) -> tuple[Any, DType, Callable[[], np.ndarray]]:
    """What a tensor shares with those that are the same, its element type, and a way to read it."""
    if isinstance(value, np.ndarray):
        for dtype in DTYPES.values():
            if dtype.storage == value.dtype and not dtype.is_raw:
                start = value.__array_interface__["data"][0]
                place = (start, value.shape, value.strides, dtype.tag)
                return (place if value.size else id(value)), dtype, lambda: value
        raise ReefknotError(
            f"{name!r} is an array of {value.dtype}, which cannot be stored; "
            f"known are {', '.join(DTYPES)}"
        )
    import torch

    from reefknot.tensors import dtype_for, to_array

    if not isinstance(value, torch.Tensor):
        raise ReefknotError(f"{name!r} is a {type(value).__name__}, not a tensor; leave it out")
    if value.layout != torch.strided or value.is_nested or value.is_meta:
        kind = "meta" if value.is_meta else "nested" if value.is_nested else value.layout
        raise ReefknotError(f"{name!r} is a {kind} tensor; only dense ones can be stored")
    dtype, bits = dtype_for(value.dtype), (value.is_conj(), value.is_neg())
    same = (value.data_ptr(), tuple(value.shape), value.stride(), dtype.tag, *bits)
    return (
        (same if value.numel() else id(value)),
        dtype,
        lambda: to_array(value.resolve_conj().resolve_neg()),
    )


class Plan:
    """Which tensors are tied to which values: made in a first pass, carried out in a second.

    The codebooks of a network scope, and of tensors that share their few values, are known after
    the first pass; a tensor that is fitted alone adds its codebook when it is tied.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.codebooks: list[Codebook] = []
        self._few: dict[str, int] = {}  # tensors that are tied losslessly, and to which codebook
        self._network: dict[str, int] = {}  # by element type: the codebook of the network
        self._threshold = -1.0  # of the network

    @classmethod
    def of(
        cls, settings: Settings, tensors: Iterable[tuple[str, DType, Callable[[], np.ndarray]]]
    ) -> "Plan":
        """Look at every tensor once."""
        plan = cls(settings)
        if settings.lossless:
            plan._find_few(tensors)
        elif settings.scope == "network":
            plan._fit_network([t for t in tensors if plan._why_kept(t[0], t[1], t[2]()) == ""])
        return plan

    def tie(self, name: str, dtype: DType, values: np.ndarray) -> tuple[Tensor, Change]:
        """One tensor as it is to be stored."""
        kept = KeptTensor(name, dtype, values)
        if self.settings.lossless:
            if name not in self._few:
                return kept, Change(name, "kept exactly")
            book = self.codebooks[self._few[name]]
            return TiedTensor(name, self._few[name], _lookup(values, book)), Change(
                name, "tied, nothing changed"
            )
        reason = self._why_kept(name, dtype, values)
        if reason:
            return kept, Change(name, f"kept exactly: {reason}")
        if self.settings.scope == "network":
            return self._tie_to_network(name, dtype, values)
        return self._tie_alone(name, dtype, values)

    def _why_kept(self, name: str, dtype: DType, values: np.ndarray) -> str:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.settings.keep):
            return "asked for"
        if not dtype.is_float:
            return "not floating point"
        if dtype.tag not in _CAN_BE_TIED:
            return f"{dtype.tag} is small already"
        if values.size < max(self.settings.min_size, 1):
            return "too small"
        for at in range(0, values.size, CHUNK):
            if not np.isfinite(to_numbers(values.reshape(-1)[at : at + CHUNK], dtype)).all():
                return "has values that are not finite"
        return ""

    # -- lossless ---------------------------------------------------------------------------

    def _find_few(self, tensors: Iterable[tuple[str, DType, Callable[[], np.ndarray]]]) -> None:
        shared: dict[str, list[tuple[set[int], list[str]]]] = {}
        for name, dtype, read in tensors:
            if (
                any(fnmatch.fnmatchcase(name, pattern) for pattern in self.settings.keep)
                or dtype.tag == "C64"
            ):
                continue
            bits = few_values(read(), dtype)
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
        total = sum(read().size for _, _, read in tensors)
        step = max(1, -(-total // MAX_SAMPLE))
        samples: dict[str, list[np.ndarray]] = {}
        for _, dtype, read in tensors:
            part = sampled(read(), dtype, step, self.settings.num_clusters)
            samples.setdefault(dtype.tag, []).append(part)
        everything = [part for parts in samples.values() for part in parts]
        if self.settings.density is not None and everything:
            self._threshold = threshold(np.concatenate(everything), self.settings.density)
        for tag, parts in samples.items():
            sample = np.concatenate(parts)
            book = fitted(sample, self._threshold, self.settings.num_clusters, DTYPES[tag])
            if book is not None:
                self.codebooks.append(book)
                self._network[tag] = len(self.codebooks) - 1

    def _tie_to_network(self, name: str, dtype: DType, values: np.ndarray) -> tuple[Tensor, Change]:
        if dtype.tag not in self._network:
            return _only_pruned(name, dtype, values, self._threshold)
        number = self._network[dtype.tag]
        return _tied(name, dtype, values, self._threshold, self.codebooks[number], number)

    def _tie_alone(self, name: str, dtype: DType, values: np.ndarray) -> tuple[Tensor, Change]:
        step = max(1, -(-values.size // MAX_SAMPLE))
        sample = sampled(values, dtype, step, self.settings.num_clusters)
        limit = -1.0 if self.settings.density is None else threshold(sample, self.settings.density)
        book = fitted(sample, limit, self.settings.num_clusters, dtype)
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


def sampled(values: np.ndarray, dtype: DType, step: int, most: int | None) -> np.ndarray:
    """Every `step`-th value as float64, a zero if there is one, each value if at most `most`."""
    sample = to_numbers(values.reshape(-1)[::step], dtype)
    if step > 1 and is_zero(values, dtype).any():
        sample = np.append(sample, 0.0)
    if step > 1 and most is not None:
        seen = distinct_bits(values, dtype, most)
        if seen is not None:  # so that none is missed, and all come back unchanged
            sample = np.concatenate([sample, to_numbers(seen.view(dtype.storage), dtype)])
    return sample


def threshold(values: np.ndarray, density: float) -> float:
    """The magnitude up to which values go to zero, so that a fraction `density` of them is left."""
    left = round(density * len(values))
    if left >= len(values):
        return -1.0
    magnitudes = np.abs(values)
    return float(np.partition(magnitudes, len(values) - left - 1)[len(values) - left - 1])


def pruned(values: np.ndarray, limit: float) -> np.ndarray:
    """The values with those up to the limit at zero."""
    return np.where(np.abs(values) <= limit, 0.0, values)


def fitted(
    values: np.ndarray, limit: float, num_clusters: int | None, dtype: DType
) -> Codebook | None:
    """The values to tie others to: zero if there is one, and the centers of the rest."""
    values = pruned(values, limit)
    if num_clusters is None:
        distinct = np.unique(values)
        if len(distinct) > min(FEW_VALUES, len(values) // 4):
            return None
        centers = distinct
    else:
        distinct = np.unique(values)
        if len(distinct) <= num_clusters:
            centers = distinct
        else:
            rest = values[values != 0]
            zero = len(rest) < len(values)
            room = num_clusters - int(zero)
            centers = kmeans1d(rest, room).centers if room else np.zeros(0)
            if zero and room and limit >= 0 and _some_go_to_zero(rest, centers):
                centers = kmeans1d(values, num_clusters).centers
                centers = np.delete(centers, np.abs(centers).argmin())  # zero stands for that one
            if zero:
                centers = np.append(centers, 0.0)
    stored = from_numbers(np.sort(centers), dtype)
    bits = np.unique(stored.view(f"<u{dtype.item_bytes}"))
    back = bits.view(dtype.storage)
    bits[is_zero(back, dtype)] = 0
    return Codebook(dtype, np.unique(bits).view(dtype.storage))


def _some_go_to_zero(values: np.ndarray, centers: np.ndarray) -> bool:
    middles = (centers[1:] + centers[:-1]) / 2
    away = np.abs(centers[np.searchsorted(middles, values)] - values)
    return bool((away >= np.abs(values)).any())


def _tied(
    name: str, dtype: DType, values: np.ndarray, limit: float, book: Codebook, number: int
) -> tuple[Tensor, Change]:
    centers = to_numbers(book.values, dtype)
    order = np.argsort(centers)
    if len(book) > 1 and limit < 0:  # without a density, what is not zero stays so
        order = order[~book.zeros[order]]
    ascending = centers[order]
    middles = (ascending[1:] + ascending[:-1]) / 2
    flat = values.reshape(-1)
    indices = np.empty(len(flat), np.uint8 if len(book) <= 256 else np.uint16)
    zero = int(np.argmax(book.zeros)) if book.zeros.any() else -1
    error = norm = largest = 0.0
    for at in range(0, len(flat), CHUNK):
        part = to_numbers(flat[at : at + CHUNK], dtype)
        chosen = order[np.searchsorted(middles, part)]
        if zero >= 0:
            chosen[(np.abs(part) <= limit) | (part == 0)] = zero
        indices[at : at + CHUNK] = chosen
        away = np.abs(centers[chosen] - part)
        error += float(away @ away)
        norm += float(part @ part)
        largest = max(largest, float(away.max()))
    relative = (error / norm) ** 0.5 if norm else 0.0
    tensor = TiedTensor(name, number, indices.reshape(values.shape))
    return tensor, Change(name, f"tied to {len(book):,} values", relative, largest)


def _only_pruned(
    name: str, dtype: DType, values: np.ndarray, limit: float
) -> tuple[Tensor, Change]:
    if limit < 0:
        return KeptTensor(name, dtype, values), Change(name, "kept exactly")
    numbers = to_numbers(values, dtype)
    gone = np.abs(numbers) <= limit
    data = np.where(gone, np.zeros((), dtype.storage), values)
    norm = float(np.sum(np.square(numbers)))
    lost = numbers[gone]
    relative = (float(lost @ lost) / norm) ** 0.5 if norm else 0.0
    largest = float(np.abs(lost).max(initial=0.0))
    return KeptTensor(name, dtype, data.astype(dtype.storage)), Change(
        name, "pruned", relative, largest
    )


def _lookup(values: np.ndarray, book: Codebook) -> np.ndarray:
    bits = np.ascontiguousarray(values).view(f"<u{book.dtype.item_bytes}")
    known = book.values.view(bits.dtype)  # ascending, see Plan
    kind = np.uint8 if len(known) <= 256 else np.uint16
    flat, result = bits.reshape(-1), np.empty(bits.size, kind)
    for at in range(0, len(flat), CHUNK):
        result[at : at + CHUNK] = np.searchsorted(known, flat[at : at + CHUNK])
    return result.reshape(values.shape)


def to_numbers(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Elements as float64."""
    if dtype.tag == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaN is no reason to warn
        return values.astype(np.float64)


def from_numbers(values: np.ndarray, dtype: DType) -> np.ndarray:
    """The nearest elements of a type, which must be able to hold them."""
    if dtype.tag == "BF16":
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return values.astype(dtype.storage)
