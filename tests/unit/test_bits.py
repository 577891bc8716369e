import numpy as np
import pytest

from reefknot.bits import entropy, huffman_bits, huffman_lengths, message_entropy


def test_lengths_of_a_worked_example():
    # 1+2=3, 3+3=6, 6+5=11: the 5 is one step from the root, the first 3 two, the others three.
    assert huffman_lengths(np.array([5, 3, 2, 1])).tolist() == [1, 2, 3, 3]
    assert huffman_bits(np.array([5, 3, 2, 1])) == 5 * 1 + 3 * 2 + 2 * 3 + 1 * 3


def test_equal_counts_give_equal_lengths():
    assert huffman_lengths(np.full(8, 7)).tolist() == [3] * 8


@pytest.mark.parametrize("counts", [[], [0, 0], [9], [0, 4, 0]])
def test_fewer_than_two_symbols_cost_nothing(counts):
    assert huffman_bits(np.array(counts, dtype=np.int64)) == 0


def test_lengths_fill_the_code_space_and_stay_within_one_bit_of_the_entropy():
    counts = np.random.default_rng(0).integers(1, 1000, size=300)
    lengths = huffman_lengths(counts)
    assert sum(2.0**-lengths) == 1.0
    least = message_entropy(counts)
    assert least <= huffman_bits(counts) < least + counts.sum()


def test_the_entropy_of_a_symbol_is_that_of_the_message_over_its_length():
    counts = np.array([5, 0, 2, 1])
    assert entropy(counts) == pytest.approx(message_entropy(counts) / 8)


@pytest.mark.parametrize("counts", [[], [0, 0], [9]])
def test_one_symbol_carries_no_information(counts):
    counts = np.array(counts, np.int64)
    assert entropy(counts) == message_entropy(counts) == 0
