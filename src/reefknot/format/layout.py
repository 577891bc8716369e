"""The `.reef` file: what every byte means, in one place for writer and reader.

    solid      "REF" 01 | stream | CRC-32 of all before
    indexed    "REF" 81 | streams of tensors | header | its length | CRC-32 of head, header, length

Version 2 (02, 82) adds tensors with scales; a file without them is of version 1.

A solid file is one stream of the range coder: the header, then every tensor. An indexed file has a
stream for each tensor, so that one can be read without the others; its header comes last, so that
tensors can be written before it is known. Lengths and checksums have 4 bytes, little endian.
docs/format.md is the specification.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from reefknot.codec.coder import Coder
from reefknot.dtypes import DTYPES, DType
from reefknot.errors import FormatError
from reefknot.scales import INTEGERS, SCALED

MAGIC: Final = b"REF"
SOLID: Final = 0x01  # of version 1
INDEXED: Final = 0x81
IS_INDEXED: Final = 0x80
VERSIONS: Final = (1, 2)
HEAD_BYTES: Final = 4
CHECK_BYTES: Final = 4
SCALE_BYTES: Final = 4
LENGTH_BYTES: Final = 4

TIGHT, FAST = 0, 1  # how one tensor of an indexed file is coded

MAX_NAME_BYTES: Final = 65_536
MAX_DIMENSIONS: Final = 64
MAX_ELEMENTS: Final = 1 << 46
MAX_CODEBOOK: Final = 65_536

# What a file may claim: a constant, and so much more for each of its bytes. This bounds the time
# that a reader can take.
SOLID_BUDGET: Final = 1 << 21
STREAM_BUDGET: Final = 256
BUDGET_PER_BYTE: Final = 16
PARTS, PARTS_PER_BYTE = 64, 2  # codebooks, tensors and aliases
VALUES, VALUES_PER_BYTE = MAX_CODEBOOK, 8  # of all codebooks
CHARACTERS, CHARACTERS_PER_BYTE = 1 << 20, 64  # of all names

# Numbers of element types in a file. Only ever add at the end.
TAGS: Final = (
    "F32", "F16", "BF16", "F64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ",
    "F8_E5M2FNUZ", "C64",
    "BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64",
)  # fmt: skip
# Exponent bits of the types whose values are a sign and a magnitude.
EXPONENT_BITS: Final = {
    "F32": 8, "F16": 5, "BF16": 8, "F64": 11, "F8_E4M3": 4, "F8_E5M2": 5,
    "F8_E4M3FNUZ": 4, "F8_E5M2FNUZ": 5,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One tensor of the header: `codebook` is -1 for a kept one, `run` 0 for one without scales."""

    name: str
    shape: tuple[int, ...]
    codebook: int
    dtype: DType
    trainable: bool = True
    run: int = 0
    num_scales: int = 0
    method: int = TIGHT
    stream_bytes: int = 0
    checksum: int = 0

    @property
    def num_elements(self) -> int:
        """The product of the shape."""
        return math.prod(self.shape)

    @property
    def decoded_bytes(self) -> int:
        """What it takes up in memory, its scales included."""
        return self.num_elements * self.dtype.item_bytes + SCALE_BYTES * self.num_scales


@dataclass(frozen=True)
class Book:
    """A codebook as raw bits, in the order in which indices count."""

    dtype: DType
    bits: tuple[int, ...]

    @cached_property
    def zero(self) -> int:
        """The index of the value whose bits are all 0, or -1."""
        return self.bits.index(0) if 0 in self.bits else -1


@dataclass(frozen=True)
class Header:
    """Everything in a file apart from the elements of its tensors."""

    books: tuple[Book, ...] = ()
    entries: tuple[Entry, ...] = ()
    aliases: tuple[tuple[str, int], ...] = field(default=())  # name, number of the entry
    book_bytes: float = 0.0  # what the codebooks take up in the stream, once coded
    version: int = 1


def head_of(header: Header, *, indexed: bool) -> bytes:
    """The first bytes of a file."""
    return MAGIC + bytes([header.version | (IS_INDEXED if indexed else 0)])


def version_of(entries: Iterable[Entry]) -> int:
    """The first version that can hold these tensors."""
    return 2 if any(entry.run for entry in entries) else 1


