"""Files that lie: one named error for each promise of the specification, and a fuzzer."""

import random
import resource
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from reef_examples import EXAMPLES

from format.mutate import mutated, repaired
from format.test_differential import by_the_library, by_the_reference
from reefknot.codec import static
from reefknot.codec.coder import Coder
from reefknot.codec.kernels.names import code_text
from reefknot.codec.kernels.numbers import code_flag, code_number, code_numbers, code_uniform
from reefknot.codec.kernels.planes import code_planes
from reefknot.codec.kernels.rans import rans_decode
from reefknot.codec.kernels.tied import elements_loop, maps_loop
from reefknot.dtypes import DTYPES
from reefknot.errors import FormatError
from reefknot.format import decode, encode, layout
from reefknot.format.content import SolidContent
from reefknot.state import KeptTensor, TiedState, TiedTensor

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.reef"))
MAX = 64 << 20


def solid(header, *, content=lambda coder: None):
    coder = Coder()
    layout.code_header(coder, header, indexed=False)
    content(coder)
    data = layout.head_of(header, indexed=False) + coder.finish()
    return data + zlib.crc32(data).to_bytes(4, "little")


def entry(name="w", shape=(2, 2), codebook=-1, tag="F32", **scales):
    return layout.Entry(name, shape, codebook, DTYPES[tag], **scales)


def refused(data, words, max_bytes=MAX):
    with pytest.raises(FormatError, match=words):
        decode(data, source="x.reef", max_bytes=max_bytes)


def refused_both_ways(header, words, monkeypatch=None, **limits):
    """The writer keeps the same promises as the reader, so its limits are lifted to write a lie."""
    with pytest.raises(FormatError, match=words):
        solid(header)
    if monkeypatch:
        with monkeypatch.context() as lifted:
            for name, value in limits.items():
                lifted.setattr(layout, name, value)
            data = solid(header)
        refused(data, words)


def test_other_files_are_refused():
    refused(b"", "not a .reef file")
    refused(b"PK\3\4" + bytes(100), "not a .reef file")
    refused(b"REEF\0" + bytes(100), "version 0")
    refused(b"REF\3" + bytes(100), "version 03 is unknown")
    refused(b"REF\x80" + bytes(100), "version 80 is unknown")
    refused(b"REF\1abc", "too few")
    refused(b"REF\x81abcdefg", "too few")


def test_a_promise_of_a_million_million_zeros_is_weighed_before_it_is_kept():
    refused(solid(layout.Header((), (entry(shape=(10**6, 10**6)),))), "Raise max_bytes")
    refused(encode(EXAMPLES["lenet"]()), "Raise max_bytes", max_bytes=1000)


def test_shapes_beyond_any_limit_are_refused(monkeypatch):
    for shape in ((1 << 47, 0), (1 << 30, 1 << 30), (1 << 40, 0, 1 << 40)):
        header = layout.Header((), (entry(shape=shape),))
        refused_both_ways(header, "beyond any limit", monkeypatch, MAX_ELEMENTS=1 << 90)
    header = layout.Header((), (entry(shape=(1,) * 65),))
    refused_both_ways(header, "65 dimensions", monkeypatch, MAX_DIMENSIONS=100)


def test_a_codebook_that_is_not_there():
    none = layout.Book(DTYPES["F32"], ())
    refused_both_ways(layout.Header((), (entry(codebook=0),)), "the file has none")
    refused(solid(layout.Header((none,), (entry(codebook=0),))), "codebook is empty")


def test_two_tensors_of_one_name():
    refused_both_ways(layout.Header((), (entry(shape=(0,)), entry(shape=(0,)))), "same name")
    refused(solid(layout.Header((), (entry(shape=(0,)),), (("w", 0),))), "same name")
    refused(solid(layout.Header((), (entry(shape=(0,)),), (("a", 0), ("a", 0)))), "same name")


def test_more_tensors_than_the_file_has_bits_for():
    coder = Coder()
    for number, kind in ((0, "books"), (10**9, "entries"), (0, "aliases")):
        coder.number(number, kind)
    data = layout.MAGIC + bytes([layout.SOLID]) + coder.finish()
    refused(data + zlib.crc32(data).to_bytes(4, "little"), "cannot hold 1,000,000,000 tensors")


def test_a_stream_that_ends_early_or_goes_on():
    refused(solid(layout.Header((), (entry(shape=(100, 100)),))), "ends before its content")
    data = encode(EXAMPLES["only-kept"]())[:-4] + bytes(8)
    refused(data + zlib.crc32(data).to_bytes(4, "little"), "left over")


def test_a_grid_that_does_not_fit():
    book = layout.Book(DTYPES["F32"], (0, 0x3F800000))

    def content(coder):
        coder.flag(1, "pivot is zero", base=60000)
        coder.flag(0, "by column")
        coder.flag(0, "maps", base=60000)
        for grid in range(2):
            coder.flag(1, "grid", grid + 16)
        coder.flag(0, "grid", 18)

    header = layout.Header((book,), (entry(shape=(2, 7), codebook=0),))
    refused(solid(header, content=content), "cannot lie on grid 2")


