import math

import numpy as np
import pytest

from reefknot.dtypes import DTYPES
from reefknot.rates import (
    paper_bits,
    predicted_bytes,
    rate_file,
    rate_fixed,
    rate_live,
    rate_paper,
)
from reefknot.scales import Scales
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor

F32 = DTYPES["F32"]
CODEBOOK = Codebook(F32, np.array([0.0, 1.0, -1.0, 2.0], "<f4"))


def state_of(**tensors):
    return TiedState((CODEBOOK,), tuple(TiedTensor(n, 0, np.array(v)) for n, v in tensors.items()))


def test_rate_file_counts_elements_times_item_size():
    assert rate_file(state_of(w=[0, 1, 2, 3]), 8) == 2.0


def test_rate_fixed_is_equation_2():
    # N = 16, b = 32, K = 4.
    assert rate_fixed(state_of(w=[[0, 1, 2, 3]] * 4)) == 16 * 32 / (16 * 2 + 4 * 32)


def test_rate_fixed_counts_kept_tensors_at_their_own_size():
    kept = KeptTensor("k", F32, np.zeros(3, "<f4"))
    state = TiedState((CODEBOOK,), (TiedTensor("w", 0, np.zeros((4, 4), int)), kept))
    assert rate_fixed(state) == (16 + 3) * 32 / (16 * 2 + 4 * 32 + 3 * 32)


def test_scales_are_counted_at_four_bytes_each():
    integers = Codebook(DTYPES["I8"], np.arange(4, dtype="i1"))
    indices = np.array([[0, 1], [2, 3]])
    scales = Scales(F32, np.ones(2, "<f4"), 2)
    state = TiedState((integers,), (TiedTensor("w", 0, indices, scales),))
    assert rate_fixed(state) == 4 * 32 / (4 * 2 + 4 * 8 + 2 * 32)
    without = TiedState((integers,), (TiedTensor("w", 0, indices),))
    assert paper_bits(state) == paper_bits(without) + 2 * 32


def test_rate_paper_of_a_dense_layer_worked_by_hand():
    # Row 0: columns 1 and 3 (skipping 1, 1), ids 1 and 2; row 1: column 0 (skipping 0), id 1.
    # Values: id 1 twice, id 2 once -> 3 bits, 2 entries of 2 + 5 bits.
    # Gaps: 1 twice, 0 once         -> 3 bits, 2 entries of 5 + 5 bits.
    # Rows: two pointers of 32 bits.
    state = state_of(w=[[0, 1, 0, 2], [1, 0, 0, 0]])
    assert 8 * 32 / rate_paper(state) == pytest.approx((3 + 14) + (3 + 20) + 2 * 32 + 4 * 32)


def test_rate_paper_bridges_long_gaps_with_filler_zeros():
    # One entry at column 70 skips 70 = 2 * 32 + 6: two fillers (gap 31, id 0), then gap 6, id 1.
    # Values: 0, 0, 1 -> 3 bits, 2 * 7; gaps: 31, 31, 6 -> 3 bits, 2 * 10; one row.
    row = np.zeros((1, 100), int)
    row[0, 70] = 1
    assert 100 * 32 / rate_paper(state_of(w=row)) == pytest.approx(17 + 23 + 32 + 128)


def test_rate_paper_gives_convolutions_a_longer_span_and_counts_kept_tensors():
    # The same 70 zeros need no filler with 8 bits: one symbol each, so only the tables cost.
    kernel = np.zeros((1, 100, 1, 1), int)
    kernel[0, 70] = 1
    kept = KeptTensor("k", F32, np.zeros(3, "<f4"))
    state = TiedState((CODEBOOK,), (TiedTensor("w", 0, kernel), kept))
    assert 103 * 32 / rate_paper(state) == pytest.approx(7 + (8 + 5) + 32 + 128 + 3 * 32)


def test_rate_paper_counts_a_bias_as_one_more_row_of_its_layer():
    matrix = [[0, 1, 0, 2], [1, 0, 0, 0]]
    split = TiedState(
        (CODEBOOK,),
        (
            TiedTensor("a.weight", 0, np.array(matrix[:1])),
            TiedTensor("a.bias", 0, np.array(matrix[1])),
        ),
    )
    assert rate_paper(split) == rate_paper(state_of(w=matrix))


def test_rate_paper_is_the_published_one_for_a_network_as_published():
    # LeNet-300-100 with 16 non-zero values, equally often, and 2.1 % non-zero: 5,599. In its
    # first layer 71 of 300 rows and 381 of 784 columns are not empty ("76.3 % row-sparsity",
    # "prunes away 403"). How many non-zeros each layer has is not published: as in our own.
    rng = np.random.default_rng(0)
    tensors = []
    for shape, rows, columns, nonzeros in (
        ((300, 784), 71, 381, 4_199),
        ((100, 300), 60, 71, 1_120),
        ((10, 100), 10, 60, 280),
    ):
        block = np.zeros(rows * columns, int)
        block[rng.permutation(block.size)[:nonzeros]] = rng.integers(1, 17, nonzeros)
        weight = np.zeros(shape, int)
        where = np.ix_(range(rows), rng.choice(shape[1], columns, replace=False))
        weight[where] = block.reshape(rows, columns)
        tensors.append(TiedTensor(f"{shape[0]}.weight", 0, weight))
        tensors.append(TiedTensor(f"{shape[0]}.bias", 0, np.zeros(shape[0], int)))
    state = TiedState((Codebook(F32, np.arange(17, dtype="<f4")),), tuple(tensors))
    assert rate_paper(state) == pytest.approx(127, rel=0.05)


