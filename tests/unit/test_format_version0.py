"""Version 0 of the file: exact round trips, and one clear error for anything damaged."""

import json
import lzma
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

import reefknot
from reefknot.dtypes import DTYPES, DType, is_zero
from reefknot.errors import FormatError, ReefknotError
from reefknot.format import open_state
from reefknot.format.version0 import FILTERS, MAGIC, decode, encode
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor

F32 = DTYPES["F32"]
MIB = 1 << 20
HEAD = len(MAGIC) + 4
# Each round trip sets LZMA up for its largest dictionary, some 20 ms whatever the size.
FEW = settings(max_examples=25, deadline=None)


# -- random states --------------------------------------------------------------------------

shapes = nps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def raw_arrays(draw: st.DrawFn, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape, dtype=int)) * dtype.item_bytes
    bits = draw(st.binary(min_size=count, max_size=count))
    if dtype.tag == "BOOL":
        bits = bytes(byte & 1 for byte in bits)
    return np.frombuffer(bits, dtype.storage).reshape(shape)


@st.composite
def codebooks(draw: st.DrawFn) -> Codebook:
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    values = draw(raw_arrays(dtype, (draw(st.integers(0, 6)),)))
    bits = values.view(f"u{dtype.item_bytes}").copy()
    bits[is_zero(values, dtype)] = 0  # zero is +0.0 in a codebook
    return Codebook(dtype, np.unique(bits).view(dtype.storage))


@st.composite
def states(draw: st.DrawFn) -> TiedState:
    books = tuple(draw(st.lists(codebooks(), max_size=3)))
    names = draw(st.lists(st.text(st.characters(codec="utf-8")), unique=True, max_size=6))
    tensors: list[TiedTensor | KeptTensor] = []
    aliases = {}
    for name in names:
        if tensors and draw(st.integers(0, 4)) == 0:
            aliases[name] = draw(st.sampled_from(tensors)).name
        elif books and draw(st.booleans()):
            number = draw(st.integers(0, len(books) - 1))
            size = len(books[number])
            shape = draw(shapes) if size else (0,)
            indices = draw(nps.arrays(np.int64, shape, elements=st.integers(0, max(size - 1, 0))))
            tensors.append(TiedTensor(name, number, indices))
        else:
            dtype = draw(st.sampled_from(list(DTYPES.values())))
            data = draw(raw_arrays(dtype, draw(shapes)))
            tensors.append(KeptTensor(name, dtype, data, draw(st.booleans())))
    return TiedState(books, tuple(tensors), aliases)


def small_state() -> TiedState:
    return TiedState(
        (Codebook(F32, np.array([0.0, -1.5], "<f4")),),
        (
            TiedTensor("w", 0, np.array([[0, 1], [1, 1]])),
            KeptTensor("n", DTYPES["I64"], np.array(3, "<i8"), trainable=False),
        ),
        {"v": "w"},
    )


def packed(body: bytes) -> bytes:
    """A file with this body and a checksum that fits it."""
    content = lzma.compress(body, format=lzma.FORMAT_RAW, filters=FILTERS)
    return MAGIC + zlib.crc32(content).to_bytes(4, "little") + content


def unpacked(data: bytes) -> bytes:
    return lzma.decompress(data[HEAD:], format=lzma.FORMAT_RAW, filters=FILTERS)


def with_table(table: object, arrays: bytes = b"") -> bytes:
    text = json.dumps(table).encode()
    return packed(len(text).to_bytes(4, "little") + text + arrays)


# -- round trips ----------------------------------------------------------------------------


@FEW
@given(states())
def test_a_state_comes_back_bit_for_bit_with_its_structure(state: TiedState) -> None:
    data = encode(state)
    back = decode(data, max_bytes=MIB)
    assert back == state
    assert back.aliases == state.aliases
    assert [type(tensor) for tensor in back.tensors] == [type(tensor) for tensor in state.tensors]
    assert [tensor.name for tensor in back.tensors] == [tensor.name for tensor in state.tensors]
    assert back.density == state.density
    assert back.num_clusters == state.num_clusters
    assert encode(back) == data


def test_the_same_state_gives_the_same_bytes() -> None:
    assert encode(small_state()) == encode(small_state())


def test_an_alias_is_stored_once() -> None:
    data = np.random.default_rng(0).integers(0, 256, 4000, np.uint8).view("<f4")
    alone = TiedState((), (KeptTensor("w", F32, data),))
    shared = TiedState((), (KeptTensor("w", F32, data),), {"v": "w"})
    assert len(encode(shared)) < len(encode(alone)) + 50


