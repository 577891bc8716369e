"""Damage for `.reef` files, and checksums repaired after it, so that it reaches the parser.

`Mutants` knows the layout: it damages streams and cuts them to what their decoder uses, or fields
of a header, which it codes again. `mutated` knows bytes only.
"""

import random
import zlib
from collections import deque
from dataclasses import dataclass

from reefknot.codec.coder import Coder
from reefknot.errors import FormatError, ReefknotError
from reefknot.format import layout, read
from reefknot.format.content import SolidContent


def repaired(data: bytes) -> bytes:
    """The same bytes with checksums that match them, where the layout can still be seen."""
    if len(data) < 12 or data[:3] != layout.MAGIC:
        return data
    version = data[3] & 0x7F
    if data[3] == version:
        return data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little")
    length = int.from_bytes(data[-8:-4], "little")
    if version not in layout.VERSIONS or length > len(data) - 12:
        return data
    start = len(data) - 8 - length
    data = data[:-4] + zlib.crc32(data[:4] + data[start:-4]).to_bytes(4, "little")
    try:  # each tensor has a checksum inside the header: write the header again
        header = layout.code_header(
            Coder(data[start:-8]),
            layout.Header(version=version),
            indexed=True,
            file_bytes=len(data),
        )
    except FormatError:
        return data
    entries, at = [], 4
    for entry in header.entries:
        stream = data[at : at + entry.stream_bytes]
        entries.append(layout.replace(entry, checksum=zlib.crc32(stream)))
        at += entry.stream_bytes
    coder = Coder()
    try:
        layout.code_header(coder, layout.replace(header, entries=tuple(entries)), indexed=True)
    except (FormatError, ValueError, IndexError, OverflowError):
        return data  # a header that can be read, but that no writer would write
    head = coder.finish()
    tail = head + len(head).to_bytes(4, "little")
    return data[:start] + tail + zlib.crc32(data[:4] + tail).to_bytes(4, "little")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One of several kinds of damage."""
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        kind = rng.randrange(7)
        at = rng.randrange(len(raw)) if raw else 0
        # The header decides most, so half of the damage goes to the ends of the file.
        if rng.random() < 0.5 and raw:
            at = (
                rng.randrange(min(48, len(raw)))
                if rng.random() < 0.6
                else len(raw) - 1 - rng.randrange(min(80, len(raw)))
            )
        if kind == 0 and raw:
            raw[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and raw:
            raw[at] = rng.choice((0, 255, rng.randrange(256)))
        elif kind == 2:
            del raw[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            raw[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 4:
            raw[at:] = raw[at : at + rng.randrange(64)]
        elif kind == 5:
            raw[at : at + 8] = rng.randbytes(8)
        elif raw:
            other = rng.randrange(len(raw))
            raw[at : at + 16] = raw[other : other + 16]
    return bytes(raw)


TAIL = random.Random(0).randbytes(400)  # follows a stream whose end is looked for
MOST_ELEMENTS = 4096


def _used(body: bytes, read_all) -> bytes:
    """The stream that a decoder uses which reads on behind the end of this one."""
    coder = Coder(body + TAIL)
    coder.allow(MOST_ELEMENTS)
    try:
        read_all(coder)
    except ReefknotError:
        return body
    return (body + TAIL)[: int(coder.state[2])]


def _read_tensors(coder: Coder, header: layout.Header, entries) -> None:
    if sum(entry.decoded_bytes for entry in entries) > 4 * MOST_ELEMENTS:
        return
    content = SolidContent()
    for entry in entries:
        read._read_tight(coder, content, entry, header)


@dataclass(frozen=True)
class _Parts:
    """An indexed file: its header, and the streams of its tensors."""

    header: layout.Header
    streams: tuple[bytes, ...]


def _parts(data: bytes) -> _Parts:
    length = int.from_bytes(data[-8:-4], "little")
    start = len(data) - 8 - length
    blank = layout.Header(version=data[3] & 0x7F)
    header = layout.code_header(Coder(data[start:-8]), blank, indexed=True, file_bytes=len(data))
    streams, at = [], 4
    for entry in header.entries:
        streams.append(data[at : at + entry.stream_bytes])
        at += entry.stream_bytes
    return _Parts(header, tuple(streams))


def _joined(parts: _Parts, *, version: int, truthful: bool = True) -> bytes:
    entries = parts.header.entries
    if truthful:
        entries = tuple(
            layout.replace(entry, stream_bytes=len(stream), checksum=zlib.crc32(stream))
            for entry, stream in zip(entries, parts.streams, strict=False)
        )
    header = layout.replace(parts.header, entries=entries, version=version)
    coder = Coder()
    layout.code_header(coder, header, indexed=True)
    return _with_tail(layout.head_of(header, indexed=True), parts.streams, coder.finish())


def _with_tail(head: bytes, streams, stream: bytes) -> bytes:
    tail = stream + len(stream).to_bytes(4, "little")
    return head + b"".join(streams) + tail + zlib.crc32(head + tail).to_bytes(4, "little")


class Mutants:
    """Damaged files without end; `keep` adds one to those that are damaged."""

    def __init__(self, originals: list[bytes], rng: random.Random, room: int = 3000) -> None:
        self._originals, self._rng = list(originals), rng
        self._kept = deque[bytes](maxlen=room)
        self._draws = 0

    def keep(self, data: bytes) -> None:
        """Damage this one, too, now and then."""
        if len(data) < 110 and self._rng.random() < 0.05:
            self._kept.append(data)

    def draw(self) -> bytes:
        """A damaged file with checksums that match."""
        rng = self._rng
        self._draws += 1
        data = rng.choice(self._kept if self._kept and rng.random() < 0.5 else self._originals)
        if rng.random() < 0.03:
            return mutated(data, rng)  # its checksum refuses it
        if data[3] & layout.IS_INDEXED:
            try:
                return self._indexed(data)
            except (ReefknotError, ValueError, IndexError, OverflowError):
                return repaired(mutated(data, rng))
        return self._solid(data)

    def _solid(self, data: bytes) -> bytes:
        rng, version = self._rng, data[3]
        if rng.random() < 0.02:
            version = rng.choice((1, 2, 0x81, 0x82, rng.randrange(256)))
        body = mutated(data[4:-4], rng)
        if rng.random() < 0.6:

            def read_all(coder: Coder) -> None:
                blank = layout.Header(version=version)
                header = layout.code_header(coder, blank, indexed=False, file_bytes=len(data))
                _read_tensors(coder, header, header.entries)

            body = _used(body, read_all)
        data = b"REF" + bytes([version]) + body
        return data + zlib.crc32(data).to_bytes(4, "little")

    def _indexed(self, data: bytes) -> bytes:
        rng, version = self._rng, data[3] & 0x7F
        parts, kind = _parts(data), rng.random()
        if kind < 0.5 and parts.streams:
            return _joined(self._damaged_stream(parts), version=version)
        if kind < 0.8 and parts.header.entries:
            return _joined(self._damaged_field(parts), version=version, truthful=rng.random() < 0.8)
        coder = Coder()
        layout.code_header(coder, parts.header, indexed=True)
        stream = mutated(coder.finish(), rng)
        if rng.random() < 0.6:
            blank = layout.Header(version=version)
            stream = _used(
                stream,
                lambda coder: layout.code_header(coder, blank, indexed=True, file_bytes=len(data)),
            )
        return _with_tail(data[:4], parts.streams, stream)

    def _damaged_stream(self, parts: _Parts) -> _Parts:
        rng, streams = self._rng, list(parts.streams)
        number = rng.randrange(len(streams))
        entry, stream = parts.header.entries[number], mutated(streams[number], rng)
        if entry.method == layout.TIGHT and rng.random() < 0.7:
            stream = _used(stream, lambda coder: _read_tensors(coder, parts.header, (entry,)))
        streams[number] = stream
        return _Parts(parts.header, tuple(streams))

    def _damaged_field(self, parts: _Parts) -> _Parts:
        """A header that says something else of one tensor, or has one more or one less."""
        rng, entries, streams = self._rng, list(parts.header.entries), list(parts.streams)
        number = rng.randrange(len(entries))
        entry = entries[number]
        shape = list(entry.shape)
        if shape and rng.random() < 0.7:
            shape[rng.randrange(len(shape))] = rng.choice((0, 1, 2, 3, 5, 9, 16, 1 << 20, 1 << 46))
        elif rng.random() < 0.5:
            shape.append(rng.choice((0, 1, 2, 3)))
        changes = {
            "shape": tuple(shape),
            "codebook": rng.randrange(-1, len(parts.header.books)),
            "method": 1 - entry.method,
            "run": rng.choice((0, 1, 2, 3, 9, 1 << 40)),
            "num_scales": rng.choice((0, 1, 2, 3, entry.num_scales + 1)),
            "name": rng.choice(("", "a", "b.w", "x" * 40, "\0", entries[0].name)),
            "stream_bytes": max(0, entry.stream_bytes + rng.choice((-1, 1))),
            "checksum": entry.checksum ^ 1,
        }
        field = rng.choice([*changes, "shape", "shape", "more", "less"])
        if field == "more":
            entries.append(layout.replace(entry, name=f"{entry.name}{len(entries)}"))
            streams.append(streams[number])
        elif field == "less":
            del entries[number], streams[number]
        else:
            entries[number] = layout.replace(entry, **{field: changes[field]})
        return _Parts(layout.replace(parts.header, entries=tuple(entries)), tuple(streams))
