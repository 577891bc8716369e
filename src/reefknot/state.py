"""TiedState: the waist of the hourglass.

Takes     what any method ends with: tensors as indices into codebooks, and tensors kept exactly.
Gives     one frozen value, checked when it is made, that every file, rate and report is built from.
Unaware   of methods, of torch and of bytes on disk.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np

from reefknot.dtypes import DType, is_zero
from reefknot.errors import ReefknotError

MAX_CODEBOOK = 65_536


def _frozen(array: np.ndarray) -> np.ndarray:
    """A C-ordered read-only array with the same values."""
    # ascontiguousarray would turn a 0-d array into a 1-d one.
    array = np.array(array, order="C", copy=array.flags.writeable or not array.flags.c_contiguous)
    array.flags.writeable = False
    return array


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
    """A tensor whose elements are `state.codebooks[codebook].values[indices]`."""

    name: str
    codebook: int
    indices: np.ndarray  # in the tensor's own shape

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
    trainable: bool = True  # False for buffers, which no density counts

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
            object.__setattr__(tensor, "data", _frozen(tensor.data))
            return tensor
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
        narrow = np.asarray(indices, dtype=index_dtype(size))
        object.__setattr__(tensor, "indices", _frozen(narrow))
        return tensor

    # -- reading values ---------------------------------------------------------------------

    def dtype(self, tensor: TiedTensor | KeptTensor) -> DType:
        """The element type of a tensor of this state."""
        return (
            tensor.dtype
            if isinstance(tensor, KeptTensor)
            else self.codebooks[tensor.codebook].dtype
        )

    def values(self, tensor: TiedTensor | KeptTensor) -> np.ndarray:
        """A tensor's elements, in its storage type and shape."""
        if isinstance(tensor, KeptTensor):
            return tensor.data
        return self.codebooks[tensor.codebook].values[tensor.indices]

    def arrays(self) -> Iterator[tuple[str, DType, np.ndarray]]:
        """Every stored name with its element type and values, aliases after their owners."""
        owners: dict[str, list[str]] = {}
        for alias, name in self.aliases.items():
            owners.setdefault(name, []).append(alias)
        for tensor in self.tensors:
            values = self.values(tensor)
            for name in (tensor.name, *owners.get(tensor.name, ())):
                yield name, self.dtype(tensor), values

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TiedState):
            return NotImplemented
        return _bits(self) == _bits(other)

    __hash__ = None  # type: ignore[assignment]  # equality looks at every weight

    # -- what it weighs ---------------------------------------------------------------------

    def nonzeros(self, tensor: TiedTensor | KeptTensor) -> int:
        """How many elements of a tensor are not zero."""
        if isinstance(tensor, KeptTensor):
            return int(tensor.data.size - np.count_nonzero(is_zero(tensor.data, tensor.dtype)))
        counts = np.bincount(tensor.indices.ravel(), minlength=len(self.codebooks[tensor.codebook]))
        return int(counts[~self.codebooks[tensor.codebook].zeros].sum())

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
        """The number of shared values, zero included; of the largest of several codebooks."""
        return max((len(codebook) for codebook in self.codebooks), default=0)


def _bits(state: TiedState) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        name: (dtype.tag, values.shape, values.tobytes()) for name, dtype, values in state.arrays()
    }
