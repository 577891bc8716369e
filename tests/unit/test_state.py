"""TiedState: what it refuses, when two are equal, and what it weighs."""

import numpy as np
import pytest

from reefknot.dtypes import DTYPES, dtype_of, is_zero
from reefknot.errors import FormatError, ReefknotError
from reefknot.state import (
    MAX_CODEBOOK,
    Codebook,
    KeptTensor,
    TiedState,
    TiedTensor,
    index_dtype,
)

F32, BF16, I64 = DTYPES["F32"], DTYPES["BF16"], DTYPES["I64"]


def book(*values: float) -> Codebook:
    return Codebook(F32, np.array(values, "<f4"))


def kept(name: str, values: object, *, trainable: bool = True) -> KeptTensor:
    return KeptTensor(name, F32, np.array(values, "<f4"), trainable)


def tied(name: str, indices: object, codebook: int = 0) -> TiedTensor:
    return TiedTensor(name, codebook, np.array(indices, np.int64))


# -- codebooks ------------------------------------------------------------------------------


def test_a_codebook_of_another_storage_type_is_refused() -> None:
    with pytest.raises(ReefknotError, match="F32 holds a row of float32, found float64"):
        Codebook(F32, np.array([1.0]))


def test_a_codebook_that_is_not_a_row_is_refused() -> None:
    with pytest.raises(ReefknotError, match=r"shape \(1, 2\)"):
        Codebook(F32, np.array([[1.0, 2.0]], "<f4"))


def test_a_codebook_with_the_same_value_twice_is_refused() -> None:
    with pytest.raises(ReefknotError, match="same value twice"):
        book(1.0, 2.0, 1.0)


def test_a_codebook_with_negative_zero_is_refused() -> None:
    with pytest.raises(ReefknotError, match=r"holds -0\.0"):
        book(1.0, -0.0)


def test_a_raw_codebook_with_negative_zero_is_refused() -> None:
    # bfloat16 -0.0 is the sign bit alone; -0.0 as an integer looks like an ordinary number.
    with pytest.raises(ReefknotError, match=r"holds -0\.0"):
        Codebook(BF16, np.array([0x8000], "<u2"))


def test_a_codebook_of_fnuz_values_may_hold_the_pattern_that_is_their_nan() -> None:
    values = np.array([0x00, 0x80], "u1")
    assert Codebook(DTYPES["F8_E4M3FNUZ"], values).zeros.tolist() == [True, False]


def test_e8m0_has_no_zero() -> None:
    assert not is_zero(np.array([0, 1, 255], "u1"), DTYPES["F8_E8M0"]).any()


def test_two_nans_of_different_payload_are_two_values() -> None:
    bits = np.array([0x7FC00000, 0x7FC00001], "<u4")
    assert len(Codebook(F32, bits.view("<f4"))) == 2
    with pytest.raises(ReefknotError, match="same value twice"):
        Codebook(F32, bits[[0, 0]].view("<f4"))


def test_a_codebook_of_too_many_values_is_refused() -> None:
    values = np.arange(MAX_CODEBOOK + 1, dtype="<f4")
    assert len(Codebook(F32, values[:-1])) == 65_536
    with pytest.raises(ReefknotError, match="at most 65,536 values, found 65,537"):
        Codebook(F32, values)


def test_an_unknown_element_type_is_refused_by_name() -> None:
    with pytest.raises(FormatError, match=r"'F12'; known are F32, .*I64"):
        dtype_of("F12")


@pytest.mark.parametrize(("size", "dtype"), [(0, "u1"), (256, "u1"), (257, "<u2"), (65_536, "<u2")])
def test_indices_are_as_narrow_as_their_codebook_allows(size: int, dtype: str) -> None:
    assert index_dtype(size) == np.dtype(dtype)
    if size:
        values = np.arange(size, dtype="<f4")
        state = TiedState((Codebook(F32, values),), (tied("w", [0, size - 1]),))
        (tensor,) = state.tensors
        assert isinstance(tensor, TiedTensor)
        assert tensor.indices.dtype == np.dtype(dtype)
        assert state.values(tensor).tolist() == [0, size - 1]


