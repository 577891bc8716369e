"""Where every byte of a `.reef` file went, and whether the file is what it should be.

Takes     a file, and for `verify` perhaps the checkpoint that it was made from.
Gives     numbers: bytes by tensor and by kind, beside what other ways of storing would take.
Unaware   of how tensors are printed; the command line does that.
"""

import gzip
import lzma
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reefknot.codec.coder import Coder
from reefknot.codec.kept import to_planes
from reefknot.dtypes import DTYPES, is_zero
from reefknot.errors import CheckError
from reefknot.files import read_bytes
from reefknot.format import MAX_BYTES, decode, layout, open_state
from reefknot.format.content import SolidContent
from reefknot.format.write import sorted_book
from reefknot.rates import predicted_bytes, rate_file, rate_fixed, rate_paper
from reefknot.state import KeptTensor, TiedState
from reefknot.tensorfile import open_tensors

COMPARE_BYTES = 64 << 20  # larger networks are not compressed by gzip and xz to compare


@dataclass(frozen=True)
class TensorBytes:
    """One tensor: what it is, and what it takes up in the file, to an eighth of a bit."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str  # "tied" or "kept"
    density: float
    bytes: float
    position_bytes: float  # where the non-zero elements are
    value_bytes: float  # what they are


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
    gzip_bytes: int | None
    xz_bytes: int | None
    tensors: tuple[TensorBytes, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts."""
        return asdict(self)


def inspect(path: Path | str, *, max_bytes: int = MAX_BYTES) -> Inspection:
    """Find out where the bytes of a file went."""
    data = read_bytes(path)
    state = decode(data, source=str(path), max_bytes=max_bytes)
    books = [sorted_book(codebook) for codebook in state.codebooks]
    if data[3] == layout.SOLID:
        rows = _solid_rows(state, books)
        streams = sum(row.bytes for row in rows)
    else:
        rows = _indexed_rows(data, state, books)
        streams = sum(row.bytes for row in rows)
    coder = Coder()
    for book, _ in books:
        layout._code_book(coder, book)
    codebook_bytes = coder.spent() / 64 if books else 0.0
    raw = b"".join(values.tobytes() for _, _, values in state.arrays())
    small = len(raw) <= COMPARE_BYTES
    return Inspection(
        file_bytes=len(data),
        original_bytes=state.original_bytes,
        rate_file=rate_file(state, len(data)),
        rate_paper=rate_paper(state),
        rate_fixed=rate_fixed(state),
        density=state.density,
        num_clusters=state.num_clusters,
        num_weights=state.num_weights,
        header_bytes=len(data) - streams - codebook_bytes,
        codebook_bytes=codebook_bytes,
        tied_bytes=sum(row.bytes for row in rows if row.kind == "tied"),
        kept_bytes=sum(row.bytes for row in rows if row.kind == "kept"),
        entropy_bytes=_entropy(state),
        gzip_bytes=len(gzip.compress(raw, 9)) if small else None,
        xz_bytes=len(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME)) if small else None,
        tensors=tuple(rows),
    )


def _row(state: TiedState, tensor: Any, total: float, positions: float) -> TensorBytes:
    kept = isinstance(tensor, KeptTensor)
    size = int(np.prod(tensor.shape, dtype=np.int64))
    return TensorBytes(
        tensor.name, tensor.shape, state.dtype(tensor).tag, "kept" if kept else "tied",
        state.nonzeros(tensor) / size if size else 0.0, total, positions, total - positions,
    )  # fmt: skip


def _solid_rows(state: TiedState, books: list[Any]) -> list[TensorBytes]:
    """What each tensor adds to the stream, by writing it again; positions by writing only those."""
    rows, coder, content = [], Coder(), SolidContent()
    where, places = Coder(), SolidContent()
    for tensor in state.tensors:
        before, before_places = coder.spent(), where.spent()
        if isinstance(tensor, KeptTensor):
            content.code_kept(coder, to_planes(tensor.data, tensor.dtype), tensor.dtype.tag)
        else:
            book, place = books[tensor.codebook]
            content.code_tied(coder, tensor.shape, place[tensor.indices], tensor.codebook, book)
            _code_positions(where, places, state, tensor)
        rows.append(
            _row(state, tensor, (coder.spent() - before) / 64, (where.spent() - before_places) / 64)
        )
    return rows


