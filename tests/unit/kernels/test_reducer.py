"""Numbers in several places give what they give in one: here the places are threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from reefknot import kmeans1d
from reefknot.kernels.kmeans1d import COUNTED_FROM, counted, kmeans1d_of_parts
from reefknot.kernels.reducer import order_statistic

finite = st.floats(-1e6, 1e6, width=32)


class Table:
    """Where the places meet: each puts down what it has, and all look at it."""

    def __init__(self, places):
        self.barrier = threading.Barrier(places, timeout=60)
        self.found = [None] * places

    def exchanged(self, place, value):
        self.found[place] = value
        self.barrier.wait()
        found = list(self.found)
        self.barrier.wait()
        return found


class Place:
    def __init__(self, table, number):
        self.table, self.number = table, number

    def total(self, counts):
        return np.sum(self.table.exchanged(self.number, counts), axis=0)

    def largest(self, magnitude):
        return max(self.table.exchanged(self.number, magnitude))

    def merged(self, points, counts):
        found = self.table.exchanged(self.number, (points, counts))
        both = [np.concatenate(row) for row in zip(*found, strict=True)]
        points, where = np.unique(both[0], return_inverse=True)
        return points, np.bincount(where, both[1]).astype(np.int64)


def in_places(function, parts):
    """What each place gives."""
    table = Table(len(parts))
    with ThreadPoolExecutor(len(parts)) as pool:
        running = [pool.submit(function, p, Place(table, n)) for n, p in enumerate(parts)]
        return [each.result() for each in running]


@settings(max_examples=30)
@given(
    numbers=arrays(np.float32, st.integers(1, 60), elements=finite),
    cuts=st.lists(st.integers(0, 60), max_size=3),
    k=st.integers(1, 6),
    distance=st.sampled_from(["l2", "l1"]),
)
def test_few_numbers_are_clustered_alike_wherever_they_are(numbers, cuts, k, distance):
    parts = np.split(numbers, sorted(cuts))
    found = in_places(lambda n, p: kmeans1d_of_parts(n, k, p, distance=distance), parts)
    whole = kmeans1d(numbers, k, distance=distance)
    assert np.array_equal(np.concatenate([f.assignment for f in found]), whole.assignment)
    assert all(np.array_equal(f.centers, whole.centers) for f in found)


@pytest.mark.parametrize("cuts", [[7], [0, COUNTED_FROM // 2, COUNTED_FROM]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_numbers_are_clustered_alike_wherever_they_are(cuts, dtype):
    numbers = np.random.default_rng(0).normal(size=COUNTED_FROM).astype(dtype)
    parts = np.split(numbers, cuts)
    found = in_places(lambda n, p: kmeans1d_of_parts(n, 9, p), parts)
    whole = kmeans1d(numbers, 9)
    assert np.array_equal(np.concatenate([f.assignment for f in found]), whole.assignment)
    assert all(np.array_equal(f.centers, whole.centers) for f in found)
    for row in in_places(counted, parts):
        assert np.array_equal(row.points, counted(numbers).points)
        assert np.array_equal(row.counts, counted(numbers).counts)


@settings(max_examples=50)
@given(
    numbers=st.sampled_from([np.float32, np.float64]).flatmap(
        lambda dtype: arrays(dtype, st.integers(1, 40), elements=st.floats(0, 1e6, width=32))
    ),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    data=st.data(),
)
def test_the_number_at_a_place_is_found_wherever_it_is(numbers, cuts, data):
    place = data.draw(st.integers(0, len(numbers) - 1))
    expected = float(np.sort(numbers)[place])
    assert order_statistic(numbers, place) == expected
    parts = np.split(numbers, sorted(cuts))
    assert in_places(lambda n, p: order_statistic(n, place, p), parts) == [expected] * len(parts)


def test_few_numbers_are_counted_one_by_one():
    points, counts = counted(np.array([2.0, -1.0, 2.0], np.float32))
    assert (points.tolist(), counts.tolist()) == ([-1.0, 2.0], [1, 2])
