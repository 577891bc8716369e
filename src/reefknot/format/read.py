"""Reading `.reef` files: bytes that may be hostile, to a `TiedState`.

Takes     a file that is open for reading and seeking, or its bytes.
Gives     its state, or only some of its tensors; a `FormatError` for anything that is not right.

Nothing is allocated before its size has been checked against `max_bytes`: a few bytes can claim any
number of zeros.
"""

import io
import os
import threading
import zlib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from reefknot.codec.coder import Coder
from reefknot.codec.kept import from_planes, unit_bytes
from reefknot.codec.static import read_symbols
from reefknot.errors import FormatError, ReefknotError
from reefknot.format import layout
from reefknot.format.content import SolidContent
from reefknot.scales import SCALE, Scales
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor, index_dtype

PARALLEL_ELEMENTS = 1 << 20
CHUNK = 1 << 20  # bytes that are read at a time where only their checksum is needed


@dataclass(frozen=True)
class TensorCost:
    """What a tensor takes up in a file, and how much of that are positions and scales, in bytes."""

    total: float
    positions: float = 0.0
    scales: float = 0.0


@dataclass(frozen=True)
class FileContent:
    """What a file holds, and where its bytes went; each byte is read only once."""

    state: TiedState
    book_bytes: float
    costs: tuple[TensorCost, ...]  # of the tensors of the state
    parts: tuple[tuple[int, int], ...]  # CRC-32 and size of the file's parts

    @property
    def file_bytes(self) -> int:
        """The size of the file."""
        return sum(size for _, size in self.parts)

    def checksum(self) -> int:
        """The CRC-32 of the whole file, from those of its parts."""
        whole = 0
        for checksum, size in self.parts:  # CRC-32 is linear: parts padded with zeros are added
            whole = checksum ^ _over_zeros(whole, size) ^ _over_zeros(0, size)
        return whole


def decode(
    data: bytes, *, source: str = "the file", max_bytes: int, names: Collection[str] | None = None
) -> TiedState:
    """The state in these bytes."""
    return read_state(io.BytesIO(data), source=source, max_bytes=max_bytes, names=names)


def read_state(
    file: io.BufferedIOBase, *, source: str, max_bytes: int, names: Collection[str] | None = None
) -> TiedState:
    """The state in an open file; only the tensors in `names`, and their aliases, if given."""
    return read_content(file, source=source, max_bytes=max_bytes, names=names).state


def read_content(
    file: io.BufferedIOBase, *, source: str, max_bytes: int, names: Collection[str] | None = None
) -> FileContent:
    """The state in an open file, and where the bytes went."""
    try:
        return _read(file, max_bytes, names)
    except ReefknotError as error:
        raise _about(source, error) from error


def read_header(file: io.BufferedIOBase, *, source: str) -> layout.Header:
    """The header of a file; no tensor is decoded."""
    try:
        return _open(file).header
    except ReefknotError as error:
        raise _about(source, error) from error


def _about(source: str, error: ReefknotError) -> FormatError:
    """An error with the file named in front."""
    text = str(error)
    verb = text.startswith(("is ", "has "))
    return FormatError(f"{source} {text}" if verb else f"{source}: {text}")


@dataclass(frozen=True)
class _Opened:
    """A file whose header has been read; the coder of a solid one is at its first tensor."""

    header: layout.Header
    coder: Coder | None
    parts: tuple[tuple[int, int], ...]