INTEGERS = layout.Book(DTYPES["I8"], (0xFF, 0, 1))


def scaled(shape, num_scales, run, book=INTEGERS, tag="F32"):
    tensor = entry(shape=shape, codebook=0, tag=tag, run=run, num_scales=num_scales)
    return layout.Header((book,), (tensor,), version=2)


def indices_and(scales):
    """The content of a tensor of ones with these scales, of two by two elements."""

    def content(coder):
        solid = SolidContent()
        solid.code_tied(coder, (2, 2), np.full((2, 2), 2), 0, INTEGERS)
        solid.code_scales(coder, np.array(scales, "<f4"))

    return content


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_scales_that_are_not_finite(bad):
    data = solid(scaled((2, 2), 2, 2), content=indices_and([1.0, bad]))
    refused(data, "x.reef has a scale that is NaN or infinite")
    assert by_the_reference(data) is None


@pytest.mark.parametrize("odd", [0.0, -0.0, 1e-45, -1e-40, 3.4e38])
def test_scales_that_are_odd_but_numbers(odd):
    data = solid(scaled((2, 2), 2, 2), content=indices_and([1.0, odd]))
    (tensor,) = (state := decode(data, max_bytes=MAX)).tensors
    assert state.values(tensor).tobytes() == np.array([1, 1, odd, odd], "<f4").tobytes()
    assert by_the_library(data) == by_the_reference(data)


@pytest.mark.parametrize("number", [0, 3, 1 << 40])
def test_scales_that_do_not_fit(number):
    with pytest.raises(FormatError, match="it has room for 1 to 2"):
        solid(scaled((2, 2), number, 2))
    coder = Coder()
    with pytest.raises(FormatError):  # the same, written as far as a reader needs it
        layout.code_header(coder, scaled((2, 2), number, 2), indexed=False)
    data = layout.head_of(scaled((2, 2), 1, 2), indexed=False) + coder.finish()
    data += zlib.crc32(data).to_bytes(4, "little")
    refused(data, "scales; it has room for 1 to 2")
    assert by_the_reference(data) is None


def test_only_integers_of_version_2_have_scales():
    book = layout.Book(DTYPES["F32"], (0, 0x3F800000))
    for header in (scaled((2, 2), 2, 2, book), layout.replace(scaled((2, 2), 2, 2), version=1)):
        coder = Coder()
        found = layout.code_header(coder, header, indexed=False)
        assert found.entries[0].run == 0  # there is no place for them


def test_promises_of_scales_are_weighed_before_they_are_kept():
    refused(solid(scaled((10**6, 10**6), 10**12, 1)), "Raise max_bytes")
    data = solid(scaled((2, 2), 2, 2), content=indices_and([1.0, 2.0]))
    assert decode(data, max_bytes=16 + 8).num_weights == 4
    refused(data, "take up 24 bytes; the limit is 23", max_bytes=23)
    assert by_the_reference(data, 24) is not None
    assert by_the_reference(data, 23) is None


@pytest.mark.parametrize("fill", [0x00, 0x55, 0xFF])
def test_small_files_with_many_scales_cannot_take_long(fill):
    header = scaled((5 << 20,), 5 << 20, 1, layout.Book(DTYPES["I8"], (1,)))
    data = filled(header, fill, lambda coder: coder.uniform(4, 5))
    assert timed(data, "claims more elements") < 2.0


@pytest.mark.parametrize("example", ["lenet", "convolutional", "scaled"])
@pytest.mark.parametrize("effort", ["auto", "fast"])
def test_truncated_at_every_byte(example, effort):
    data = encode(EXAMPLES[example](), effort)
    for size in range(len(data)):
        with pytest.raises(FormatError):
            decode(data[:size], max_bytes=MAX)


