"""Writing `.reef` files: a state to bytes, or tensor by tensor to an open file.

Takes     a `TiedState`, or its tensors one at a time.
Gives     the bytes of a file; the same state always gives the same ones.
"""

import io
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import BinaryIO, Literal

import numpy as np

from reefknot.codec.coder import Coder
from reefknot.codec.kept import to_planes
from reefknot.codec.static import write_symbols
from reefknot.dtypes import DType
from reefknot.errors import ReefknotError
from reefknot.format import layout
from reefknot.format.content import SolidContent
from reefknot.progress import each
from reefknot.scales import SCALE
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor, occurrences

Effort = Literal["auto", "tight", "fast"]
SOLID_ELEMENTS = 1 << 21  # larger states are indexed
FAST_ELEMENTS = 1 << 20  # dense tensors larger than this are coded by static tables
FAST_DENSITY = 4  # ... if at least one element in four differs from the most frequent value


def encode(state: TiedState, effort: Effort = "auto") -> bytes:
    """A state as the bytes of a file."""
    if effort not in ("auto", "tight", "fast"):
        raise ReefknotError(f"effort is 'auto', 'tight' or 'fast', not {effort!r}")
    if effort != "fast" and state.num_weights <= SOLID_ELEMENTS:
        data = _solid(state)
        if data is not None:
            return data
    file = io.BytesIO()
    write_parts(file, state.codebooks, each("coding", state.tensors), dict(state.aliases), effort)
    return file.getvalue()


def write_parts(
    file: BinaryIO,
    codebooks: Iterable[Codebook],
    tensors: Iterable[TiedTensor | KeptTensor],
    aliases: dict[str, str],
    effort: Effort = "auto",
) -> int:
    """Write an indexed file tensor by tensor, with one in memory at a time; gives its size."""
    writer = IndexedWriter(file, effort)
    numbers = [writer.add_codebook(codebook) for codebook in codebooks]
    for tensor in tensors:
        writer.add(
            replace(tensor, codebook=numbers[tensor.codebook])
            if isinstance(tensor, TiedTensor)
            else tensor
        )
    writer.finish(aliases)
    return writer.bytes_written


def sorted_book(codebook: Codebook) -> tuple[layout.Book, np.ndarray]:
    """A codebook sorted as in a file, and the new index of each of its values."""
    bits = codebook.values.view(f"<u{codebook.dtype.item_bytes}").tolist()
    order = sorted(range(len(bits)), key=lambda i: layout.sort_key(bits[i], codebook.dtype))
    place = np.zeros(len(bits), np.uint16)
    place[order] = np.arange(len(bits), dtype=np.int64).astype(np.uint16)
    return layout.Book(codebook.dtype, tuple(bits[i] for i in order)), place


def _solid(state: TiedState) -> bytes | None:
    """One stream for all tensors; None if its few bytes may not claim so many elements."""
    sorted_books = [sorted_book(codebook) for codebook in state.codebooks]
    entries = tuple(_entry(state, tensor) for tensor in state.tensors)
    owners = {entry.name: number for number, entry in enumerate(entries)}
    aliases = tuple((alias, owners[name]) for alias, name in state.aliases.items())
    coder = Coder()
    version = layout.version_of(entries)
    header = layout.Header(
        tuple(book for book, _ in sorted_books), entries, aliases, version=version
    )
    layout.code_header(coder, header, indexed=False)
    content = SolidContent()
    for tensor in each("coding", state.tensors):
        if isinstance(tensor, KeptTensor):
            content.code_kept(coder, to_planes(tensor.data, tensor.dtype), tensor.dtype.tag)
        else:
            book, place = sorted_books[tensor.codebook]
            content.code_tied(coder, tensor.shape, place[tensor.indices], tensor.codebook, book)
            if tensor.scales:
                content.code_scales(coder, tensor.scales.values)
    stream = coder.finish()
    if coder.costly > layout.SOLID_BUDGET + layout.BUDGET_PER_BYTE * len(stream):
        return None
    data = layout.head_of(header, indexed=False) + stream
    layout.check_claims(header, len(data) + layout.CHECK_BYTES)
    return data + zlib.crc32(data).to_bytes(layout.CHECK_BYTES, "little")


def _entry(state: TiedState, tensor: TiedTensor | KeptTensor) -> layout.Entry:
    if isinstance(tensor, KeptTensor):
        return layout.Entry(tensor.name, tensor.shape, -1, tensor.dtype, tensor.trainable)
    return _tied_entry(tensor, state.dtype(tensor))


def _tied_entry(tensor: TiedTensor, dtype: DType) -> layout.Entry:
    entry = layout.Entry(tensor.name, tensor.shape, tensor.codebook, dtype)
    if tensor.scales is None:
        return entry
    return replace(entry, run=tensor.scales.run, num_scales=len(tensor.scales.values))