def _open(file: io.BufferedIOBase) -> _Opened:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(layout.HEAD_BYTES)
    if head == b"REEF":
        raise FormatError(
            "is a .reef file of version 0, which is no longer read; pack the model again"
        )
    if head[:3] != layout.MAGIC:
        raise FormatError(f"is not a .reef file: it begins {head!r}, not {layout.MAGIC!r}")
    if len(head) < layout.HEAD_BYTES or head[3] & ~layout.IS_INDEXED not in layout.VERSIONS:
        raise FormatError(
            f"version {head[3:].hex() or 'missing'} is unknown; a newer reefknot may read it"
        )
    indexed = head[3] & layout.IS_INDEXED
    fixed = layout.HEAD_BYTES + layout.CHECK_BYTES + (layout.LENGTH_BYTES if indexed else 0)
    if size < fixed:
        raise FormatError(
            f"{size} bytes are too few for a .reef file; it is truncated, fetch it again"
        )
    blank = layout.Header(version=head[3] & ~layout.IS_INDEXED)
    if not indexed:
        body = _bytes_of(file, size - fixed)
        found, stored = zlib.crc32(body.data, zlib.crc32(head)), file.read(layout.CHECK_BYTES)
        _check(found, stored, "its checksum")
        coder = Coder(body)
        coder.allow(layout.SOLID_BUDGET + layout.BUDGET_PER_BYTE * len(body))
        header = layout.code_header(coder, blank, indexed=False, file_bytes=size)
        return _Opened(header, coder, ((zlib.crc32(stored, found), size),))
    return _open_indexed(file, head, size, blank)


def _bytes_of(file: io.BufferedIOBase, number: int) -> np.ndarray:
    """The next bytes, as an array that the compiled loops use without another copy."""
    data = np.empty(number, np.uint8)
    if file.readinto(data.data) != number:
        raise FormatError("has become shorter while it was read; try again")
    return data


def _open_indexed(file: io.BufferedIOBase, head: bytes, size: int, blank: layout.Header) -> _Opened:
    fixed = layout.HEAD_BYTES + layout.LENGTH_BYTES + layout.CHECK_BYTES
    file.seek(size - layout.LENGTH_BYTES - layout.CHECK_BYTES)
    length = int.from_bytes(file.read(layout.LENGTH_BYTES), "little")
    if length > size - fixed:
        raise FormatError(
            f"its header claims {length:,} bytes of {size:,}; it is truncated, fetch it again"
        )
    file.seek(size - layout.LENGTH_BYTES - layout.CHECK_BYTES - length)
    tail = file.read(length + layout.LENGTH_BYTES)
    stored = file.read(layout.CHECK_BYTES)
    _check(zlib.crc32(head + tail), stored, "the checksum of its header")
    coder = Coder(tail[:length])
    header = layout.code_header(coder, blank, indexed=True, file_bytes=size)
    coder.close()
    claimed = sum(entry.stream_bytes for entry in header.entries)
    if claimed != size - fixed - length:
        raise FormatError(
            f"its tensors claim {claimed:,} bytes; the file has {size - fixed - length:,} for them"
        )
    tail += stored
    streams = ((entry.checksum, entry.stream_bytes) for entry in header.entries)
    parts = ((zlib.crc32(head), len(head)), *streams, (zlib.crc32(tail), len(tail)))
    return _Opened(header, None, parts)


def _check(found: int, stored: bytes, what: str) -> None:
    if found.to_bytes(layout.CHECK_BYTES, "little") != stored:
        raise FormatError(f"is damaged: {what} does not match; fetch it again")


def _read(file: io.BufferedIOBase, max_bytes: int, names: Collection[str] | None) -> FileContent:
    opened = _open(file)
    header, coder = opened.header, opened.coder
    wanted = _wanted(header, names)
    _check_size(header, wanted if coder is None else set(range(len(header.entries))), max_bytes)
    books = tuple(_codebook(book) for book in header.books)
    if coder is not None:
        tensors, costs = _read_solid(coder, header, wanted)
    else:
        tensors, costs = _read_indexed(file, header, wanted)
    owned = {header.entries[number].name for number in tensors}
    aliases = {name: header.entries[owner].name for name, owner in header.aliases}
    aliases = {alias: name for alias, name in aliases.items() if name in owned}
    return FileContent(
        TiedState(books, tuple(tensors.values()), aliases),
        header.book_bytes,
        tuple(costs.values()),
        opened.parts,
    )