def code_header(coder: Coder, header: Header, *, indexed: bool, file_bytes: int = 0) -> Header:
    """Write a header, or read one.

    A reader uses only the version of `header`; `file_bytes` limits what the file may claim.
    """
    num_books = coder.number(len(header.books), "books")
    num_entries = coder.number(len(header.entries), "entries")
    num_aliases = coder.number(len(header.aliases), "aliases")
    claims = _Claims(coder.writing, file_bytes)
    if not claims.fits(num_books + num_entries + num_aliases, PARTS, PARTS_PER_BYTE):
        raise FormatError(
            f"a file of {file_bytes:,} bytes cannot hold {num_entries:,} tensors, as it claims"
        )
    books, before = [], coder.spent()
    for i in range(num_books):
        books.append(
            _code_book(coder, header.books[i] if coder.writing else Book(DTYPES["F32"], ()), claims)
        )
        coder.check()
    book_bytes = (coder.spent() - before) / 64
    entries, seen, names = [], _Seen(header.version), set[str]()
    blank = Entry("", (), -1, DTYPES["F32"])
    for i in range(num_entries):
        entry = _code_entry(
            coder, header.entries[i] if coder.writing else blank, seen, books, indexed
        )
        entries.append(entry)
        seen.add(entry)
        claims.add_name(entry.name, names)
        coder.check()
    aliases = []
    for i in range(num_aliases):
        name, owner = header.aliases[i] if coder.writing else ("", 0)
        name = coder.text(name, MAX_NAME_BYTES)
        if not coder.writing:
            claims.add_name(name, names)
        aliases.append((name, coder.uniform(owner, num_entries)))
        if not num_entries:
            raise FormatError(f"{name!r} is an alias in a file without tensors")
        coder.check()
    return Header(tuple(books), tuple(entries), tuple(aliases), book_bytes, header.version)


def check_claims(header: Header, file_bytes: int) -> None:
    """Refuse to write what no reader would accept: see docs/format.md, "Limits"."""
    claims, names = _Claims(False, file_bytes), set[str]()
    parts = len(header.books) + len(header.entries) + len(header.aliases)
    for book in header.books:
        claims.add_values(len(book.bits))
    for name in (*(entry.name for entry in header.entries), *(name for name, _ in header.aliases)):
        claims.add_name(name, names)
    if not claims.fits(parts, PARTS, PARTS_PER_BYTE):
        raise FormatError(f"a file of {file_bytes:,} bytes cannot hold {parts:,} tensors")


@dataclass
class _Claims:
    """What a header has claimed so far, against the size of its file."""

    writing: bool
    file_bytes: int
    values: int = 0
    characters: int = 0

    def fits(self, number: int, free: int, per_byte: int) -> bool:
        return self.writing or number <= free + per_byte * self.file_bytes

    def add_values(self, number: int) -> None:
        self.values += number
        if not self.fits(self.values, VALUES, VALUES_PER_BYTE):
            raise FormatError(f"its codebooks claim {self.values:,} values, too many for its size")

    def add_name(self, name: str, names: set[str]) -> None:
        if name in names:
            raise FormatError(f"two of its tensors have the same name, {name!r}")
        names.add(name)
        self.characters += len(name)
        if not self.fits(self.characters, CHARACTERS, CHARACTERS_PER_BYTE):
            raise FormatError(
                f"its names claim {self.characters:,} characters, too many for its size"
            )


@dataclass
class _Seen:
    """What earlier tensors have that the next one may share."""

    version: int
    by_ending: dict[str, Entry] = field(default_factory=dict)
    outputs: int = -1  # of the last layer
    codebook: int = -1  # of the last tied tensor
    run: int = 0  # of the last tensor with scales

    def add(self, entry: Entry) -> None:
        self.by_ending[ending_of(entry.name)] = entry
        self.outputs = entry.shape[0] if len(entry.shape) > 1 else self.outputs
        self.codebook = entry.codebook if entry.codebook >= 0 else self.codebook
        self.run = entry.run or self.run


def ending_of(name: str) -> str:
    """What tensors of the same kind have in common: "weight", "bias", "running_mean"."""
    return name.rpartition(".")[2]