def _flips(data, bits):
    for bit in bits:
        wrong = bytearray(data)
        wrong[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(FormatError):
            decode(bytes(wrong), max_bytes=MAX)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_single_bit_flips_of_golden_files_are_found(path):
    data = path.read_bytes()
    _flips(data, range(0, 8 * len(data), 1 if len(data) < 300 else 149))


@pytest.mark.slow
@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_every_single_bit_flip_of_golden_files_is_found(path):
    data = path.read_bytes()
    _flips(data, range(8 * len(data)))


def compile_readers():
    """Compile the loops that read, so that this does not count as reading."""
    for index in (np.dtype(np.uint8), np.dtype(np.uint16)):
        for make in (maps_loop, elements_loop):
            assert make(index, False).machine_code
    for loop in (code_flag, code_number, code_numbers, code_uniform, code_text, code_planes):
        assert loop.machine_code
    assert rans_decode.machine_code


def fuzz(rounds, seed):
    """Mutations of golden files, half with repaired checksums; gives how many were valid."""
    compile_readers()
    rng, valid = random.Random(seed), 0
    originals = [path.read_bytes() for path in GOLDEN]
    states = [decode(data, max_bytes=MAX) for data in originals]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest = 0.0
    for number in range(rounds):
        which = rng.randrange(len(originals))
        repair = number % 2 == 1
        data = mutated(originals[which], rng)
        data = repaired(data) if repair else data
        start = time.process_time()
        try:
            state = decode(data, max_bytes=MAX)
        except FormatError as error:
            assert str(error)
        else:
            assert repair or data == originals[which] or state == states[which]
            valid += 1
        slowest = max(slowest, time.process_time() - start)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000, f"{grown:,} KB more memory"
    assert slowest < 1.0, f"{slowest:.2f} s for one file"
    return valid


def test_random_mutations_do_no_harm():
    assert fuzz(1500, seed=1) >= 0


# Its symbols leave over more words than the last chunk has symbols.
WORDS_LEFT_OVER = bytes.fromhex(
    "5245468136000000755a85e0e53ce9328e6a63d31a8b6723148a40a9d7a7b1aa9e75471ff3434620dc5e7c6d941f"
    "369b0b392b1aa7db6f7a5391e0abff73fde31f020038e71f02000119e20300d5676895f865274462a99973410a1f"
    "cf1b0d0e70f2404d727ee8e6fede1aa8a9e8abe66e205efd59bad5120b069b10f798a3fc40ab4d12e2f4aeff417f"
    "fd661c00000029b43153"
)


def test_words_that_no_symbol_takes_are_refused_in_chunks_too(monkeypatch):
    refused(WORDS_LEFT_OVER, "does not end where it should")
    monkeypatch.setattr(static, "CHUNK", 8)
    refused(WORDS_LEFT_OVER, "does not end where it should")


def test_one_error_says_what_and_where():
    with pytest.raises(
        FormatError, match=r"^models/a\.reef is damaged: its checksum .* fetch it again$"
    ):
        decode(encode(EXAMPLES["lenet"]())[:-1] + b"\0", source="models/a.reef", max_bytes=MAX)


def test_kept_bools_are_bools_whatever_the_stream_says():
    header = layout.Header((), (entry(shape=(4,), tag="BOOL"),))

    def content(coder):
        SolidContent().code_kept(coder, np.array([[7], [1], [0], [255]], np.uint8), "BOOL")

    state = decode(solid(header, content=content), max_bytes=MAX)
    assert state.tensors[0].data.view(np.uint8).tolist() == [1, 1, 0, 1]


def test_states_that_a_file_cannot_hold_are_refused_when_written():
    long = TiedState((), (KeptTensor("n" * 70_000, DTYPES["U8"], np.zeros(1, "u1")),))
    with pytest.raises(Exception, match="too long"):
        encode(long)
    assert isinstance(EXAMPLES["lenet"]().tensors[0], TiedTensor)


def timed(data, words=""):
    """Seconds to decode what a small file claims, or to refuse it with these words."""
    start = time.process_time()
    try:
        decode(data, max_bytes=MAX)
    except FormatError as error:
        assert words in str(error), error
    return time.process_time() - start


def filled(header, fill, flags=lambda coder: None):
    """A file whose tensors are read from the same byte over and over."""
    coder = Coder()
    layout.code_header(coder, header, indexed=False)
    flags(coder)
    data = layout.head_of(header, indexed=False) + coder.finish() + bytes([fill]) * 2000
    return data + zlib.crc32(data).to_bytes(4, "little")


@pytest.mark.parametrize("fill", [0x00, 0x55, 0xFF])
@pytest.mark.parametrize("shape", [(60 << 20,), (6144, 10240)])
def test_small_files_cannot_take_long(fill, shape):
    for tag in ("U8", "BOOL"):
        header = layout.Header((), (entry(shape=shape, tag=tag),))
        data = filled(header, fill, lambda coder: coder.uniform(1, 2))
        assert timed(data, "claims more elements") < 2.0

    def flags(coder):
        coder.flag(1, "pivot is zero", base=60000)
        if len(shape) > 1:
            coder.flag(0, "by column")
            coder.flag(0, "maps", base=60000)
        coder.flag(0, "grid", 8 * len(shape))

    for values in (2, 256):
        book = layout.Book(DTYPES["U8"], tuple(range(values)))
        header = layout.Header((book,), (entry(shape=shape, codebook=0, tag="U8"),))
        assert timed(filled(header, fill, flags)) < 3.0


def test_headers_cannot_claim_much_more_than_they_hold():
    full = layout.Book(DTYPES["U16"], tuple(range(65536)))
    refused(solid(layout.Header((full,) * 3, ())), "codebooks claim 131,072 values")
    long = tuple(entry(name="n" * (60_000 - i), shape=(0,)) for i in range(30))
    refused(solid(layout.Header((), long)), "names claim")
    with pytest.raises(FormatError, match="codebooks claim"):
        layout.check_claims(layout.Header((full,) * 20, ()), 100)


def test_what_is_too_regular_for_a_tight_stream_is_stored_fast():
    zeros = KeptTensor("zeros", DTYPES["F32"], np.zeros((600, 1000), "<f4"))
    small = KeptTensor("small", DTYPES["F32"], np.linspace(0, 1, 50, dtype="<f4"))
    state = TiedState((), (zeros, small))
    data = encode(state)
    assert data[3] == layout.INDEXED and len(data) < 400
    assert decode(data, max_bytes=MAX) == state
