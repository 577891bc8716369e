"""The cheapest of a few values, each with a price of its own."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from reefknot.kernels.intervals import cheapest

small = st.floats(-4, 4, width=32)


def chosen(numbers, values, prices):
    found, edges = cheapest(values, prices)
    return found[np.searchsorted(edges, numbers)]


@given(
    arrays(np.float64, 7, elements=small, unique=True).map(np.sort),
    arrays(np.float64, 7, elements=st.floats(0, 4, width=32)),
    arrays(np.float64, 20, elements=small),
)
def test_no_value_is_cheaper_than_the_chosen_one(values, prices, numbers):
    cost = (numbers[:, None] - values) ** 2 + prices
    own = np.take_along_axis(cost, chosen(numbers, values, prices)[:, None], 1)[:, 0]
    assert np.all(own <= cost.min(1) + 1e-9)


def test_without_prices_the_edges_are_half_way():
    found, edges = cheapest(np.array([-1.0, 0.0, 3.0]), np.zeros(3))
    assert found.tolist() == [0, 1, 2]
    assert edges.tolist() == [-0.5, 1.5]


def test_a_value_that_is_too_dear_is_left_out():
    found, edges = cheapest(np.array([-1.0, 0.0, 1.0]), np.array([0.0, 1.5, 0.0]))
    assert found.tolist() == [0, 2]
    assert edges.tolist() == [0.0]


def test_of_equal_values_the_cheapest_is_kept():
    found, edges = cheapest(np.array([0.5, 0.5, 0.5]), np.array([2.0, 1.0, 3.0]))
    assert found.tolist() == [1]
    assert edges.tolist() == []


def test_no_values():
    found, edges = cheapest(np.zeros(0), np.zeros(0))
    assert len(found) == len(edges) == 0