class IndexedWriter:
    """An indexed file, written tensor by tensor: memory is needed for one of them only."""

    def __init__(self, file: BinaryIO, effort: Effort = "auto") -> None:
        """Begin a file at the current position of `file`."""
        self._file, self._effort = file, effort
        self._books: list[tuple[layout.Book, np.ndarray]] = []
        self._entries: list[layout.Entry] = []
        self._start = file.tell()
        self.bytes_written = file.write(layout.head_of(layout.Header(), indexed=True))

    def add_codebook(self, codebook: Codebook) -> int:
        """Add a codebook; gives its number."""
        self._books.append(sorted_book(codebook))
        return len(self._books) - 1

    def add(self, tensor: TiedTensor | KeptTensor) -> int:
        """Write a tensor, whose codebook is a number that `add_codebook` gave; gives its bytes."""
        if isinstance(tensor, KeptTensor):
            entry = layout.Entry(tensor.name, tensor.shape, -1, tensor.dtype, tensor.trainable)
            fast = self._is_fast(tensor.data.size, dense=True)
            stream, fast = _kept_stream(tensor, fast)
        else:
            book, place = self._books[tensor.codebook]
            indices = place[tensor.indices]
            entry = _tied_entry(tensor, tensor.scales.dtype if tensor.scales else book.dtype)
            most = int(occurrences(indices, max(len(book.bits), 1)).max())
            fast = self._is_fast(
                indices.size, dense=FAST_DENSITY * (indices.size - most) >= indices.size
            )
            stream, fast = _tied_stream(tensor, indices, book, fast)
        size = checksum = 0
        for part in stream:
            self._file.write(part)
            size, checksum = size + len(part), zlib.crc32(part, checksum)
        self.bytes_written += size
        self._entries.append(replace(entry, method=int(fast), stream_bytes=size, checksum=checksum))
        return size

    def _is_fast(self, size: int, dense: bool) -> bool:
        if self._effort == "auto":
            return dense and size > FAST_ELEMENTS
        return self._effort == "fast" and size > 0

    def finish(self, aliases: dict[str, str]) -> None:
        """Write the header, which ends the file."""
        owners = {entry.name: number for number, entry in enumerate(self._entries)}
        coder = Coder()
        header = layout.Header(
            tuple(book for book, _ in self._books),
            tuple(self._entries),
            tuple((alias, owners[name]) for alias, name in aliases.items()),
            version=layout.version_of(self._entries),
        )
        layout.code_header(coder, header, indexed=True)
        stream = coder.finish()
        tail = stream + len(stream).to_bytes(layout.LENGTH_BYTES, "little")
        head = layout.head_of(header, indexed=True)
        tail += zlib.crc32(head + tail).to_bytes(layout.CHECK_BYTES, "little")
        self._file.write(tail)
        self._file.seek(self._start)  # the version is known only now
        self._file.write(head)
        self._file.seek(0, io.SEEK_END)
        self.bytes_written += len(tail)
        layout.check_claims(header, self.bytes_written)


def _tied_stream(
    tensor: TiedTensor, indices: np.ndarray, book: layout.Book, fast: bool
) -> tuple[list[bytes], bool]:
    """The stream of a tensor, and whether it is fast: a tight one could exceed the "Limits"."""
    coder, content = Coder(), SolidContent()
    if not fast:
        content.code_tied(coder, indices.shape, indices, tensor.codebook, book)
        if tensor.scales:
            content.code_scales(coder, tensor.scales.values)
        stream = coder.finish()
        if _affordable(coder, stream):
            return [stream], False
        coder = Coder()
    parts = [write_symbols(coder, indices.reshape(-1), len(book.bits))]
    if tensor.scales:
        parts += _fast_planes(coder, to_planes(tensor.scales.values, SCALE))
    return _fast_stream(coder, parts)


def _affordable(coder: Coder, stream: bytes) -> bool:
    return coder.costly <= layout.STREAM_BUDGET + layout.BUDGET_PER_BYTE * len(stream)


def _kept_stream(tensor: KeptTensor, fast: bool) -> tuple[list[bytes], bool]:
    coder, planes = Coder(), to_planes(tensor.data, tensor.dtype)
    if not fast:
        SolidContent().code_kept(coder, planes, tensor.dtype.tag)
        stream = coder.finish()
        if _affordable(coder, stream):
            return [stream], False
        coder = Coder()
    return _fast_stream(coder, _fast_planes(coder, planes))


def _fast_planes(coder: Coder, planes: np.ndarray) -> list[bytes]:
    parts = []
    for plane in range(planes.shape[1]):
        column = np.ascontiguousarray(planes[:, plane])
        counts = occurrences(column, 256)
        # Worth a table if one symbol is frequent, or if few symbols occur at all.
        table = 64 * int(counts.max()) > len(column) or int(np.count_nonzero(counts)) < 192
        coder.flag(bool(table), "table")
        parts.append(write_symbols(coder, column, 256) if table else column.tobytes())
    return parts


def _fast_stream(coder: Coder, parts: list[bytes]) -> tuple[list[bytes], bool]:
    head = coder.finish()
    return [len(head).to_bytes(layout.LENGTH_BYTES, "little"), head, *parts], True
