"""Counting numbers in bins, and k-means on what was counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from reefknot import kmeans1d
from reefknot.kernels.histogram import Histogram
from reefknot.kernels.kmeans1d import MANY

numbers = arrays(
    np.float32,
    st.integers(1, 50),
    elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=True),
)


@given(values=numbers)
def test_bins_hold_every_number_once_and_ascend_with_them(values):
    bins = Histogram.of(values)
    if bins is None:
        assert not values.any()
        return
    assert bins.counts.sum() == len(values)
    assert np.all(np.diff(bins.means) >= 0)
    where = bins.spread(np.arange(len(bins.counts)))
    assert np.all(np.diff(where[np.argsort(values, kind="stable")].astype(int)) >= 0)
    largest = np.abs(values.astype(float)).max()
    for k, mean in enumerate(bins.means):
        inside = values[where == k].astype(float)
        assert len(inside) == bins.counts[k]
        assert mean == pytest.approx(inside.mean(), rel=1e-9, abs=largest * 1e-12)
        width = inside.max() - inside.min()
        assert width <= max(2.0**-10 * np.abs(inside).max(), 2.0**-19 * largest)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("k", "kind"), [(17, "normal"), (64, "outliers"), (256, "normal")])
def test_many_numbers_are_clustered_within_a_thousandth_of_the_optimum(dtype, k, kind):
    values = np.random.default_rng(k).normal(size=60_000).astype(dtype)
    assert len(values) >= MANY
    if kind == "outliers":
        values[:3] = [300, -500, 1000]
    best = kmeans1d(values, k, exact=True)
    found = kmeans1d(values, k)

    def cost(result):
        return ((values - result.centers[result.assignment]) ** 2).sum(dtype=float)

    assert cost(found) <= 1.001 * cost(best)
    for cluster in range(k):
        inside = values[found.assignment == cluster].astype(float)
        assert found.centers[cluster] == pytest.approx(inside.mean(), rel=1e-6)


def test_many_copies_of_few_numbers_come_back_unchanged():
    values = np.repeat(np.array([1.0, 1.0001, 1.0002, -3.0], np.float32), MANY)
    found = kmeans1d(values, 8)
    assert found.centers.tolist() == sorted(set(values.astype(float).tolist()))


def test_numbers_in_a_narrow_band_are_not_merged_by_coarse_bins():
    values = np.linspace(1, 1.001, MANY, dtype=np.float32)
    centers = kmeans1d(values, 4).centers
    assert centers.tolist() == pytest.approx([1.000125, 1.000375, 1.000625, 1.000875], abs=1e-6)


def test_all_zeros_have_one_center():
    assert kmeans1d(np.zeros(MANY, np.float32), 5).centers.tolist() == [0.0]