def test_rate_live_leaves_out_dead_rows_and_columns_for_a_bit_each():
    whole = np.zeros((5, 7), np.uint8)
    whole[np.ix_([1, 4], [0, 3, 6])] = [[1, 2, 1], [2, 0, 1]]
    small = whole[np.ix_([1, 4], [0, 3, 6])]
    marks = 5 + 7
    bits = 6 * 32 / rate_paper(state_of(w=small))
    assert 35 * 32 / rate_live(state_of(w=whole)) == pytest.approx(bits + marks)


def test_rate_live_counts_input_channels_of_convolutions_as_columns():
    whole = np.zeros((3, 4, 2, 2), np.uint8)
    whole[2, 1, 0, 1] = whole[0, 3, 1, 1] = 1
    small = whole[np.ix_([0, 2], [1, 3])]
    bits = 16 * 32 / rate_paper(state_of(w=small))
    assert 48 * 32 / rate_live(state_of(w=whole)) == pytest.approx(bits + 3 + 4)


@pytest.mark.parametrize("rate", [rate_fixed, rate_live, rate_paper])
def test_states_without_codebook_have_rate_one(rate):
    assert rate(TiedState((), (KeptTensor("k", F32, np.ones((2, 3), "<f4")),))) == 1.0
    assert rate(TiedState((), ())) == 1.0
    assert rate(TiedState((), (KeptTensor("k", F32, np.ones((0, 3), "<f4")),))) == 1.0


@pytest.mark.parametrize("rate", [rate_fixed, rate_live, rate_paper])
def test_empty_scalar_and_all_zero_tensors_have_a_rate(rate):
    state = state_of(empty=np.zeros((3, 0), int), none=np.zeros(0, int), scalar=3, zeros=[[0, 0]])
    assert 0 < rate(state) < math.inf


def test_rate_paper_without_a_zero_in_the_codebook():
    codebook = Codebook(F32, np.array([1.0, 2.0], "<f4"))
    state = TiedState((codebook,), (TiedTensor("w", 0, np.array([[0, 1], [1, 1]])),))
    # Values: 4 bits, 2 * (1 + 5); gaps all 0: 10; two rows; codebook 64.
    assert 4 * 32 / rate_paper(state) == pytest.approx(4 + 12 + 10 + 2 * 32 + 64)


def test_predicted_bytes_is_the_zero_order_entropy():
    # 1 of 4 set: 4 * H(1/4) = 3.245 bits, for 100 such groups 324.5 bits = 40.6 bytes.
    assert predicted_bytes([np.array([300, 100])], codebook_bytes=8, kept_bytes=5) == 41 + 8 + 5
    nothing = [np.array([0, 7]), np.array([], int)]
    assert predicted_bytes(nothing, codebook_bytes=0, kept_bytes=0) == 0


def test_rate_paper_of_deep_compression_worked_by_hand():
    # Two layers, a codebook of three values each, biases kept at 32 bits.
    # a: column 1, then column 70, which skips 68 = 2 * 32 + 4: two fillers (gap 31, id 1 for 0.0).
    #   Values: 0, 1, 1, 2 -> 6 bits (lengths 1, 2, 2), 3 * (2 + 5); gaps: 1, 31, 31, 4 -> 6 bits,
    #   3 * (5 + 5); one row.
    # b: row 0 has column 0, row 1 nothing. Values: 0 bits, 1 * 7; gaps: 0 bits, 1 * 10;
    #   two rows.
    books = [Codebook(F32, np.array([-x, 0.0, x], "<f4")) for x in (1.0, 2.0)]
    wide = np.ones((1, 100), int)
    wide[0, 1], wide[0, 70] = 0, 2
    small = np.array([[2, 1], [1, 1]])
    state = TiedState(
        tuple(books),
        (
            TiedTensor("a.weight", 0, wide),
            KeptTensor("a.bias", F32, np.ones(1, "<f4")),
            TiedTensor("b.weight", 1, small),
            KeptTensor("b.bias", F32, np.ones(2, "<f4")),
        ),
    )
    first = (6 + 21) + (6 + 30) + 32
    second = 7 + 10 + 2 * 32
    whole = first + second + 2 * 3 * 32 + 3 * 32
    assert (100 + 1 + 4 + 2) * 32 / rate_paper(state) == pytest.approx(whole)


@pytest.mark.parametrize("shape", [(3, 100), (300,), (150, 2), (300, 1), (5, 3, 4, 5)])
def test_rate_paper_is_the_same_however_many_elements_are_counted_at_a_time(shape, monkeypatch):
    rng = np.random.default_rng(0)
    indices = np.where(rng.random(shape) < 0.03, rng.integers(0, 4, shape), 0)
    state = TiedState((CODEBOOK,), (TiedTensor("a.w", 0, indices), TiedTensor("a.b", 0, indices)))
    whole = rate_paper(state)
    for chunk in (1, 7, 64):
        monkeypatch.setattr("reefknot.rates.CHUNK", chunk)
        assert rate_paper(state) == whole