def _check_size(header: layout.Header, wanted: set[int], max_bytes: int) -> None:
    """Refuse what would take up too much memory; an alias counts like its tensor."""
    names = [1] * len(header.entries)
    for _, owner in header.aliases:
        names[owner] += 1
    decoded = sum(names[number] * header.entries[number].decoded_bytes for number in wanted)
    if decoded > max_bytes:
        count = sum(names[number] for number in wanted)
        raise FormatError(
            f"its {count:,} tensors, aliases included, take up {decoded:,} bytes; "
            f"the limit is {max_bytes:,}. Raise max_bytes if you trust it"
        )


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


_Tensors = dict[int, TiedTensor | KeptTensor]
_Costs = dict[int, TensorCost]


def _read_solid(coder: Coder, header: layout.Header, wanted: set[int]) -> tuple[_Tensors, _Costs]:
    content, tensors, costs = SolidContent(), _Tensors(), _Costs()
    last = max(wanted, default=-1) if len(wanted) < len(header.entries) else len(header.entries)
    for number, entry in enumerate(header.entries):
        if number > last:
            return tensors, costs
        before = _spent(coder, content)
        tensor = _read_tight(coder, content, entry, header)
        if number in wanted:
            tensors[number] = tensor
            total, values, scales = (_spent(coder, content) - before) / 64
            costs[number] = _cost(total, tensor, values, scales)
    coder.close()
    return tensors, costs


def _spent(coder: Coder, content: SolidContent) -> np.ndarray:
    """What has been spent so far, in 64ths of a byte: in all, on values, on scales."""
    return np.array([coder.spent(), coder.spent_on_values, content.spent_on_scales], np.float64)


def _cost(
    total: float, tensor: TiedTensor | KeptTensor, values: float, scales: float
) -> TensorCost:
    tied = isinstance(tensor, TiedTensor)
    return TensorCost(
        float(total), float(max(total - values - scales, 0.0)) if tied else 0.0, float(scales)
    )


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
    values = content.code_scales(coder, None, entry.num_scales) if entry.run else None
    return TiedTensor(entry.name, entry.codebook, indices, _scales(entry, values))


def _scales(entry: layout.Entry, values: np.ndarray | None) -> Scales | None:
    return None if values is None else Scales(entry.dtype, values, entry.run)


def _check_book(entry: layout.Entry, book: layout.Book) -> None:
    if entry.num_elements and not book.bits:
        raise FormatError(f"{entry.name!r} has elements, but its codebook is empty")


# ---- indexed files ----------------------------------------------------------------------------


class _Stream:
    """The bytes of one tensor, each read once; their checksum is compared at the end."""

    def __init__(
        self, file: io.BufferedIOBase, lock: threading.Lock, start: int, entry: layout.Entry
    ) -> None:
        self._file, self._lock, self._entry = file, lock, entry
        self._at, self.left, self._checksum = start, entry.stream_bytes, 0

    def take(self, number: int) -> bytes:
        """The next bytes."""
        return self.take_array(number).tobytes()

    def take_array(self, number: int) -> np.ndarray:
        """The next bytes, as an array that is not shared."""
        if number > self.left:
            raise FormatError("its bytes end early; fetch the file again")
        with self._lock:
            self._file.seek(self._at)
            data = _bytes_of(self._file, number)
        self._at, self.left = self._at + number, self.left - number
        self._checksum = zlib.crc32(data.data, self._checksum)
        return data

    def check(self) -> None:
        """Read what is left, and refuse the stream if its checksum does not match."""
        while self.left:
            self.take_array(min(self.left, CHUNK))
        if self._checksum != self._entry.checksum:
            raise FormatError(
                f"is damaged: the checksum of {self._entry.name!r} does not match; fetch it again"
            )


