"""Damage for `.reef` files, and checksums repaired after it, so that it reaches the parser."""

import random
import zlib

from reefknot.codec.coder import Coder
from reefknot.errors import FormatError
from reefknot.format import layout


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
