"""TiedState: the waist of the hourglass.

Takes     what any method ends with: tensors as indices into codebooks, and tensors kept exactly.
Gives     one frozen value, checked when it is made, that every file, rate and report is built from.
Unaware   of methods, of torch and of bytes on disk.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from reefknot.dtypes import DType, is_zero
from reefknot.errors import ReefknotError
from reefknot.scales import INTEGERS, Scales

MAX_CODEBOOK = 65_536
CHUNK = 1 << 20  # elements processed at a time, to bound memory


def _frozen(array: np.ndarray, dtype: np.dtype | None = None) -> np.ndarray:
    """A C-ordered read-only array of these values, not shared with a writable one."""
    same = dtype is None or array.dtype == dtype
    if same and array.flags.c_contiguous and _is_immutable(array):
        return array
    array = np.array(array, dtype, order="C")
    array.flags.writeable = False
    return array


def _is_immutable(array: Any) -> bool:
    """Whether neither this array nor one that it is a view of can be written to."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None or isinstance(array, bytes)


def occurrences(indices: np.ndarray, size: int) -> np.ndarray:
    """How often each index below `size` occurs."""
    flat, counts = indices.reshape(-1), np.zeros(size, np.int64)
    for at in range(0, len(flat), CHUNK):  # bincount converts its input to 8 bytes an element
        counts += np.bincount(flat[at : at + CHUNK], minlength=size)
    return counts


def _check_booleans(what: str, values: np.ndarray) -> None:
    if values.dtype == np.bool_ and values.size and (most := int(values.view(np.uint8).max())) > 1:
        raise ReefknotError(f"{what} is BOOL and holds the byte {most}; only 0 and 1 are booleans")


def index_dtype(num_values: int) -> np.dtype:
    """The smallest unsigned type that can index `num_values` values."""
    return np.dtype("u1") if num_values <= 256 else np.dtype("<u2")


@dataclass(frozen=True, eq=False)
class Codebook:
    """The shared values of one group of tensors: distinct, of one element type, zero only as +0.0.

    `values` has the storage type of `dtype` (raw bits for bfloat16 and float8), in any order.
    """

    dtype: DType
    values: np.ndarray

    def __post_init__(self) -> None:
        values = _frozen(self.values)
        object.__setattr__(self, "values", values)
        if values.ndim != 1 or values.dtype != self.dtype.storage:
            raise ReefknotError(
                f"a codebook of {self.dtype.tag} holds a row of {self.dtype.storage}, "
                f"found {values.dtype} of shape {values.shape}"
            )
        if len(values) > MAX_CODEBOOK:
            raise ReefknotError(
                f"a codebook holds at most {MAX_CODEBOOK:,} values, found {len(values):,}"
            )
        _check_booleans("a codebook", values)
        bits = values.view(f"u{self.dtype.item_bytes}")
        distinct = len(set(bits.tolist())) if len(bits) <= 256 else len(np.unique(bits))
        if distinct != len(bits):
            raise ReefknotError("a codebook holds the same value twice; merge equal centers first")
        if np.any(bits[self.zeros] != 0):
            raise ReefknotError("a codebook holds -0.0; zero in a tied tensor is +0.0")

    @cached_property
    def zeros(self) -> np.ndarray:
        """Which values are zero, as booleans."""
        return is_zero(self.values, self.dtype)

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, eq=False)
class TiedTensor:
    """A tensor whose elements are `state.codebooks[codebook].values[indices]`.

    With scales the codebook holds integers, and an element is one of them times its scale.
    """

    name: str
    codebook: int
    indices: np.ndarray  # in the tensor's own shape
    scales: Scales | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.indices.shape


@dataclass(frozen=True, eq=False)
class KeptTensor:
    """A tensor stored exactly: a buffer, or a parameter that was not tied."""

    name: str
    dtype: DType
    data: np.ndarray  # storage type of `dtype`, in the tensor's own shape
    trainable: bool = True  # False for buffers, which densities leave out

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.data.shape


