"""Weights as steps and values: what is written can be read as the engine's comment says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reefknot.export.weight_bits import Matrix, huffman, weight_bits


def read_back(coded, shapes):
    """The matrices and biases, read bit by bit."""
    bits = iter(np.unpackbits(np.frombuffer(coded.data, np.uint8), bitorder="little").tolist())
    steps = {code: symbol for symbol, code in coded.step_code.codes().items()}
    ranks = {code: symbol for symbol, code in coded.value_code.codes().items()}
    assert list(coded.value_code.symbols) == list(range(len(ranks)))  # the engine has no table

    def symbol(codes):
        word = ""
        while word not in codes:
            word += str(next(bits))
        return codes[word]

    found = []
    for stage, (rows, columns) in enumerate(shapes):
        table = coded.values[0 if len(coded.values) == 1 else stage]
        weight, bias = np.zeros((rows, columns), np.float32), np.zeros(rows, np.float32)
        for row in range(rows):
            if coded.biases == "coded" and next(bits):
                bias[row] = table[symbol(ranks)]
            at = -1
            while length := symbol(steps):
                step = 1
                for _ in range(length - 1):
                    step = 2 * step + next(bits)
                at += step
                weight[row, at] = table[symbol(ranks)]
        found.append((weight, bias))
    assert sum(bits) == 0
    return found


@st.composite
def matrices(draw):
    made, random = [], np.random.default_rng(draw(st.integers(0, 2**32)))
    for number in range(draw(st.integers(1, 3))):
        rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 700))
        values = np.array([0, *random.normal(size=draw(st.integers(1, 5)))], np.float32)
        alive = random.random((rows, columns + 1)) < draw(st.sampled_from([0, 0.01, 0.2, 1]))
        both = random.choice(values, (rows, columns + 1)) * alive
        made.append(Matrix(str(number), both[:, 1:], both[:, 0]))
    return made


@given(matrices())
def test_weights_are_read_back(made):
    coded = weight_bits(made)
    found = read_back(coded, [matrix.weight.shape for matrix in made])
    for matrix, (weight, bias) in zip(made, found, strict=True):
        np.testing.assert_array_equal(weight, matrix.weight)
        if coded.biases == "coded":
            np.testing.assert_array_equal(bias, matrix.bias)
        elif coded.biases == "none":
            assert not matrix.bias.any()


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=255))
def test_a_code_is_complete_and_no_longer_than_a_bit_above_the_entropy(counts):
    lengths = {symbol: len(bits) for symbol, bits in huffman(np.array(counts)).codes().items()}
    assert lengths.keys() == set(range(len(counts)))
    if len(counts) > 1:
        assert sum(2.0**-length for length in lengths.values()) == 1
        shares = np.array(counts) / sum(counts)
        mean = sum(shares[symbol] * length for symbol, length in lengths.items())
        assert mean < -(shares * np.log2(shares)).sum() + 1


def test_values_of_all_layers_are_one_table_where_that_is_smaller():
    rng = np.random.default_rng(0)
    one = rng.choice(np.array([0.5, -1, 0], np.float32), (20, 30))
    other = rng.choice(np.array([3, 0.25, 0], np.float32), (20, 30))
    bias = np.zeros(20, np.float32)
    assert len(weight_bits([Matrix("a", one, bias), Matrix("b", one, bias)]).values) == 1
    assert len(weight_bits([Matrix("a", one, bias), Matrix("b", other, bias)]).values) == 2


def test_a_bias_may_have_a_value_that_only_another_layer_has():
    one = Matrix("a", np.array([[0.5, 2.0]], np.float32), np.zeros(1, np.float32))
    two = Matrix("b", np.array([[0.5, 0.5]], np.float32), np.array([2.0], np.float32))
    coded = weight_bits([one, two])
    assert coded.biases == "coded"
    assert read_back(coded, [(1, 2), (1, 2)])[1][1] == 2.0
