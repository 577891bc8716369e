"""Between torch and numpy, and from a file back to torch: bit for bit."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

import reefknot
from reefknot.dtypes import DTYPES
from reefknot.errors import ReefknotError
from reefknot.loading import tensors
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor
from reefknot.tensors import TORCH_DTYPES, dtype_for, to_array, to_tensor

F32 = DTYPES["F32"]


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The memory of a contiguous tensor, without numpy's or our own opinion of its type."""
    return bytes(tensor.flatten().view(torch.uint8).tolist()) if tensor.numel() else b""


def test_every_type_of_a_state_has_a_torch_type_of_its_size() -> None:
    assert TORCH_DTYPES.keys() == DTYPES.keys()
    for tag, dtype in TORCH_DTYPES.items():
        assert (tag, dtype.itemsize) == (tag, DTYPES[tag].item_bytes)
        assert dtype_for(dtype) is DTYPES[tag]
        assert dtype.is_floating_point == DTYPES[tag].is_float


@pytest.mark.parametrize("tag", DTYPES)
@settings(max_examples=25)
@given(data=st.data())
def test_any_bits_survive_the_way_to_torch_and_back(tag: str, data: st.DataObject) -> None:
    # Raw bits, so NaN payloads, subnormals and -0.0 come up as often as anything else.
    dtype = DTYPES[tag]
    shape = data.draw(nps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    count = int(np.prod(shape, dtype=int)) * dtype.item_bytes
    bits = data.draw(st.binary(min_size=count, max_size=count))
    if tag == "BOOL":
        bits = bytes(byte & 1 for byte in bits)
    array = np.frombuffer(bits, dtype.storage).reshape(shape)
    tensor = to_tensor(array, dtype)
    assert (tensor.dtype, tensor.shape) == (TORCH_DTYPES[tag], shape)
    assert tensor_bytes(tensor) == bits
    back = to_array(tensor)
    assert (back.dtype, back.shape, back.tobytes()) == (dtype.storage, shape, bits)


@pytest.mark.parametrize(
    ("tag", "value", "bits"),
    [
        ("F32", -0.0, 0x80000000),
        ("F16", 1.5, 0x3E00),
        ("BF16", -2.0, 0xC000),
        ("F64", 1.0, 0x3FF0000000000000),
        ("F8_E4M3", 1.0, 0x38),
        ("F8_E5M2", -1.0, 0xBC),
        ("F8_E4M3FNUZ", 1.0, 0x40),
        ("F8_E5M2FNUZ", 1.0, 0x40),
        ("F8_E8M0", 2.0, 0x80),
        ("I16", -2, 0xFFFE),
        ("U64", 7, 7),
    ],
)
def test_known_values_have_their_known_bits(tag: str, value: float, bits: int) -> None:
    # Bits from the definitions of the formats: sign, exponent with its bias, fraction.
    array = to_array(torch.tensor([value]).to(TORCH_DTYPES[tag]))
    assert int.from_bytes(array.tobytes(), "little") == bits


def test_the_array_is_a_copy_and_so_is_the_tensor() -> None:
    tensor = torch.ones(2)
    array = to_array(tensor)
    tensor.zero_()
    assert array.tolist() == [1, 1]
    again = to_tensor(array, F32)
    array[:] = 5
    assert again.tolist() == [1, 1]


def test_a_tensor_in_another_memory_order_gives_its_elements_in_c_order() -> None:
    tensor = torch.arange(16.0).reshape(2, 2, 2, 2)
    laid_out = tensor.to(memory_format=torch.channels_last)
    assert to_array(laid_out).tolist() == tensor.tolist()
    assert to_array(tensor.bfloat16().permute(3, 1, 0, 2)).flags.c_contiguous


def test_a_conjugated_view_gives_its_values() -> None:
    assert to_array(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]


def test_a_parameter_that_requires_a_gradient_is_taken_as_it_is() -> None:
    assert to_array(torch.nn.Parameter(torch.ones(2))).tolist() == [1, 1]


def test_a_type_that_no_state_knows_is_refused() -> None:
    with pytest.raises(ReefknotError, match=r"torch\.complex128 cannot be stored; known are F32"):
        to_array(torch.zeros(1, dtype=torch.complex128))


# -- loading --------------------------------------------------------------------------------


def numbered(count: int, shape: tuple[int, ...]) -> TiedState:
    """Tied tensors t0, t1, ... of one shape; all elements of tensor n are n."""
    codebook = Codebook(F32, np.arange(count, dtype="<f4"))
    every = (TiedTensor(f"t{n}", 0, np.full(shape, n)) for n in range(count))
    return TiedState((codebook,), tuple(every))


@pytest.mark.parametrize("shape", [(), (3,), (20, 30)])
def test_every_tied_tensor_gets_its_own_values(shape: tuple[int, ...]) -> None:
    loaded = tensors(numbered(12, shape))
    assert [value.unique().tolist() for value in loaded.values()] == [[n] for n in range(12)]


def test_only_the_wanted_tensors_are_loaded_each_with_its_own_values() -> None:
    loaded = tensors(numbered(12, (4,)), names=["t9", "t1", "t3", "t5"])
    assert {name: value[0].item() for name, value in loaded.items()} == {
        "t1": 1,
        "t3": 3,
        "t5": 5,
        "t9": 9,
    }


def test_names_that_share_storage_share_it_after_loading() -> None:
    state = TiedState(
        (Codebook(F32, np.array([1, 2], "<f4")),),
        (TiedTensor("a", 0, np.array([0, 1])), TiedTensor("b", 0, np.array([0, 1]))),
        {"c": "a"},
    )
    loaded = tensors(state)
    assert loaded["a"].data_ptr() == loaded["c"].data_ptr()
    assert loaded["a"].data_ptr() != loaded["b"].data_ptr()


def test_loaded_tensors_can_be_changed_without_changing_the_state() -> None:
    state = TiedState((), (KeptTensor("k", F32, np.ones(2, "<f4")),))
    tensors(state)["k"].zero_()
    assert tensors(state)["k"].tolist() == [1, 1]


def test_a_name_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(ReefknotError, match=r"no tensor 'fc.wieght'; did you mean 'fc\.weight'\?"):
        tensors(TiedState((), (KeptTensor("fc.weight", F32, np.ones(1, "<f4")),)), ["fc.wieght"])


def test_a_saved_file_loads_into_the_model_it_came_from(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)).bfloat16()
    kept = tuple(
        KeptTensor(name, dtype_for(value.dtype), to_array(value))
        for name, value in model.state_dict().items()
    )
    size = reefknot.save(TiedState((), kept), tmp_path / "model.reef")
    assert size == (tmp_path / "model.reef").stat().st_size
    loaded = reefknot.load(tmp_path / "model.reef")
    assert list(loaded) == list(model.state_dict())
    for name, value in model.state_dict().items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name], value)
    model.load_state_dict(loaded)