def _code_entry(coder: Coder, entry: Entry, seen: _Seen, books: list[Book], indexed: bool) -> Entry:
    name = coder.text(entry.name, MAX_NAME_BYTES)
    like = seen.by_ending.get(ending_of(name))
    kind = sum(ending_of(name).encode("utf-8", "surrogatepass")) % 64
    kept = coder.flag(entry.codebook < 0, "kept", kind, base=8000)
    trainable, dtype, codebook, scaled = True, entry.dtype, -1, False
    if kept:
        trainable = coder.flag(entry.trainable, "trainable", kind)
        if (
            like
            and like.codebook < 0
            and coder.flag(dtype == like.dtype, "same type", kind, base=50000)
        ):
            dtype = like.dtype
        else:
            dtype = DTYPES[TAGS[coder.uniform(TAGS.index(dtype.tag), len(TAGS))]]
    else:
        last = seen.codebook
        if not books:
            raise FormatError(f"{name!r} has a codebook, but the file has none")
        # Either the codebook of the tensor before, or the one after it, or any.
        if coder.flag(entry.codebook == last, "same codebook", base=50000):
            codebook = last
        elif coder.flag(entry.codebook == last + 1, "next codebook", base=50000):
            codebook = last + 1
        else:
            codebook = coder.uniform(entry.codebook, len(books))
        if not 0 <= codebook < len(books):
            raise FormatError(f"{name!r} uses codebook {codebook}; the file has {len(books)}")
        integers = books[codebook].dtype
        if seen.version > 1 and integers.tag in INTEGERS:
            scaled = coder.flag(entry.run > 0, "scaled", base=60000)
        dtype = _code_scaled_type(coder, dtype) if scaled else integers
    shape = _code_shape(coder, entry.shape, seen.outputs, like)
    result = Entry(name, shape, codebook, dtype, trainable)
    if scaled:
        result = _code_scales(coder, result, entry, seen.run)
    # An empty tensor too must be small in its other dimensions, or numpy cannot make it.
    if math.prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise FormatError(f"{name!r} claims the shape {shape}, which is beyond any limit")
    if not indexed:
        return result
    method = int(coder.flag(entry.method, "method"))
    stream_bytes = coder.number(entry.stream_bytes, "bytes")
    return replace(
        result,
        method=method,
        stream_bytes=stream_bytes,
        checksum=coder.uniform(entry.checksum, 1 << 32),
    )


def _code_scaled_type(coder: Coder, dtype: DType) -> DType:
    number = SCALED.index(dtype.tag) if coder.writing else 0
    return DTYPES[SCALED[coder.uniform(number, len(SCALED))]]


