"""`Data`, `split` and `as_data`: the same split everywhere, and clear words about bad data."""

import numpy as np
import pytest
import torch

from reefknot.errors import DataError
from reefknot.lab.zoo import Data, Split, as_data, split
from reefknot.lab.zoo.data import shuffled

INPUTS = torch.arange(200, dtype=torch.float32).reshape(100, 2)
LABELS = torch.arange(100) % 5
# As numpy 2.4 gave it: the positions of PCG64(0)'s first ten raw numbers in ascending order.
SHUFFLED_10 = [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]


def test_a_tenth_is_held_out_and_no_example_is_lost() -> None:
    data = split(INPUTS, LABELS, name="tiny", normalise=False)
    assert (len(data.train.inputs), len(data.validation.inputs)) == (90, 10)
    together = torch.cat([data.train.inputs, data.validation.inputs])
    assert torch.equal(together[:, 0].sort().values, INPUTS[:, 0])
    # The label of example i is i % 5, and its first input is 2 i.
    assert torch.equal(data.train.labels, (data.train.inputs[:, 0] / 2).long() % 5)
    assert data.test is None


def test_the_shuffle_never_changes() -> None:
    # A change would silently make old validation errors incomparable.
    assert shuffled(10, seed=0).tolist() == SHUFFLED_10
    assert shuffled(1, seed=0).tolist() == [0]
    assert shuffled(10, seed=1).tolist() != SHUFFLED_10


def test_the_split_is_independent_of_global_random_state() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    first = split(INPUTS, LABELS, name="tiny")
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = split(INPUTS, LABELS, name="tiny")
    assert torch.equal(first.train.inputs, second.train.inputs)
    assert torch.equal(torch.get_rng_state(), state)
    other = split(INPUTS, LABELS, name="tiny", seed=1)
    assert not torch.equal(first.train.inputs, other.train.inputs)


def test_statistics_come_from_the_training_part_alone() -> None:
    raw = split(INPUTS, LABELS, INPUTS + 1000, LABELS, name="tiny", normalise=False)
    data = split(INPUTS, LABELS, INPUTS + 1000, LABELS, name="tiny")
    mean = raw.train.inputs.double().mean()
    deviation = raw.train.inputs.double().std(correction=0)
    assert data.test is not None and raw.test is not None
    for part, raw_part in [
        (data.train, raw.train),
        (data.validation, raw.validation),
        (data.test, raw.test),
    ]:
        expected = ((raw_part.inputs.double() - mean) / deviation).float()
        torch.testing.assert_close(part.inputs, expected)
    assert abs(float(data.train.inputs.mean())) < 1e-6


def test_arguments_are_left_as_they_were() -> None:
    inputs, test_inputs = INPUTS.clone(), INPUTS.clone()
    split(inputs, LABELS, test_inputs, LABELS, name="tiny")
    assert torch.equal(inputs, INPUTS)
    assert torch.equal(test_inputs, INPUTS)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.float16, np.float64])
def test_numpy_arrays_of_any_number_type_are_converted(dtype: type) -> None:
    inputs: np.ndarray = INPUTS.numpy().astype(dtype)
    inputs.flags.writeable = False
    data = split(inputs, LABELS.numpy().astype(np.uint8), name="tiny")
    assert (data.train.inputs.dtype, data.train.labels.dtype) == (torch.float32, torch.int64)
    assert torch.equal(data.train.inputs, split(INPUTS, LABELS, name="tiny").train.inputs)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((INPUTS, LABELS[:-1]), r"one label for each of the 100 inputs.*\(99,\)"),
        ((INPUTS, LABELS[:, None]), r"labels of shape \(100, 1\)"),
        ((INPUTS[:0], LABELS[:0]), r"none of them 0, found \(0, 2\)"),
        ((INPUTS[:, 0], LABELS), r"\(examples, features\)"),
        ((INPUTS[:1], LABELS[:1]), "1 examples cannot give 10% to validation"),
        ((INPUTS, LABELS.float()), r"integer labels, found torch.float32; .*labels.long\(\)"),
        ((INPUTS, LABELS > 2), "integer labels, found torch.bool"),
        ((INPUTS, LABELS - 1), "labels count from 0, found -1"),
        ((INPUTS.index_fill(0, torch.tensor(7), torch.nan), LABELS), "NaN.*example 7"),
        ((INPUTS.index_fill(0, torch.tensor(9), -torch.inf), LABELS), "infinity.*example 9"),
        ((INPUTS.double() * 1e300, LABELS), "beyond float32, first in example 0"),
        ((torch.ones(100, 2), LABELS), "standard deviation 0"),
        ((INPUTS.to(torch.complex64), LABELS), "complex"),
        ((INPUTS.tolist(), LABELS), "a tensor or a numpy array, found a list of 100"),
        ((np.array(["a"] * 100), LABELS), "expected numbers, found an array of <U1"),
        ((INPUTS, LABELS, INPUTS), "both test inputs and test labels"),
        ((INPUTS, LABELS, INPUTS[:, :1], LABELS), r"test part: expected .*\(2,\).*\(1,\)"),
        ((INPUTS, LABELS, INPUTS, LABELS[:3]), "test set: expected one label"),
    ],
)
def test_bad_data_is_told_in_one_sentence(arguments: tuple, words: str) -> None:
    with pytest.raises(DataError, match=f"data 'tiny', .*{words}|data 'tiny': .*{words}"):
        split(*arguments, name="tiny")


@pytest.mark.parametrize("fraction", [0, 1, -0.5, float("nan")])
def test_validation_fraction_lies_between_0_and_1(fraction: float) -> None:
    with pytest.raises(DataError, match="validation_fraction"):
        split(INPUTS, LABELS, name="tiny", validation_fraction=fraction)


def test_data_checks_its_parts() -> None:
    good = Split(INPUTS, LABELS)
    assert Data("mine", (INPUTS, LABELS), good, None).train.inputs is INPUTS  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"'mine', validation part.*float32.*float64"):
        Data("mine", good, Split(INPUTS.double(), LABELS), None)
    with pytest.raises(DataError, match="test part: expected a Split"):
        Data("mine", good, good, INPUTS)  # type: ignore[arg-type]


def test_as_data_accepts_data_and_tuples_of_2_or_4() -> None:
    data = split(INPUTS, LABELS, name="tiny")
    assert as_data(data, "other") is data
    pair = as_data((INPUTS, LABELS), "mine")
    assert pair.name == "mine"
    assert torch.equal(pair.train.inputs, data.train.inputs)
    four = as_data([INPUTS, LABELS, INPUTS, LABELS], "mine")
    assert four.test is not None and len(four.test.inputs) == 100


@pytest.mark.parametrize("value", [None, INPUTS, (INPUTS,), (INPUTS, LABELS, INPUTS), (1, 2), {}])
def test_as_data_says_what_it_accepts(value: object) -> None:
    with pytest.raises(DataError, match=r"expected a reefknot.lab.zoo.Data, or a tuple"):
        as_data(value, "mine")