@dataclass(frozen=True, eq=False)
class TiedState:
    """A network as tensors over codebooks; everything to the right of training works on this.

    `tensors` keep the order of the state dict; `aliases` names tensors that share another's
    storage, which are stored once. Two states are equal when every name gives the same bits.
    """

    codebooks: tuple[Codebook, ...]
    tensors: tuple[TiedTensor | KeptTensor, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "codebooks", tuple(self.codebooks))
        object.__setattr__(self, "tensors", tuple(self._checked(t) for t in self.tensors))
        object.__setattr__(self, "aliases", MappingProxyType(dict(self.aliases)))
        names: set[str] = set()
        for name in (*(tensor.name for tensor in self.tensors), *self.aliases):
            if name in names:
                raise ReefknotError(f"two tensors of one state are named {name!r}")
            names.add(name)
        for alias, name in self.aliases.items():
            if name not in names or name in self.aliases:
                raise ReefknotError(
                    f"{alias!r} is an alias of {name!r}, which the state does not hold"
                )

    def _checked(self, tensor: TiedTensor | KeptTensor) -> TiedTensor | KeptTensor:
        if isinstance(tensor, KeptTensor):
            if tensor.data.dtype != tensor.dtype.storage:
                raise ReefknotError(
                    f"{tensor.name!r} is {tensor.dtype.tag} and must be held as "
                    f"{tensor.dtype.storage}, found {tensor.data.dtype}"
                )
            _check_booleans(repr(tensor.name), tensor.data)
            return replace(tensor, data=_frozen(tensor.data))
        if not 0 <= tensor.codebook < len(self.codebooks):
            raise ReefknotError(
                f"{tensor.name!r} uses codebook {tensor.codebook}, "
                f"the state has {len(self.codebooks)}"
            )
        size = len(self.codebooks[tensor.codebook])
        indices = tensor.indices
        if indices.dtype.kind not in "iu":
            raise ReefknotError(
                f"{tensor.name!r} has indices of {indices.dtype}; integers were expected"
            )
        signed = indices.dtype.kind == "i"
        if indices.size and (int(indices.max()) >= size or (signed and int(indices.min()) < 0)):
            raise ReefknotError(
                f"{tensor.name!r} has indices from {indices.min()} to {indices.max()}; "
                f"its codebook holds {size} values"
            )
        return replace(
            tensor,
            indices=_frozen(indices, index_dtype(size)),
            scales=self._checked_scales(tensor),
        )

    def _checked_scales(self, tensor: TiedTensor) -> Scales | None:
        if tensor.scales is None:
            return None
        integers = self.codebooks[tensor.codebook].dtype.tag
        if integers not in INTEGERS:
            raise ReefknotError(
                f"{tensor.name!r} has scales, and a codebook of {integers}; "
                f"integers were expected, {' or '.join(INTEGERS)}"
            )
        tensor.scales.check(tensor.name, tensor.indices.size)
        return replace(tensor.scales, values=_frozen(tensor.scales.values))

    # -- reading values ---------------------------------------------------------------------

    def dtype(self, tensor: TiedTensor | KeptTensor) -> DType:
        """The element type of a tensor of this state."""
        if isinstance(tensor, KeptTensor):
            return tensor.dtype
        return tensor.scales.dtype if tensor.scales else self.codebooks[tensor.codebook].dtype

    def values(self, tensor: TiedTensor | KeptTensor) -> np.ndarray:
        """A tensor's elements, in its storage type and shape."""
        if isinstance(tensor, KeptTensor):
            return tensor.data
        if tensor.scales is None:
            return np.asarray(self.codebooks[tensor.codebook].values[tensor.indices])
        result, at = np.empty(tensor.indices.size, tensor.scales.dtype.storage), 0
        for piece in self.pieces(tensor):
            result[at : at + len(piece)] = piece
            at += len(piece)
        return result.reshape(tensor.shape)

    def pieces(self, tensor: TiedTensor | KeptTensor) -> Iterator[np.ndarray]:
        """A tensor's elements in order, in chunks, without a second copy of it."""
        if isinstance(tensor, KeptTensor):
            flat = tensor.data.reshape(-1)
            yield from (flat[at : at + CHUNK] for at in range(0, len(flat), CHUNK))
        else:
            flat, values = tensor.indices.reshape(-1), self.codebooks[tensor.codebook].values
            for at in range(0, len(flat), CHUNK):
                piece = values[flat[at : at + CHUNK]]
                yield piece if tensor.scales is None else tensor.scales.elements(piece, at)

    def names(self) -> Iterator[tuple[str, TiedTensor | KeptTensor]]:
        """Every stored name with its tensor, aliases after their owners."""
        owners: dict[str, list[str]] = {}
        for alias, name in self.aliases.items():
            owners.setdefault(name, []).append(alias)
        for tensor in self.tensors:
            for name in (tensor.name, *owners.get(tensor.name, ())):
                yield name, tensor

    def arrays(self) -> Iterator[tuple[str, DType, np.ndarray]]:
        """Every stored name with its element type and values, which aliases share."""
        last, values = None, np.zeros(0)
        for name, tensor in self.names():
            if tensor is not last:
                last, values = tensor, self.values(tensor)
            yield name, self.dtype(tensor), values

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TiedState):
            return NotImplemented
        ours, theirs = dict(self.names()), dict(other.names())
        return ours.keys() == theirs.keys() and all(
            _same_bits(self, ours[name], other, theirs[name]) for name in ours
        )

    __hash__ = None  # type: ignore[assignment]  # equality looks at every weight

    # -- sizes and counts -------------------------------------------------------------------

    def nonzeros(self, tensor: TiedTensor | KeptTensor) -> int:
        """How many elements of a tensor are not zero."""
        if isinstance(tensor, TiedTensor) and tensor.scales is None:
            return int(self.counts(tensor)[~self.codebooks[tensor.codebook].zeros].sum())
        dtype = self.dtype(tensor)
        return sum(int((~is_zero(part, dtype)).sum()) for part in self.pieces(tensor))

    def counts(self, tensor: TiedTensor) -> np.ndarray:
        """How often each value of its codebook occurs in a tensor."""
        return occurrences(tensor.indices, len(self.codebooks[tensor.codebook]))

    @property
    def num_weights(self) -> int:
        """Elements of all stored tensors, shared ones counted once."""
        return sum(int(np.prod(tensor.shape, dtype=np.int64)) for tensor in self.tensors)

    @property
    def original_bytes(self) -> int:
        """Elements times item size over all stored tensors: what rates are measured against."""
        return sum(
            int(np.prod(tensor.shape, dtype=np.int64)) * self.dtype(tensor).item_bytes
            for tensor in self.tensors
        )

    @property
    def density(self) -> float:
        """The fraction of trainable parameters that are not zero."""
        trainable = [t for t in self.tensors if isinstance(t, TiedTensor) or t.trainable]
        total = sum(int(np.prod(tensor.shape, dtype=np.int64)) for tensor in trainable)
        return sum(self.nonzeros(tensor) for tensor in trainable) / total if total else 0.0

    @property
    def num_clusters(self) -> int:
        """The number of shared values of the largest codebook, zero included."""
        return max((len(codebook) for codebook in self.codebooks), default=0)


def _same_bits(
    state: TiedState, tensor: TiedTensor | KeptTensor,
    other: TiedState, like: TiedTensor | KeptTensor,
) -> bool:  # fmt: skip
    if state.dtype(tensor) != other.dtype(like) or tensor.shape != like.shape:
        return False
    pairs = zip(state.pieces(tensor), other.pieces(like), strict=True)
    return all(one.tobytes() == two.tobytes() for one, two in pairs)
