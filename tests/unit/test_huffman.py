import numpy as np
import pytest

from reefknot.huffman import code_lengths, message_bits


def test_lengths_of_a_worked_example():
    # 1+2=3, 3+3=6, 6+5=11: the 5 is one step from the root, the first 3 two, the others three.
    assert code_lengths(np.array([5, 3, 2, 1])).tolist() == [1, 2, 3, 3]
    assert message_bits(np.array([5, 3, 2, 1])) == 5 * 1 + 3 * 2 + 2 * 3 + 1 * 3


def test_equal_counts_give_equal_lengths():
    assert code_lengths(np.full(8, 7)).tolist() == [3] * 8


@pytest.mark.parametrize("counts", [[], [0, 0], [9], [0, 4, 0]])
def test_fewer_than_two_symbols_cost_nothing(counts):
    assert message_bits(np.array(counts, dtype=np.int64)) == 0


def test_lengths_fill_the_code_space_and_stay_within_one_bit_of_the_entropy():
    counts = np.random.default_rng(0).integers(1, 1000, size=300)
    lengths = code_lengths(counts)
    assert sum(2.0**-lengths) == 1.0
    entropy = float(np.sum(counts * np.log2(counts.sum() / counts)))
    assert entropy <= message_bits(counts) < entropy + counts.sum()