def _code_scales(coder: Coder, result: Entry, entry: Entry, last_run: int) -> Entry:
    """How scales are laid out: elements per run, and how many scales if not one for each run."""
    if last_run and coder.flag(entry.run == last_run, "same run"):
        run = last_run
    else:
        run = 1 + coder.number(entry.run - 1, "run")
    every = -(-result.num_elements // run)
    if coder.flag(entry.num_scales == every, "every scale", base=60000):
        return replace(result, run=run, num_scales=every)
    num_scales = coder.number(entry.num_scales, "scales")
    if not 1 <= num_scales < every:
        raise FormatError(
            f"{result.name!r} claims {num_scales:,} scales; it has room for 1 to {every:,}"
        )
    return replace(result, run=run, num_scales=num_scales)


def _code_shape(
    coder: Coder, shape: tuple[int, ...], outputs: int, like: Entry | None
) -> tuple[int, ...]:
    rank = len(shape)
    if not (like and coder.flag(rank == len(like.shape), "same rank", base=55000)):
        rank = coder.number(rank, "rank")
        if rank > MAX_DIMENSIONS:
            raise FormatError(f"a tensor has {rank} dimensions; {MAX_DIMENSIONS} is the limit")
    else:
        rank = len(like.shape)
    result: list[int] = []
    for i in range(rank):
        size = shape[i] if coder.writing else 0
        # Three guesses: the outputs of the last layer, the same size of the last tensor with this
        # ending, and the size before this one.
        guesses = (
            outputs,
            like.shape[i] if like and i < len(like.shape) else -1,
            result[-1] if i else -1,
        )
        known = [-1]
        for number, guess in enumerate(guesses):
            if guess in known:
                continue
            if coder.flag(size == guess, f"guess {number}", 8 * min(rank, 4) + min(i, 3)):
                result.append(guess)
                break
            known.append(guess)
        else:
            result.append(coder.number(size, "size"))
    return tuple(result)


# ---- codebooks --------------------------------------------------------------------------------


def ordered(bits: int, dtype: DType) -> tuple[bool, int]:
    """A value's raw bits as (is negative, magnitude); unsigned for types without a sign bit."""
    sign = 8 * dtype.item_bytes - 1
    if dtype.tag in EXPONENT_BITS:
        return bool(bits >> sign), bits & ((1 << sign) - 1)
    return False, bits ^ _flip(dtype)


def raw(negative: bool, magnitude: int, dtype: DType) -> int:
    """The inverse of `ordered`."""
    return magnitude ^ _flip(dtype) | negative << 8 * dtype.item_bytes - 1


def _flip(dtype: DType) -> int:
    """The bit that is inverted, so that signed integers ascend like their bits."""
    return 1 << 8 * dtype.item_bytes - 1 if dtype.tag in ("I8", "I16", "I32", "I64") else 0


def sort_key(bits: int, dtype: DType) -> int:
    """A key that sorts the values of a codebook in ascending order."""
    negative, magnitude = ordered(bits, dtype)
    return -magnitude - 1 if negative else magnitude


def _code_book(coder: Coder, book: Book, claims: _Claims | None = None) -> Book:
    number = coder.number(TAGS.index(book.dtype.tag), "type")
    if number >= len(TAGS):
        raise FormatError(f"element type {number} is unknown; a newer reefknot may read this file")
    dtype = DTYPES[TAGS[number]]
    count = coder.number(len(book.bits), "values")
    if count > MAX_CODEBOOK:
        raise FormatError(f"a codebook claims {count:,} values; {MAX_CODEBOOK:,} is the limit")
    if claims:
        claims.add_values(count)
    values = [ordered(bits, dtype) for bits in book.bits] if coder.writing else []
    below = [magnitude for negative, magnitude in reversed(values) if negative]
    above = [magnitude for negative, magnitude in values if not negative and magnitude]
    has_zero = bool(count and coder.flag(len(below) + len(above) < count, "zero", base=60000))
    num_below = coder.uniform(len(below), count - has_zero + 1)
    num_above = count - has_zero - num_below
    if num_below and dtype.tag not in EXPONENT_BITS:
        raise FormatError(f"a codebook of {dtype.tag} has a negative part, which only floats have")
    low, high, shift = 0, (1 << (8 * dtype.item_bytes)) - 1, 0
    if dtype.tag in EXPONENT_BITS:
        fraction = 8 * dtype.item_bytes - 1 - EXPONENT_BITS[dtype.tag]
        one = (1 << (EXPONENT_BITS[dtype.tag] - 1)) - 2  # the exponent of 0.5 to 1
        tops = [magnitude >> fraction for magnitude in below + above] or [one]
        most = one - _unfold(coder.number(_fold(one - max(tops)), "exponent"))
        least = most - coder.number(max(tops) - min(tops), "exponents")
        if least < 0 or most >> EXPONENT_BITS[dtype.tag]:
            raise FormatError("a codebook has impossible exponents; fetch the file again")
        zeros = min((_trailing_zeros(m, fraction) for m in below + above), default=fraction)
        shift = fraction - coder.uniform(fraction - zeros, fraction + 1)
        low, high = (least << fraction) >> shift, (((most + 1) << fraction) - 1) >> shift
    below = coder.ascending([m >> shift for m in below], num_below, low, high)
    above = coder.ascending([m >> shift for m in above], num_above, low, high)
    bits = [raw(True, m << shift, dtype) for m in reversed(below)]
    bits += [raw(False, m << shift, dtype) for m in [0] * has_zero + above]
    return Book(dtype, tuple(bits))


def _trailing_zeros(magnitude: int, limit: int) -> int:
    return min((magnitude & -magnitude).bit_length() - 1, limit) if magnitude else limit


def _fold(number: int) -> int:
    return 2 * number if number >= 0 else -2 * number - 1


def _unfold(number: int) -> int:
    return number >> 1 if not number & 1 else -(number + 1 >> 1)