def test_a_saved_file_opens_to_the_same_state(tmp_path: Path) -> None:
    size = reefknot.save(small_state(), tmp_path / "a.reef")
    assert size == (tmp_path / "a.reef").stat().st_size
    assert open_state(tmp_path / "a.reef") == small_state()


def test_a_file_that_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ReefknotError, match=r"no\.reef could not be read: No such file"):
        open_state(tmp_path / "no.reef")


# -- damage ---------------------------------------------------------------------------------


def test_a_file_cut_off_anywhere_is_refused() -> None:
    data = encode(small_state())
    for length in range(len(data)):
        with pytest.raises(FormatError):
            decode(data[:length], max_bytes=MIB)


def test_a_file_with_any_one_bit_flipped_is_refused() -> None:
    data = encode(small_state())
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            decode(bytes(flipped), max_bytes=MIB)


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(FormatError, match="checksum"):
        decode(encode(small_state()) + b"\0", max_bytes=MIB)
    with pytest.raises(FormatError, match="3 bytes are left over"):
        decode(packed(unpacked(encode(small_state())) + b"\0\0\0"), max_bytes=MIB)


def test_another_file_is_refused_with_its_beginning() -> None:
    with pytest.raises(FormatError, match=r"x\.reef is not a \.reef file.*PK"):
        decode(b"PK\x03\x04 and so on", source="x.reef", max_bytes=MIB)


@FEW
@given(st.data())
def test_damage_behind_a_right_checksum_is_an_error_or_a_valid_state(data: st.DataObject) -> None:
    # The checksum would hide the parser: here it is made to fit after the damage.
    body = bytearray(unpacked(encode(small_state())))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        state = decode(packed(bytes(body)), max_bytes=MIB)
    except FormatError:
        return
    assert decode(encode(state), max_bytes=MIB) == state


@pytest.mark.parametrize(
    "table",
    [
        [],
        {},
        None,
        {"codebooks": [], "tensors": [], "aliases": ["a"]},
        {"codebooks": [], "tensors": [], "aliases": {"a": "b"}},
        {"codebooks": [["F99", 1]], "tensors": [], "aliases": {}},
        {"codebooks": [["F32", -1]], "tensors": [], "aliases": {}},
        {"codebooks": [["F32", 2**70]], "tensors": [], "aliases": {}},
        {"codebooks": [], "tensors": [["w", [1], 0]], "aliases": {}},
        {"codebooks": [], "tensors": [["w", [1], None]], "aliases": {}},
        {"codebooks": [], "tensors": [["w", [0, 2**70], "F32", True]], "aliases": {}},
        {"codebooks": [], "tensors": [["w", [0] * 99, "F32", True]], "aliases": {}},
        {"codebooks": [], "tensors": [["w", "", "F32", True]], "aliases": {}},
        {"codebooks": [], "tensors": [["w", [0], "F32"]], "aliases": {}},
        {"codebooks": [], "tensors": [[["w"], [0], "F32", True]], "aliases": {}},
    ],
)
def test_an_impossible_table_is_refused(table: object) -> None:
    with pytest.raises(FormatError):
        decode(with_table(table), max_bytes=MIB)


def test_a_table_of_deep_nesting_is_refused() -> None:
    text = b"[" * 200_000
    with pytest.raises(FormatError):
        decode(packed(len(text).to_bytes(4, "little") + text), max_bytes=MIB)


def test_a_tensor_whose_name_is_no_text_is_refused() -> None:
    table = {"codebooks": [], "tensors": [[5, [0], "F32", True]], "aliases": {}}
    with pytest.raises(FormatError):
        decode(with_table(table), max_bytes=MIB)


# -- limits ---------------------------------------------------------------------------------


def test_a_small_file_that_decodes_to_more_than_allowed_is_refused() -> None:
    state = TiedState((), (KeptTensor("w", F32, np.zeros(MIB, "<f4")),))
    data = encode(state)
    assert len(data) < 4_000
    with pytest.raises(FormatError, match="decodes to more than 1,048,576 bytes; raise max_bytes"):
        decode(data, max_bytes=MIB)
    assert decode(data, max_bytes=4 * MIB + 1_000) == state


def test_the_limit_counts_tensors_and_not_their_indices() -> None:
    # A million indices of one byte each are a million float32: 4 MB once loaded.
    codebook = Codebook(F32, np.array([0.0, 1.0], "<f4"))
    data = encode(TiedState((codebook,), (TiedTensor("w", 0, np.zeros(10**6, np.int64)),)))
    with pytest.raises(FormatError, match="raise max_bytes"):
        decode(data, max_bytes=2 * 10**6)