def _read_indexed(
    file: io.BufferedIOBase, header: layout.Header, wanted: set[int]
) -> tuple[_Tensors, _Costs]:
    starts, at, lock = {}, layout.HEAD_BYTES, threading.Lock()
    for number, entry in enumerate(header.entries):
        starts[number] = at
        at += entry.stream_bytes

    def read(number: int) -> tuple[TiedTensor | KeptTensor, TensorCost]:
        entry = header.entries[number]
        return _read_stream(_Stream(file, lock, starts[number], entry), header, entry)

    numbers = sorted(wanted)
    if sum(header.entries[number].num_elements for number in numbers) < PARALLEL_ELEMENTS:
        done = [read(number) for number in numbers]
    else:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # the loops release the GIL
            done = list(pool.map(read, numbers))
    tensors = {number: tensor for number, (tensor, _) in zip(numbers, done, strict=True)}
    return tensors, {number: cost for number, (_, cost) in zip(numbers, done, strict=True)}


def _read_stream(
    stream: _Stream, header: layout.Header, entry: layout.Entry
) -> tuple[TiedTensor | KeptTensor, TensorCost]:
    total = stream.left
    try:
        if entry.method == layout.FAST:
            tensor, cost = _read_fast(stream, entry, header), TensorCost(total)
        else:
            coder = Coder(stream.take_array(total))
            coder.allow(layout.STREAM_BUDGET + layout.BUDGET_PER_BYTE * total)
            content = SolidContent()
            tensor = _read_tight(coder, content, entry, header)
            coder.close()
            _, values, scales = _spent(coder, content) / 64
            cost = _cost(total, tensor, values, scales)
    except ReefknotError as error:
        stream.check()  # if the checksum does not match, that is the better message
        raise FormatError(f"in {entry.name!r}, {error}") from error
    stream.check()
    return tensor, cost


def _read_fast(
    stream: _Stream, entry: layout.Entry, header: layout.Header
) -> TiedTensor | KeptTensor:
    length = int.from_bytes(stream.take(min(layout.LENGTH_BYTES, stream.left)), "little")
    if length > stream.left:
        raise FormatError("its table is longer than its stream; fetch the file again")
    coder = Coder(stream.take_array(length))
    tensor: TiedTensor | KeptTensor
    if entry.codebook >= 0:
        book = header.books[entry.codebook]
        _check_book(entry, book)
        indices = np.zeros(entry.num_elements, index_dtype(len(book.bits)))
        read_symbols(coder, stream.take, indices, len(book.bits))
        indices.flags.writeable = False
        values = None
        if entry.run:
            planes = _fast_planes(coder, stream, (entry.num_scales, layout.SCALE_BYTES))
            values = from_planes(planes, SCALE, (entry.num_scales,))
        indices = indices.reshape(entry.shape)
        tensor = TiedTensor(entry.name, entry.codebook, indices, _scales(entry, values))
    else:
        planes = _fast_planes(coder, stream, _planes_shape(entry))
        values = from_planes(planes, entry.dtype, entry.shape)
        tensor = KeptTensor(entry.name, entry.dtype, values, entry.trainable)
    coder.close()
    if stream.left:
        raise FormatError(f"{stream.left:,} bytes are left over in its stream")
    return tensor


def _fast_planes(coder: Coder, stream: _Stream, shape: tuple[int, int]) -> np.ndarray:
    planes = np.zeros(shape, np.uint8)
    for plane in planes.T:
        if coder.flag(0, "table"):
            read_symbols(coder, stream.take, plane, 256)
        else:
            for at in range(0, len(plane), CHUNK):
                number = min(CHUNK, len(plane) - at)
                plane[at : at + number] = stream.take_array(number)
    return planes


def _over_zeros(checksum: int, size: int) -> int:
    """The CRC-32 after so many more zero bytes."""
    zeros = bytes(min(size, CHUNK))
    for at in range(0, size, CHUNK):
        checksum = zlib.crc32(zeros[: min(CHUNK, size - at)], checksum)
    return checksum