# -- tensors --------------------------------------------------------------------------------


def test_a_kept_tensor_of_another_storage_type_is_refused() -> None:
    tensor = KeptTensor("w", BF16, np.zeros(2, "<f4"))
    with pytest.raises(ReefknotError, match="'w' is BF16 and must be held as uint16"):
        TiedState((), (tensor,))


@pytest.mark.parametrize("number", [-1, 1])
def test_a_tensor_of_a_codebook_that_is_not_there_is_refused(number: int) -> None:
    with pytest.raises(ReefknotError, match=f"'w' uses codebook {number}, the state has 1"):
        TiedState((book(1.0),), (tied("w", [0], number),))


@pytest.mark.parametrize("index", [-1, 2, 256])
def test_an_index_outside_the_codebook_is_refused(index: int) -> None:
    # 256 would become 0 if it were narrowed before it is checked.
    with pytest.raises(ReefknotError, match=r"'w' has indices .*; its codebook holds 2 values"):
        TiedState((book(1.0, 2.0),), (tied("w", [0, index]),))


def test_indices_that_are_not_integers_are_refused() -> None:
    tensor = TiedTensor("w", 0, np.array([0.0, 1.0]))
    with pytest.raises(ReefknotError, match="'w' has indices of float64; integers were expected"):
        TiedState((book(1.0, 2.0),), (tensor,))


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(ReefknotError, match="two tensors of one state are named 'w'"):
        TiedState((), (kept("v", [1]), kept("w", [1]), kept("w", [2])))


def test_an_alias_with_the_name_of_a_tensor_is_refused() -> None:
    with pytest.raises(ReefknotError, match="two tensors of one state are named 'v'"):
        TiedState((), (kept("v", [1]), kept("w", [1])), {"v": "w"})


def test_an_alias_of_nothing_is_refused() -> None:
    with pytest.raises(ReefknotError, match="'a' is an alias of 'x'"):
        TiedState((), (kept("w", [1]),), {"a": "x"})


def test_an_alias_of_an_alias_is_refused() -> None:
    with pytest.raises(ReefknotError, match="'b' is an alias of 'a'"):
        TiedState((), (kept("w", [1]),), {"a": "w", "b": "a"})


# -- frozen ---------------------------------------------------------------------------------


def test_arrays_of_a_state_are_read_only_copies() -> None:
    values, data, indices = (
        np.array([1, 2], "<f4"),
        np.array([5], "<f4"),
        np.array([0, 1], "u1"),
    )
    codebook = Codebook(F32, values)
    state = TiedState((codebook,), (TiedTensor("t", 0, indices), KeptTensor("k", F32, data)))
    before = {name: array.tolist() for name, _, array in state.arrays()}
    values[:] = data[:] = 9
    indices[:] = 0
    assert {name: array.tolist() for name, _, array in state.arrays()} == before
    first, second = state.tensors
    assert isinstance(first, TiedTensor)
    assert isinstance(second, KeptTensor)
    for array in (codebook.values, first.indices, second.data):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_state_and_its_aliases_cannot_be_changed() -> None:
    state = TiedState((), (kept("w", [1]),), {"a": "w"})
    with pytest.raises(AttributeError):
        state.tensors = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        state.aliases["b"] = "w"  # type: ignore[index]


def test_a_transposed_array_is_held_in_c_order_with_its_own_shape() -> None:
    data = np.arange(6, dtype="<f4").reshape(2, 3).T
    (tensor,) = TiedState((), (KeptTensor("w", F32, data),)).tensors
    assert isinstance(tensor, KeptTensor)
    assert tensor.data.flags.c_contiguous
    assert tensor.data.tolist() == [[0, 3], [1, 4], [2, 5]]


# -- equality -------------------------------------------------------------------------------