_ON_OFF = layout.Book(DTYPES["F32"], (0, 0x3F800000))


def _code_positions(coder: Coder, content: SolidContent, state: TiedState, tensor: Any) -> None:
    zeros = state.codebooks[tensor.codebook].zeros
    content.code_tied(coder, tensor.shape, (~zeros[tensor.indices]).astype(np.uint8), 0, _ON_OFF)


def _indexed_rows(data: bytes, state: TiedState, books: list[Any]) -> list[TensorBytes]:
    import io

    from reefknot.format.read import read_header

    header, _ = read_header(io.BytesIO(data))
    rows = []
    for entry, tensor in zip(header.entries, state.tensors, strict=True):
        positions = 0.0
        if entry.codebook >= 0 and entry.method == layout.TIGHT:
            coder = Coder()
            _code_positions(coder, SolidContent(), state, tensor)
            positions = coder.spent() / 64
        rows.append(_row(state, tensor, entry.stream_bytes, positions))
    return rows


def _entropy(state: TiedState) -> int:
    counts = [
        np.bincount(tensor.indices.reshape(-1), minlength=1)
        for tensor in state.tensors
        if not isinstance(tensor, KeptTensor)
    ]
    books = sum(book.values.nbytes for book in state.codebooks)
    kept = sum(tensor.data.nbytes for tensor in state.tensors if isinstance(tensor, KeptTensor))
    return predicted_bytes(counts, books, kept)


# ---- verify -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verification:
    """What was proven about a file."""

    file_bytes: int
    checksum: str
    num_tensors: int
    num_weights: int
    compared_with: str | None
    negative_zeros: int  # -0.0 in the other file where a tied tensor has +0.0; they count as equal

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and strings."""
        return asdict(self)


def verify(
    path: Path | str, against: Path | str | None = None, *, max_bytes: int = MAX_BYTES
) -> Verification:
    """Prove that a file is whole, can be decoded, and holds the same values as a checkpoint.

    Raises `FormatError` for a file that is damaged, `CheckError` if it differs from `against`.
    """
    state = open_state(path, max_bytes=max_bytes)
    negative = _compare(state, path, against) if against is not None else 0
    data = read_bytes(path)
    return Verification(
        len(data), f"{zlib.crc32(data):08x}", len(state.tensors), state.num_weights,
        None if against is None else str(against), negative,
    )  # fmt: skip


def _compare(state: TiedState, path: Path | str, against: Path | str) -> int:
    ours = {name: (dtype, values) for name, dtype, values in state.arrays()}
    tied = {tensor.name for tensor in state.tensors if not isinstance(tensor, KeptTensor)}
    tied |= {alias for alias, name in state.aliases.items() if name in tied}
    found = open_tensors(against)
    theirs = {tensor.name for tensor in found}
    for name in sorted(theirs ^ set(ours)):
        where = path if name in ours else against
        raise CheckError(f"{name!r} is only in {where}")
    negative = 0
    for tensor in found:
        dtype, mine = ours[tensor.name]
        if dtype != tensor.dtype or mine.shape != tensor.shape:
            raise CheckError(
                f"{tensor.name!r} is {dtype.tag} {list(mine.shape)} in {path}, "
                f"{tensor.dtype.tag} {list(tensor.shape)} in {against}"
            )
        other = tensor.read()
        unsigned = f"<u{dtype.item_bytes}"
        differs = np.ascontiguousarray(mine).view(unsigned) != np.ascontiguousarray(other).view(
            unsigned
        )
        if tensor.name in tied and differs.any():
            zeros = differs & is_zero(other, dtype) & is_zero(mine, dtype)
            negative += int(np.count_nonzero(zeros))
            differs &= ~zeros
        if differs.any():
            place = tuple(int(i) for i in np.argwhere(differs)[0]) if differs.ndim else ()
            raise CheckError(
                f"{tensor.name!r} differs in {int(differs.sum()):,} of {differs.size:,} elements, "
                f"first at {list(place)}"
            )
    return negative
