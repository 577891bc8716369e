import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reef_examples import EXAMPLES, codebook

from reefknot.dtypes import DTYPES
from reefknot.format import decode, encode, open_state, save
from reefknot.scales import Scales
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor

MAX = 1 << 28


@pytest.mark.parametrize("effort", ["auto", "tight", "fast"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_bit_comes_back(example, effort):
    state = EXAMPLES[example]()
    back = decode(encode(state, effort), max_bytes=MAX)
    assert back == state
    assert [t.name for t in back.tensors] == [t.name for t in state.tensors]
    assert dict(back.aliases) == dict(state.aliases)
    assert [len(b) for b in back.codebooks] == [len(b) for b in state.codebooks]
    kept = [(t.name, t.trainable) for t in state.tensors if isinstance(t, KeptTensor)]
    assert kept == [(t.name, t.trainable) for t in back.tensors if isinstance(t, KeptTensor)]
    assert back.density == state.density


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_same_state_gives_the_same_bytes(example):
    state = EXAMPLES[example]()
    data = encode(state)
    assert encode(EXAMPLES[example]()) == data
    assert encode(decode(data, max_bytes=MAX)) == data  # the order of a codebook does not matter


@settings(max_examples=60, deadline=None)
@given(
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7),
    st.integers(1, 20), st.integers(0, 2**32), st.floats(0, 1), st.sampled_from(["tight", "fast"]),
)  # fmt: skip
def test_any_indices_of_any_shape(shape, size, seed, density, effort):
    rng = np.random.default_rng(seed)
    book = Codebook(DTYPES["F32"], np.arange(size, dtype="<f4") - size // 3)
    indices = np.where(rng.random(shape) < density, rng.integers(0, size, shape), size // 3)
    state = TiedState((book,), (TiedTensor("a", 0, indices), TiedTensor("b", 0, indices.T)))
    assert decode(encode(state, effort), max_bytes=MAX) == state


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(DTYPES)), st.data(), st.sampled_from(["tight", "fast"]))
def test_any_kept_bits(tag, data, effort):
    dtype = DTYPES[tag]
    raw = data.draw(st.binary(max_size=40))
    raw = raw[: len(raw) // dtype.item_bytes * dtype.item_bytes]
    raw = bytes(byte & 1 for byte in raw) if tag == "BOOL" else raw
    state = TiedState((), (KeptTensor("k", dtype, np.frombuffer(raw, dtype.storage)),))
    assert decode(encode(state, effort), max_bytes=MAX) == state


@settings(max_examples=60, deadline=None)
@given(
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7), st.data(),
    st.sampled_from(["F32", "F16", "BF16"]), st.sampled_from(["tight", "fast"]),
)  # fmt: skip
def test_any_scales_of_any_shape(shape, data, tag, effort):
    size = int(np.prod(shape))
    run = data.draw(st.integers(1, max(size, 1) + 2))
    most = -(-size // run)
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
    scales = data.draw(st.lists(finite, min_size=min(most, 1), max_size=most))
    integers = data.draw(
        st.sampled_from([("I8", [-128, -1, 0, 1, 127]), ("I16", [-32768, 0, 300])])
    )
    book = Codebook(DTYPES[integers[0]], np.array(integers[1], DTYPES[integers[0]].storage))
    indices = data.draw(hnp.arrays(np.uint8, shape, elements=st.integers(0, len(book) - 1)))
    made = Scales(DTYPES[tag], np.array(scales, "<f4"), run)
    state = TiedState((book,), (TiedTensor("a", 0, indices, made), TiedTensor("b", 0, indices)))
    written = encode(state, effort)
    assert written[3] & 0x7F == 2
    back = decode(written, max_bytes=MAX)
    assert back == state
    assert back.tensors[0].scales.values.tobytes() == made.values.tobytes()
    assert back.tensors[0].scales.run == run
    assert back.tensors[1].scales is None
    assert encode(back, effort) == written


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=30), unique=True, max_size=12))
def test_any_names(names):
    state = TiedState((), tuple(KeptTensor(n, DTYPES["U8"], np.zeros(1, "u1")) for n in names))
    assert [t.name for t in decode(encode(state), max_bytes=MAX).tensors] == names


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["F32", "F16", "BF16", "F64", "F8_E4M3", "I8", "U16", "C64"]), st.data())
def test_any_codebook(tag, data):
    dtype = DTYPES[tag]
    width = 8 * dtype.item_bytes
    bits = data.draw(
        st.lists(st.integers(0, (1 << width) - 1), unique=True, min_size=1, max_size=40)
    )
    bits = [b for b in bits if b != 1 << (width - 1)] or [0]
    values = np.array(bits, f"<u{dtype.item_bytes}").view(dtype.storage)
    if tag == "C64":
        with np.errstate(invalid="ignore"):  # signalling NaNs
            values = values[values != 0]
    state = TiedState((Codebook(dtype, values),), (TiedTensor("t", 0, np.arange(len(values))),))
    assert decode(encode(state), max_bytes=MAX) == state


@pytest.mark.parametrize("size", [1, 2, 3, 63, 64, 65, 129, 130, 257, 5000, 65_536])
@pytest.mark.parametrize("effort", ["tight", "fast"])
def test_codebooks_of_any_size(size, effort):
    rng = np.random.default_rng(size)
    book = Codebook(DTYPES["F32"], (np.arange(size) - size // 2).astype("<f4"))
    state = TiedState((book,), (TiedTensor("w", 0, rng.integers(0, size, (40, 50))),))
    assert decode(encode(state, effort), max_bytes=MAX) == state


def test_codebooks_without_zero_and_tensors_without_their_zero():
    book = Codebook(DTYPES["F32"], np.array([3, 1, 2], "<f4"))
    other = codebook(5)
    full = np.full((9, 9), (int(np.argmax(other.zeros)) + 1) % 5)
    state = TiedState(
        (book, other), (TiedTensor("a", 0, np.eye(9, dtype=int)), TiedTensor("b", 1, full))
    )
    assert decode(encode(state), max_bytes=MAX) == state


def test_one_tensor_of_an_indexed_file_is_read_alone(tmp_path):
    state = EXAMPLES["convolutional"]()
    save(state, tmp_path / "x.reef", effort="fast")
    part = open_state(tmp_path / "x.reef", names=["tied.weight"])
    assert [t.name for t in part.tensors] == ["fc.weight"]
    assert dict(part.aliases) == {"tied.weight": "fc.weight"}
    data = bytearray((tmp_path / "x.reef").read_bytes())
    data[6] ^= 1  # inside the first tensor, which nobody asked for
    (tmp_path / "x.reef").write_bytes(data)
    assert open_state(tmp_path / "x.reef", names=["fc.weight"]).tensors[0].name == "fc.weight"


def test_the_first_tensors_of_a_solid_file_are_read_alone(tmp_path):
    save(EXAMPLES["convolutional"](), tmp_path / "x.reef")
    part = open_state(tmp_path / "x.reef", names=["bn1.running_mean"])
    assert [t.name for t in part.tensors] == ["bn1.running_mean"]