def test_states_are_equal_when_every_name_gives_the_same_bits() -> None:
    # The same values by another codebook order, or kept instead of tied.
    one = TiedState((book(1.0, 2.0),), (tied("w", [0, 1, 1]),))
    other = TiedState((book(2.0, 1.0, 7.0),), (tied("w", [1, 0, 0]),))
    plain = TiedState((), (kept("w", [1.0, 2.0, 2.0]),))
    assert one == other == plain
    assert one != TiedState((), (kept("w", [1.0, 2.0, 1.0]),))
    assert one != TiedState((), (kept("v", [1.0, 2.0, 2.0]),))
    assert one != "w"


def test_zeros_of_different_sign_are_different() -> None:
    assert TiedState((), (kept("w", [0.0]),)) != TiedState((), (kept("w", [-0.0]),))


def test_nans_of_the_same_bits_are_equal_and_of_others_not() -> None:
    def state(bits: int) -> TiedState:
        return TiedState((), (KeptTensor("w", F32, np.array([bits], "<u4").view("<f4")),))

    assert state(0x7FC00001) == state(0x7FC00001)
    assert state(0x7FC00001) != state(0x7FC00002)


def test_the_same_bytes_in_another_shape_or_type_are_different() -> None:
    row = TiedState((), (kept("w", [[1.0, 2.0]]),))
    assert row != TiedState((), (kept("w", [1.0, 2.0]),))
    ints = np.array([[1.0, 2.0]], "<f4").view("<i4")
    assert row != TiedState((), (KeptTensor("w", DTYPES["I32"], ints),))
    empty = TiedState((), (kept("w", np.zeros((0, 3))),))
    assert empty != TiedState((), (kept("w", np.zeros((3, 0))),))


def test_an_alias_counts_as_a_name() -> None:
    with_alias = TiedState((), (kept("w", [1.0]),), {"a": "w"})
    assert with_alias != TiedState((), (kept("w", [1.0]),))
    assert with_alias == TiedState((), (kept("w", [1.0]), kept("a", [1.0])))


def test_a_state_has_no_hash() -> None:
    with pytest.raises(TypeError):
        hash(TiedState((), ()))


# -- reading and weighing -------------------------------------------------------------------


def test_arrays_come_in_order_with_aliases_after_their_owners() -> None:
    state = TiedState(
        (book(0.5, -1.0),),
        (tied("w", [[0, 1]]), KeptTensor("n", I64, np.array(7, "<i8"), trainable=False)),
        {"again": "w"},
    )
    assert [(name, dtype.tag, array.tolist()) for name, dtype, array in state.arrays()] == [
        ("w", "F32", [[0.5, -1.0]]),
        ("again", "F32", [[0.5, -1.0]]),
        ("n", "I64", 7),
    ]


def test_density_counts_trainable_parameters_once_and_no_buffers() -> None:
    # Tied: 3 of 4 non-zero. Kept parameter: 1 of 2. The buffer and the alias count for nothing.
    state = TiedState(
        (book(0.0, 0.5),),
        (tied("w", [[0, 1], [1, 1]]), kept("b", [0.0, 3.0]), kept("m", [1] * 90, trainable=False)),
        {"again": "w"},
    )
    assert state.density == 4 / 6
    assert [state.nonzeros(tensor) for tensor in state.tensors] == [3, 1, 90]


def test_density_sees_both_zeros_of_kept_bfloat16() -> None:
    bits = np.array([0x0000, 0x8000, 0x3F80, 0xBF80], "<u2")  # 0, -0, 1, -1
    assert TiedState((), (KeptTensor("w", BF16, bits),)).density == 0.5


def test_a_state_of_nothing_trainable_has_density_zero() -> None:
    assert TiedState((), ()).density == 0.0
    assert TiedState((), (kept("m", [1.0], trainable=False),)).density == 0.0


