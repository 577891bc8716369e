"""Integers and scales are found in what tools give back as floats, and nowhere else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reefknot import cluster
from reefknot.dtypes import DTYPES, from_numbers
from reefknot.errors import ReefknotError
from reefknot.format import decode, encode
from reefknot.packing.clustering import Plan, Settings, found_of
from reefknot.packing.low_bit import find, layouts
from reefknot.scales import Scales
from reefknot.state import Codebook, TiedState, TiedTensor

F32, BF16 = DTYPES["F32"], DTYPES["BF16"]


def bits(values):
    return np.ascontiguousarray(values).tobytes()


def weights(shape, seed=0):
    """Heavy tails, as trained weights have them."""
    return (np.random.default_rng(seed).standard_t(5, shape) * 0.02).astype("<f4")


def quantized(values, run, largest, kind="<f4"):
    """As tools do it: the largest magnitude of a run becomes the largest integer."""
    rows = values.reshape(-1, run)
    scales = (np.abs(rows).max(1, keepdims=True) / largest).astype(kind).astype("<f4")
    return (np.rint(rows / scales).astype("i1") * scales).reshape(values.shape)


def elements(low):
    return low.scales.elements(low.integers.reshape(-1)).reshape(low.integers.shape)


# -- what an element is -------------------------------------------------------------------------


def test_an_element_is_an_integer_times_its_scale():
    scales = Scales(F32, np.array([0.5, 3.0, -2.0], "<f4"), 2)
    found = scales.elements(np.array([1, -2, 3, 4, 5, 6, 7, 8], "i1"))
    assert found.tolist() == [0.5, -1.0, 9.0, 12.0, -10.0, -12.0, 3.5, 4.0]
    assert scales.elements(np.array([3, 4], "i1"), first=2).tolist() == [9.0, 12.0]


def test_zeros_have_the_sign_of_their_scale_and_one_integer_is_minus_zero():
    scales = Scales(F32, np.array([1.0, -1.0, 0.0, -0.0], "<f4"), 2)
    found = scales.elements(np.array([0, -32768, 0, -32768, 5, -5, 5, -5], "<i2"))
    assert np.signbit(found).tolist() == [False, True, True, False, False, True, True, False]
    assert not found.any()


def test_rounding_is_once_to_even_between_two():
    one = 1.0
    cases = {
        one + 2.0**-8: 0x3F80,  # between 1 and the next bfloat16: the even one
        one + 2.0**-8 + 2.0**-40: 0x3F81,  # above it, which float32 in between would forget
        one + 3 * 2.0**-8: 0x3F82,
        -(one + 2.0**-8): 0xBF80,
        2.0**-133: 0x0001,
        2.0**-134: 0x0000,
        1.5 * 2.0**-133: 0x0002,
        -(2.0**-134): 0x8000,
        (2 - 2.0**-8) * 2.0**127: 0x7F80,  # beyond the largest
        (2 - 2.0**-7) * 2.0**127: 0x7F7F,
    }
    assert from_numbers(np.array([*cases]), BF16).tolist() == [*cases.values()]
    halves = from_numbers(np.array([1 + 2.0**-11, 1 + 2.0**-11 + 2.0**-40, 1e9]), DTYPES["F16"])
    assert halves.tolist() == [1.0, 1 + 2.0**-10, np.inf]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scales_that_are_not_finite_are_refused(bad):
    with pytest.raises(ReefknotError, match="NaN or infinite"):
        Scales(F32, np.array([1.0, bad], "<f4"), 2)


@pytest.mark.parametrize(("number", "run"), [(0, 4), (4, 4), (1, 0)])
def test_scales_that_do_not_fit_are_refused(number, run):
    book = Codebook(DTYPES["I8"], np.arange(3, dtype="i1"))
    with pytest.raises(ReefknotError, match=r"scales for 12 elements|not 0"):
        scales = Scales(F32, np.ones(number, "<f4"), run)
        TiedState((book,), (TiedTensor("w", 0, np.zeros((3, 4), int), scales),))


def test_scales_of_a_codebook_without_integers_are_refused():
    book = Codebook(F32, np.arange(3, dtype="<f4"))
    tensor = TiedTensor("w", 0, np.zeros(4, int), Scales(F32, np.ones(1, "<f4"), 4))
    with pytest.raises(ReefknotError, match="a codebook of F32; integers were expected, I8 or I16"):
        TiedState((book,), (tensor,))


# -- finding them -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "largest", "kind"),
    [(128, 127, "<f4"), (32, 127, "<f2"), (32, 7, "<f2"), (64, 7, "<f4"), (16, 1, "<f4")],
)
@pytest.mark.parametrize("tag", ["F32", "F16", "BF16"])
def test_what_tools_quantize_is_found(run, largest, kind, tag):
    values = from_numbers(
        quantized(weights((40, 128)), run, largest, kind).astype("f8"), DTYPES[tag]
    )
    low = find(values, DTYPES[tag])
    assert low is not None
    assert bits(elements(low)) == bits(values)
    assert low.scales.run == run
    if tag == "F32":
        assert np.abs(low.integers.astype(int)).max() == largest
        if kind == "<f2":  # the scales of others' files have the bits that they had
            assert (low.scales.values == low.scales.values.astype("<f2")).all()


def test_scales_for_channels_of_any_axis_are_found():
    rows = quantized(weights((24, 60)), 60, 127)
    assert find(rows, F32).layout == (60, 24)
    assert find(rows.T, F32).layout == (1, 24)
    assert find(rows.reshape(24, 5, 4, 3), F32).layout == (60, 24)
    inner = np.ascontiguousarray(rows.reshape(24, 5, 12).swapaxes(0, 1))
    assert find(inner, F32).layout == (12, 24)


def test_zero_points_that_are_integers_only_shift_the_integers():
    rng = np.random.default_rng(0)
    integers = rng.integers(0, 256, (20, 64)) - rng.integers(0, 256, (20, 1))
    scales = np.abs(weights((20, 1), 1)) + np.float32(0.001)
    values = integers.astype("<f4") * scales
    low = find(values, F32)
    assert low.layout == (64, 20)
    assert bits(elements(low)) == bits(values)


def test_minus_zero_is_a_sign_of_the_scale_or_an_integer_of_its_own():
    values = quantized(weights((8, 64)), 64, 7) + np.float32(0)
    negative = values * np.float32(-1)
    low = find(negative, F32)
    assert (low.scales.values < 0).all()
    assert low.integers.min() >= -7
    assert bits(elements(low)) == bits(negative)
    mixed = np.rint(weights((8, 64)) / np.float32(0.02)).clip(-1, 1) * np.float32(0.02)
    low = find(mixed, F32)
    assert np.unique(low.integers).tolist() == [-32768, -1, 0, 1]
    assert bits(elements(low)) == bits(mixed)


def test_groups_of_zeros_and_large_and_tiny_scales():
    values = quantized(weights((6, 32)), 32, 127)
    values[1] = 0
    values[2] *= np.float32(2.0**100)
    values[3] = (values[3] / np.abs(values[3]).max() * 127).round() * np.float32(1e-43)
    low = find(values, F32)
    assert low.layout == (32, 6)
    assert low.scales.values[1] == 0
    assert bits(elements(low)) == bits(values)


@pytest.mark.parametrize("tag", ["F32", "BF16"])
@pytest.mark.parametrize("run", [16, 32, 96, 960])
def test_groups_of_any_length_are_found_a_part_at_a_time(monkeypatch, tag, run):
    values = from_numbers(quantized(weights((10, 96)), run, 3).astype("f8"), DTYPES[tag])
    whole = find(values, DTYPES[tag])
    monkeypatch.setattr("reefknot.packing.low_bit.CHUNK", 64)
    parts = find(values, DTYPES[tag])
    assert parts.layout == whole.layout == (run, 960 // run)
    assert bits(parts.integers) == bits(whole.integers)
    assert bits(elements(parts)) == bits(values)
    other = from_numbers(weights((10, 96)).astype("f8"), DTYPES[tag])
    assert find(other, DTYPES[tag]) is None


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1.2345e-5])
def test_one_element_that_does_not_fit_is_enough(odd):
    values = quantized(weights((8, 256)), 256, 7)
    values[5, 77] = odd
    assert find(values, F32) is None


@pytest.mark.parametrize("tag", ["F32", "F16", "BF16"])
def test_weights_that_nobody_quantized_have_none(tag):
    assert find(from_numbers(weights((64, 256)).astype("f8"), DTYPES[tag]), DTYPES[tag]) is None


@pytest.mark.parametrize("tag", ["F64", "I32", "F8_E4M3", "C64"])
def test_other_types_have_none(tag):
    assert find(np.ones((64, 64), DTYPES[tag].storage), DTYPES[tag]) is None


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 32), (1,), (5,)])
def test_tensors_of_few_elements_have_none(shape):
    assert find(np.ones(shape, "<f4"), F32) is None


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(40,), (8, 16), (6, 32), (3, 4, 8), (17, 5), (4, 2, 3, 3), (2, 64)]),
    st.sampled_from([1, 2, 7, 127, 255]), st.sampled_from(["F32", "F16", "BF16"]),
    st.sampled_from(["<f2", "<f4"]), st.integers(0, 2**32), st.data(),
)  # fmt: skip
def test_what_is_found_gives_the_same_bits(shape, largest, tag, kind, seed, data):
    rng = np.random.default_rng(seed)
    run, count = data.draw(st.sampled_from([*layouts(shape)]))
    exponents = data.draw(st.sampled_from([(-12, 2), (-30, -20), (0, 12)]))
    values = (1 + rng.random(count)) * 2.0 ** rng.integers(*exponents, count)
    with np.errstate(over="ignore"):
        scales = values.astype(kind).astype("<f4") * rng.choice([1, -1], count).astype("<f4")
    integers = rng.integers(-largest, largest + 1, shape).astype("<i2")
    made = Scales(DTYPES[tag], np.where(np.isfinite(scales), scales, 1).astype("<f4"), run)
    values = made.elements(integers.reshape(-1)).reshape(shape)
    low = find(values, DTYPES[tag])
    assert low is None or bits(elements(low)) == bits(values)
    if tag == "F32" and np.abs(made.values).min() > 1e-30:  # nothing is lost: it must be found
        assert low is not None
        assert len(low.scales.values) <= count


# -- what lossless packing makes of them --------------------------------------------------------


def lossless(**tensors):
    plan = Plan.of(Settings(), found_of(tensors))
    done = [plan.tie(name, F32, values) for name, values in tensors.items()]
    state = TiedState(tuple(plan.codebooks), tuple(tensor for tensor, _ in done))
    return state, [change.done for _, change in done]


def test_a_file_has_version_2_only_for_scales_that_pay():
    few = (np.rint(weights((64, 64)) / 0.01) * 0.01).astype("<f4") + np.float32(0)
    state, done = lossless(a=few, b=weights((64, 64)))
    assert encode(state)[3] == 1
    assert done == ["tied, nothing changed", "kept exactly"]
    eight = quantized(weights((64, 512)), 32, 127, "<f2")
    state, done = lossless(a=few, b=weights((64, 64)), c=eight)
    assert done[2] == "integers and 1,024 scales, nothing changed"
    data = encode(state)
    assert data[3] == 2
    assert bits(state.values(state.tensors[2])) == bits(eight)
    assert decode(data, max_bytes=1 << 20) == state
    assert len(data) < len(encode(lossless(a=few, b=weights((64, 64)))[0])) + 1.1 * eight.size


def test_one_scale_for_a_tensor_is_a_codebook_of_version_1():
    ternary = np.rint(weights((64, 64)) / 0.02).clip(-1, 1).astype("<f4") * np.float32(0.02)
    state, done = lossless(w=ternary + np.float32(0))
    assert done == ["tied, nothing changed"]
    assert encode(state)[3] == 1


def test_tensors_with_the_same_integers_share_a_codebook():
    state, _ = lossless(**{f"w{n}": quantized(weights((64, 512), n), 32, 7) for n in range(3)})
    assert len(state.codebooks) == 1
    assert {tensor.codebook for tensor in state.tensors} == {0}


def test_cluster_keeps_what_it_is_told_to_keep():
    eight = quantized(weights((64, 512)), 32, 127)
    state = cluster({"a": eight, "b": eight.copy()}, keep=["b"])
    assert [type(tensor).__name__ for tensor in state.tensors] == ["TiedTensor", "KeptTensor"]
    assert all(bits(values) == bits(eight) for _, _, values in state.arrays())
