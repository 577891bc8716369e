"""Where every byte of a `.reef` file went, and whether the file is what it should be.

Takes     a file, and for `verify` optionally the checkpoint that it was made from.
Gives     numbers: bytes by tensor and by kind, beside the sizes in other formats.
Unaware   of how tensors are printed; the command line does that.
"""

import lzma
import math
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reefknot.dtypes import is_zero
from reefknot.errors import CheckError
from reefknot.format import MAX_BYTES, open_file
from reefknot.format.read import TensorCost
from reefknot.progress import doing
from reefknot.rates import fixed_bits, paper_bits, predicted_bytes, rate_file, rate_of
from reefknot.scales import Scales
from reefknot.state import CHUNK, KeptTensor, TiedState, TiedTensor
from reefknot.tensorfile import FoundTensor, open_tensors

COMPARE_BYTES = 64 << 20  # larger networks are not compressed by gzip and xz: it takes minutes
XZ = 6 | lzma.PRESET_EXTREME  # 9 helps only above 8 MB, and takes 0.7 GB of memory


@dataclass(frozen=True)
class TensorBytes:
    """One tensor: what it is, and what it takes up in the file, to an eighth of a bit."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str  # "tied", "scaled" (tied to integers that have scales) or "kept"
    density: float
    bytes: float
    position_bytes: float  # the positions of elements that differ from the most frequent value
    value_bytes: float  # the values of these elements
    num_scales: int = 0
    run: int = 0  # consecutive elements that share a scale
    scale_bytes: float = 0.0  # known for tight streams only


@dataclass(frozen=True)
class Inspection:
    """A file in numbers. Sizes are bytes, rates are ratios, densities fractions."""

    file_bytes: int
    original_bytes: int
    rate_file: float
    rate_paper: float
    rate_fixed: float
    density: float
    num_clusters: int
    num_weights: int
    header_bytes: float
    codebook_bytes: float
    tied_bytes: float
    kept_bytes: float
    entropy_bytes: int
    gzip_bytes: int | None  # None above COMPARE_BYTES
    xz_bytes: int | None
    fixed_bytes: float  # what `rate_fixed` and `rate_paper` count
    paper_bytes: float
    tensors: tuple[TensorBytes, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts."""
        return asdict(self)


@doing("inspecting")
def inspect(path: Path | str, *, max_bytes: int = MAX_BYTES) -> Inspection:
    """Find out where the bytes of a file went."""
    found = open_file(path, max_bytes=max_bytes)
    state = found.state
    counts = {t.name: state.counts(t) for t in state.tensors if isinstance(t, TiedTensor)}
    nonzeros = {tensor.name: state.nonzeros(tensor) for tensor in state.tensors}
    rows = tuple(
        _row(state, tensor, nonzeros[tensor.name], cost)
        for tensor, cost in zip(state.tensors, found.costs, strict=True)
    )
    tied_bytes = sum(row.bytes for row in rows if row.kind != "kept")
    kept_bytes = sum(row.bytes for row in rows if row.kind == "kept")
    books = sum(book.values.nbytes for book in state.codebooks)
    kept = sum(tensor.data.nbytes for tensor in state.tensors if isinstance(tensor, KeptTensor))
    kept += sum(s.values.nbytes for t in state.tensors if (s := _scales(t)) is not None)
    trainable = [t for t in state.tensors if isinstance(t, TiedTensor) or t.trainable]
    num_trainable = sum(_size(tensor) for tensor in trainable)
    fixed, paper = fixed_bits(state), paper_bits(state)
    small = state.original_bytes <= COMPARE_BYTES
    return Inspection(
        file_bytes=found.file_bytes,
        original_bytes=state.original_bytes,
        rate_file=rate_file(state, found.file_bytes),
        rate_paper=rate_of(state, paper),
        rate_fixed=rate_of(state, fixed),
        density=sum(nonzeros[tensor.name] for tensor in trainable) / max(num_trainable, 1),
        num_clusters=state.num_clusters,
        num_weights=state.num_weights,
        header_bytes=found.file_bytes - tied_bytes - kept_bytes - found.book_bytes,
        codebook_bytes=found.book_bytes,
        tied_bytes=tied_bytes,
        kept_bytes=kept_bytes,
        entropy_bytes=predicted_bytes(counts.values(), books, kept),
        gzip_bytes=_compressed(state, zlib.compressobj(9, wbits=31)) if small else None,
        xz_bytes=_compressed(state, lzma.LZMACompressor(preset=XZ)) if small else None,
        fixed_bytes=fixed / 8,
        paper_bytes=paper / 8,
        tensors=rows,
    )