def test_sizes_count_every_stored_element_once() -> None:
    # 6 float32, 3 bfloat16, one int64 scalar, nothing for the empty one and the alias.
    state = TiedState(
        (book(0.0, 0.5), Codebook(BF16, np.array([0x3F80], "<u2"))),
        (
            tied("w", [[0, 1, 0], [0, 0, 0]]),
            tied("h", [0, 0, 0], 1),
            KeptTensor("n", I64, np.array(7, "<i8"), trainable=False),
            kept("e", np.zeros((0, 5))),
        ),
        {"again": "w"},
    )
    assert state.num_weights == 6 + 3 + 1
    assert state.original_bytes == 6 * 4 + 3 * 2 + 8
    assert state.num_clusters == 2


def test_scalars_and_empty_tensors_keep_their_shapes() -> None:
    state = TiedState(
        (book(0.0, 0.5),),
        (tied("s", 1), tied("e", np.zeros((2, 0))), kept("k", 3.0), kept("z", np.zeros((0,)))),
    )
    assert [tensor.shape for tensor in state.tensors] == [(), (2, 0), (), (0,)]
    assert {name: array.tolist() for name, _, array in state.arrays()} == {
        "s": 0.5,
        "e": [[], []],
        "k": 3.0,
        "z": [],
    }
    assert state.density == 1.0


def test_an_empty_tensor_may_use_an_empty_codebook() -> None:
    state = TiedState((book(),), (tied("e", np.zeros(0)),))
    assert (state.density, state.num_clusters, state.original_bytes) == (0.0, 0, 0)


# -- what belongs to the caller ---------------------------------------------------------------


def test_tensors_that_a_state_is_made_of_are_not_changed() -> None:
    tensor, other = tied("t", [0, 1]), kept("k", [1.0])
    indices, data = tensor.indices, other.data
    TiedState((book(1.0, 2.0),), (tensor, other))
    assert tensor.indices is indices
    assert other.data is data
    assert indices.flags.writeable
    assert data.flags.writeable
    assert indices.dtype == np.int64


def test_a_read_only_view_of_an_array_that_can_be_written_to_is_copied() -> None:
    data = np.array([1.0, 2.0], "<f4")
    view = data.view()
    view.flags.writeable = False
    state = TiedState((), (KeptTensor("k", F32, view),))
    data[:] = 9
    assert [array.tolist() for _, _, array in state.arrays()] == [[1.0, 2.0]]


def test_an_array_that_nobody_can_write_to_is_not_copied() -> None:
    data = np.frombuffer(np.array([1.0, 2.0], "<f4").tobytes(), "<f4")
    (tensor,) = TiedState((), (KeptTensor("k", F32, data),)).tensors
    assert isinstance(tensor, KeptTensor)
    assert tensor.data is data


# -- booleans -------------------------------------------------------------------------------


def test_bytes_that_are_no_booleans_are_refused() -> None:
    odd = np.array([0, 2], "u1").view("?")
    with pytest.raises(ReefknotError, match="a codebook is BOOL and holds the byte 2"):
        Codebook(DTYPES["BOOL"], odd)
    with pytest.raises(ReefknotError, match="'k' is BOOL and holds the byte 2"):
        TiedState((), (KeptTensor("k", DTYPES["BOOL"], odd),))


# -- large tensors --------------------------------------------------------------------------


def test_counts_of_more_elements_than_are_looked_at_at_a_time() -> None:
    indices = np.zeros(2_500_000, np.uint8)
    indices[::7] = 1
    state = TiedState(
        (book(0.0, 0.5),),
        (TiedTensor("w", 0, indices), KeptTensor("k", F32, indices.astype("<f4"))),
    )
    ones = int(indices.sum())
    first, second = state.tensors
    assert isinstance(first, TiedTensor)
    assert state.counts(first).tolist() == [len(indices) - ones, ones]
    assert [state.nonzeros(tensor) for tensor in state.tensors] == [ones, ones]
    assert np.concatenate(list(state.pieces(first))).tolist() == (indices / 2).tolist()
    assert state == TiedState((), (KeptTensor("w", F32, indices.astype("<f4") / 2), second))
