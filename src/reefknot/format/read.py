"""Reading `.reef` files: bytes that may be hostile, to a `TiedState`.

Takes     a file, whole or with the right to seek in it.
Gives     its state, or only some of its tensors; a `FormatError` for anything that is not right.

Nothing is allocated before its size has been weighed against `max_bytes`: a few bytes can promise
any number of zeros.
"""

import io
import os
import zlib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import numpy as np

from reefknot.codec.coder import Coder
from reefknot.codec.kept import from_planes, unit_bytes
from reefknot.codec.static import read_symbols
from reefknot.errors import FormatError, ReefknotError
from reefknot.format import layout
from reefknot.format.content import SolidContent
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor

PARALLEL_ELEMENTS = 1 << 20


def decode(
    data: bytes, *, source: str = "the file", max_bytes: int, names: Collection[str] | None = None
) -> TiedState:
    """The state in these bytes."""
    return read_state(io.BytesIO(data), source=source, max_bytes=max_bytes, names=names)


def read_state(
    file: BinaryIO, *, source: str, max_bytes: int, names: Collection[str] | None = None
) -> TiedState:
    """The state in an open file; only the tensors in `names`, and their aliases, if given."""
    try:
        return _read(file, max_bytes, names)
    except ReefknotError as error:
        raise about(source, error) from error


def about(source: str, error: ReefknotError) -> FormatError:
    """The same error, which now says what file it is about."""
    text = str(error)
    return FormatError(f"{source} {text}" if text.startswith("is ") else f"{source}: {text}")


def read_header(file: BinaryIO) -> tuple[layout.Header, bool]:
    """The header of a file, and whether it is indexed; then no stream of a tensor is read."""
    header, content = _open(file)
    return header, content is None