def _scales(tensor: TiedTensor | KeptTensor) -> Scales | None:
    return None if isinstance(tensor, KeptTensor) else tensor.scales


def _size(tensor: TiedTensor | KeptTensor) -> int:
    return math.prod(tensor.shape)


def _row(
    state: TiedState, tensor: TiedTensor | KeptTensor, nonzeros: int, cost: TensorCost
) -> TensorBytes:
    kept, scales = isinstance(tensor, KeptTensor), _scales(tensor)
    layout = (0, 0) if scales is None else (len(scales.values), scales.run)
    return TensorBytes(
        tensor.name, tensor.shape, state.dtype(tensor).tag,
        "kept" if kept else "tied" if scales is None else "scaled",
        nonzeros / max(_size(tensor), 1), cost.total, cost.positions,
        cost.total - cost.positions - cost.scales,
        *layout, cost.scales,
    )  # fmt: skip


def _compressed(state: TiedState, compressor: Any) -> int:
    """The size of all stored elements, compressed by a general-purpose compressor."""
    pieces = (piece for tensor in state.tensors for piece in state.pieces(tensor))
    return sum(len(compressor.compress(p.tobytes())) for p in pieces) + len(compressor.flush())


# ---- verify -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verification:
    """What was verified about a file."""

    file_bytes: int
    checksum: str
    num_tensors: int
    num_weights: int
    compared_with: str | None
    negative_zeros: int  # -0.0 in the other file where a tied tensor has +0.0; they count as equal

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and strings."""
        return asdict(self)


@doing("verifying")
def verify(
    path: Path | str, against: Path | str | None = None, *, max_bytes: int = MAX_BYTES
) -> Verification:
    """Check that a file is intact, can be decoded, and holds the same values as a checkpoint.

    Raises `FormatError` for a damaged file, `CheckError` if it differs from `against`.
    """
    found = open_file(path, max_bytes=max_bytes)
    negative = _compare(found.state, path, against) if against is not None else 0
    return Verification(
        found.file_bytes, f"{found.checksum():08x}", len(found.state.tensors),
        found.state.num_weights, None if against is None else str(against), negative,
    )  # fmt: skip


def _compare(state: TiedState, path: Path | str, against: Path | str) -> int:
    ours = dict(state.names())
    found = open_tensors(against)
    theirs = {tensor.name for tensor in found}
    for name in sorted(theirs ^ set(ours)):
        where = path if name in ours else against
        raise CheckError(f"{name!r} is only in {where}")
    negative = 0
    for other in found:
        mine = ours[other.name]
        dtype = state.dtype(mine)
        if dtype != other.dtype or mine.shape != other.shape:
            raise CheckError(
                f"{other.name!r} is {dtype.tag} {list(mine.shape)} in {path}, "
                f"{other.dtype.tag} {list(other.shape)} in {against}"
            )
        negative += _compare_tensor(state, mine, other)
    return negative


def _compare_tensor(state: TiedState, mine: TiedTensor | KeptTensor, other: FoundTensor) -> int:
    """How often only the sign of a zero differs; any other difference raises."""
    dtype, negative, wrong, first = other.dtype, 0, 0, -1
    bits = f"<u{dtype.item_bytes}"
    for number, (ours, theirs) in enumerate(zip(state.pieces(mine), _pieces(other), strict=True)):
        differs = ours.view(bits) != theirs.view(bits)
        if isinstance(mine, TiedTensor) and mine.scales is None and differs.any():
            zeros = differs & is_zero(theirs, dtype) & is_zero(ours, dtype)
            negative += int(np.count_nonzero(zeros))
            differs &= ~zeros
        if differs.any():
            first = number * CHUNK + int(np.argmax(differs)) if first < 0 else first
            wrong += int(np.count_nonzero(differs))
    if wrong:
        place = [int(i) for i in np.unravel_index(first, other.shape)]
        raise CheckError(
            f"{other.name!r} differs in {wrong:,} of {_size(mine):,} elements, first at {place}"
        )
    return negative


def _pieces(tensor: FoundTensor) -> Iterator[np.ndarray]:
    """The elements of a checkpoint's tensor, as many at a time as `TiedState.pieces` gives."""
    size = math.prod(tensor.shape)
    if tensor.read_part is not None:
        for at in range(0, size, CHUNK):
            yield tensor.read_part(at, min(CHUNK, size - at))
    else:
        flat = np.ascontiguousarray(tensor.read()).reshape(-1)
        yield from (flat[at : at + CHUNK] for at in range(0, size, CHUNK))