def _open(file: BinaryIO) -> tuple[layout.Header, Coder | None]:
    """The header, and for a solid file the coder that stands at its first tensor."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(layout.HEAD_BYTES)
    if head == b"REEF":
        raise FormatError(
            "is a .reef file of version 0, which is no longer read; pack the model again"
        )
    if head[:3] != layout.MAGIC:
        raise FormatError(f"is not a .reef file: it begins {head!r}, not {layout.MAGIC!r}")
    if len(head) < layout.HEAD_BYTES or head[3] not in (layout.SOLID, layout.INDEXED):
        raise FormatError(
            f"version {head[3:].hex() or 'missing'} is unknown; a newer reefknot may read it"
        )
    if size < layout.HEAD_BYTES + layout.CHECK_BYTES:
        raise FormatError(
            f"{size} bytes are too few for a .reef file; it is truncated, fetch it again"
        )
    if head[3] == layout.SOLID:
        body = file.read(size - layout.HEAD_BYTES - layout.CHECK_BYTES)
        _check(zlib.crc32(body, zlib.crc32(head)), file.read(layout.CHECK_BYTES), "its checksum")
        coder = Coder(body)
        coder.allow(layout.SOLID_BUDGET + layout.BUDGET_PER_BYTE * len(body))
        return layout.code_header(coder, layout.Header(), indexed=False, file_bytes=size), coder
    return _open_indexed(file, head, size), None


def _open_indexed(file: BinaryIO, head: bytes, size: int) -> layout.Header:
    fixed = layout.HEAD_BYTES + layout.LENGTH_BYTES + layout.CHECK_BYTES
    if size < fixed:
        raise FormatError(
            f"{size} bytes are too few for a .reef file; it is truncated, fetch it again"
        )
    file.seek(size - layout.LENGTH_BYTES - layout.CHECK_BYTES)
    length = int.from_bytes(file.read(layout.LENGTH_BYTES), "little")
    if length > size - fixed:
        raise FormatError(
            f"its header claims {length:,} bytes of {size:,}; it is truncated, fetch it again"
        )
    file.seek(size - layout.LENGTH_BYTES - layout.CHECK_BYTES - length)
    tail = file.read(length + layout.LENGTH_BYTES)
    _check(zlib.crc32(head + tail), file.read(layout.CHECK_BYTES), "the checksum of its header")
    coder = Coder(tail[:length])
    header = layout.code_header(coder, layout.Header(), indexed=True, file_bytes=size)
    coder.close()
    claimed = sum(entry.stream_bytes for entry in header.entries)
    if claimed != size - fixed - length:
        raise FormatError(
            f"its tensors claim {claimed:,} bytes; the file has {size - fixed - length:,} for them"
        )
    return header


def _check(found: int, stored: bytes, what: str) -> None:
    if found.to_bytes(layout.CHECK_BYTES, "little") != stored:
        raise FormatError(f"is damaged: {what} does not match; fetch it again")


def _read(file: BinaryIO, max_bytes: int, names: Collection[str] | None) -> TiedState:
    header, content = _open(file)
    wanted = _wanted(header, names)
    decoded = sum(
        entry.num_elements * entry.dtype.item_bytes
        for number, entry in enumerate(header.entries)
        if content is not None or number in wanted
    )
    if decoded > max_bytes:
        raise FormatError(
            f"its tensors take up {decoded:,} bytes; the limit is {max_bytes:,}. "
            "Raise max_bytes if you trust it"
        )
    books = [_codebook(book) for book in header.books]
    tensors = (
        _read_solid(content, header, wanted) if content else _read_indexed(file, header, wanted)
    )
    owned = {header.entries[number].name for number in tensors}
    aliases = {name: header.entries[owner].name for name, owner in header.aliases}
    if len(aliases) < len(header.aliases):
        raise FormatError("two aliases have the same name")
    aliases = {alias: name for alias, name in aliases.items() if name in owned}
    return TiedState(tuple(books), tuple(tensors[number] for number in sorted(tensors)), aliases)


def _wanted(header: layout.Header, names: Collection[str] | None) -> set[int]:
    if names is None:
        return set(range(len(header.entries)))
    owners = {entry.name: number for number, entry in enumerate(header.entries)}
    owners |= dict(header.aliases)
    return {owners[name] for name in names if name in owners}


def _codebook(book: layout.Book) -> Codebook:
    bits = np.array(book.bits, f"<u{book.dtype.item_bytes}")
    return Codebook(book.dtype, bits.view(book.dtype.storage))


def _planes_shape(entry: layout.Entry) -> tuple[int, int]:
    size = unit_bytes(entry.dtype)
    return entry.num_elements * entry.dtype.item_bytes // size, size


def _read_solid(
    coder: Coder, header: layout.Header, wanted: set[int]
) -> dict[int, TiedTensor | KeptTensor]:
    content = SolidContent()
    tensors: dict[int, TiedTensor | KeptTensor] = {}
    last = max(wanted, default=-1) if len(wanted) < len(header.entries) else len(header.entries)
    for number, entry in enumerate(header.entries):
        if number > last:
            return tensors
        tensor = _read_tight(coder, content, entry, header)
        if number in wanted:
            tensors[number] = tensor
    coder.close()
    return tensors


def _read_tight(
    coder: Coder, content: SolidContent, entry: layout.Entry, header: layout.Header
) -> TiedTensor | KeptTensor:
    if entry.codebook < 0:
        planes = content.code_kept(coder, np.zeros(_planes_shape(entry), np.uint8), entry.dtype.tag)
        return KeptTensor(
            entry.name, entry.dtype, from_planes(planes, entry.dtype, entry.shape), entry.trainable
        )
    book = header.books[entry.codebook]
    _check_book(entry, book)
    indices = content.code_tied(coder, entry.shape, None, entry.codebook, book)
    return TiedTensor(entry.name, entry.codebook, indices)


def _check_book(entry: layout.Entry, book: layout.Book) -> None:
    if entry.num_elements and not book.bits:
        raise FormatError(f"{entry.name!r} has elements, but its codebook is empty")


def _read_indexed(
    file: BinaryIO, header: layout.Header, wanted: set[int]
) -> dict[int, TiedTensor | KeptTensor]:
    streams, at = {}, layout.HEAD_BYTES
    for number, entry in enumerate(header.entries):
        if number in wanted:
            file.seek(at)
            streams[number] = file.read(entry.stream_bytes)
            if zlib.crc32(streams[number]) != entry.checksum:
                raise FormatError(
                    f"is damaged: the checksum of {entry.name!r} does not match; fetch it again"
                )
        at += entry.stream_bytes
    if sum(header.entries[number].num_elements for number in wanted) < PARALLEL_ELEMENTS:
        return {number: _read_stream(stream, header, number) for number, stream in streams.items()}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # the loops hold no lock
        done = pool.map(lambda item: _read_stream(item[1], header, item[0]), streams.items())
        return dict(zip(streams, done, strict=True))


def _read_stream(stream: bytes, header: layout.Header, number: int) -> TiedTensor | KeptTensor:
    entry = header.entries[number]
    try:
        if entry.method == layout.FAST:
            return _read_fast(memoryview(stream), entry, header)
        coder = Coder(stream)
        coder.allow(layout.STREAM_BUDGET + layout.BUDGET_PER_BYTE * len(stream))
        tensor = _read_tight(coder, SolidContent(), entry, header)
        coder.close()
        return tensor
    except ReefknotError as error:
        raise FormatError(f"in {entry.name!r}, {error}") from error


def _read_fast(
    stream: memoryview, entry: layout.Entry, header: layout.Header
) -> TiedTensor | KeptTensor:
    length = int.from_bytes(stream[: layout.LENGTH_BYTES], "little")
    head, data = stream[layout.LENGTH_BYTES :][:length], stream[layout.LENGTH_BYTES + length :]
    if len(stream) < layout.LENGTH_BYTES + length:
        raise FormatError("its table is longer than its stream; fetch the file again")
    coder = Coder(bytes(head))
    if entry.codebook >= 0:
        book = header.books[entry.codebook]
        _check_book(entry, book)
        symbols, used = read_symbols(coder, data, entry.num_elements, len(book.bits))
        tensor: TiedTensor | KeptTensor = TiedTensor(
            entry.name, entry.codebook, symbols.reshape(entry.shape)
        )
    else:
        count, size = _planes_shape(entry)
        planes, used = np.zeros((count, size), np.uint8), 0
        for plane in range(size):
            if coder.flag(0, "table"):
                symbols, taken = read_symbols(coder, data[used:], count, 256)
            else:
                symbols, taken = np.frombuffer(data[used : used + count], np.uint8), count
                if len(symbols) < count:
                    raise FormatError("its bytes end early; fetch the file again")
            planes[:, plane] = symbols
            used += taken
        values = from_planes(planes, entry.dtype, entry.shape)
        tensor = KeptTensor(entry.name, entry.dtype, values, entry.trainable)
    coder.close()
    if used != len(data):
        raise FormatError(f"{len(data) - used:,} bytes are left over in its stream")
    return tensor
