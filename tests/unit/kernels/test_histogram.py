"""Counting numbers in bins, and k-means on what was counted."""

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from reefknot import kmeans1d
from reefknot.kernels.histogram import (
    POWERS,
    Bins,
    Histogram,
    InMemory,
    has_powers,
    work_on,
)
from reefknot.kernels.kmeans1d import COUNTED_FROM

numbers = arrays(
    np.float32,
    st.integers(1, 50),
    elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=True),
)


def in_memory(values, assignment=None, threads=1):
    return InMemory(work_on(values, assignment), values.dtype, threads)


def counted(values):
    bins = Bins(values.dtype, float(np.abs(values).max()), 10)
    return Histogram(bins, in_memory(values).cells(bins))


@given(values=numbers)
@example(values=np.array([2.0**-105, 2.5e-44, -2.5e-44, 0], np.float32))
@example(values=np.array([2.0**126, -1e38, 0], np.float32))
def test_bins_hold_every_number_once_and_ascend_with_them(values):
    assume(has_powers(values.dtype, float(np.abs(values).max())))
    found = counted(values)
    assert found.counts.sum() == len(values)
    assert np.all(np.diff(found.means) > 0)
    where = np.empty(len(values), np.uint8)
    table = found.table(np.arange(len(found.counts)), 256)
    in_memory(values, where).spread(found.bins, table)
    assert np.all(np.diff(where[np.argsort(values, kind="stable")].astype(int)) >= 0)
    largest = np.abs(values.astype(float)).max()
    for k, mean in enumerate(found.means):
        inside = values[where == k].astype(float)
        assert len(inside) == found.counts[k]
        assert mean == pytest.approx(inside.mean(), rel=1e-9, abs=largest * 2.0**-20)
        width = inside.max() - inside.min()
        assert width <= max(2.0**-10 * np.abs(inside).max(), 2.0**-19 * largest)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_there_are_no_bins_at_the_ends_of_a_type(dtype):
    limits = np.finfo(dtype)
    lowest, highest = limits.tiny * dtype(2) ** POWERS, limits.max / 2
    for largest in (lowest, dtype(1), highest):
        assert has_powers(np.dtype(dtype), float(largest))
    for largest in (0, limits.smallest_subnormal, np.nextafter(lowest, dtype(0)), limits.max):
        assert not has_powers(np.dtype(dtype), float(largest))
    for largest in (np.inf, np.nan):
        assert not has_powers(np.dtype(dtype), largest)


@pytest.mark.parametrize("power", [-129, -127, -100, 126, 127])
def test_many_numbers_of_any_magnitude_are_clustered_alike(power):
    spread = 0.02 * np.random.default_rng(0).standard_t(2, COUNTED_FROM)
    most = 2 - 2.0**-23
    values = np.ldexp(np.append(spread.clip(-most, most), most), power).astype(np.float32)

    def cost(result):
        return ((np.ldexp(values.astype(float), -power) - result) ** 2).sum()

    centers, assignment = kmeans1d(values, 16)
    best = kmeans1d(values.astype(float), 16, exact=True)
    assert cost(np.ldexp(centers, -power)[assignment]) <= 1.001 * cost(
        np.ldexp(best.centers, -power)[best.assignment]
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_means_of_bins_are_the_means_of_what_is_in_them(dtype):
    values = np.random.default_rng(3).normal(size=50_000).astype(dtype)
    found = counted(values)
    where = np.empty(len(values), np.int32)
    table = found.table(np.arange(len(found.counts)), 1 << 20)
    in_memory(values, where).spread(found.bins, table)
    means = np.bincount(where, values.astype(float)) / np.bincount(where)
    np.testing.assert_allclose(found.means, means, rtol=2.0**-30, atol=2.0**-20 * 5)


@given(cuts=st.lists(st.integers(0, 30_000), max_size=3), threads=st.integers(1, 3))
def test_histograms_of_parts_add_up_to_that_of_the_whole(cuts, threads):
    values = np.random.default_rng(0).normal(size=30_000).astype(np.float32)
    bins = Bins(values.dtype, float(np.abs(values).max()), 10)
    parts = [part for part in np.split(values, sorted(cuts)) if len(part)]
    found = [in_memory(np.ascontiguousarray(p), None, threads).cells(bins) for p in parts]
    assert np.array_equal(sum(found), counted(values).cells)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("worst", [-7.5, 7.5, np.inf, -np.inf, np.nan])
def test_the_largest_magnitude_is_found_and_so_is_what_is_not_finite(dtype, worst):
    values = np.random.default_rng(0).normal(size=20_000).astype(dtype)
    values[12_345] = worst
    np.testing.assert_equal(in_memory(values, None, 2).largest(), abs(worst))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("k", "kind"), [(17, "normal"), (64, "outliers"), (256, "normal")])
def test_many_numbers_are_clustered_within_a_thousandth_of_the_optimum(dtype, k, kind):
    values = np.random.default_rng(k).normal(size=60_000).astype(dtype)
    assert len(values) >= COUNTED_FROM
    if kind == "outliers":
        values[:3] = [300, -500, 1000]
    best = kmeans1d(values, k, exact=True)
    found = kmeans1d(values, k)

    def cost(result):
        return ((values - result.centers[result.assignment]) ** 2).sum(dtype=float)

    assert cost(found) <= 1.001 * cost(best)
    for cluster in range(k):
        inside = values[found.assignment == cluster].astype(float)
        tiny = 2.0**-20 * float(np.abs(values).max())  # what is smaller is counted as zero
        assert found.centers[cluster] == pytest.approx(inside.mean(), rel=1e-6, abs=tiny)


def test_many_copies_of_few_numbers_come_back_unchanged():
    values = np.repeat(np.array([1.0, 1.0001, 1.0002, -3.0], np.float32), COUNTED_FROM)
    found = kmeans1d(values, 8)
    assert found.centers.tolist() == sorted(set(values.astype(float).tolist()))


def test_numbers_in_a_narrow_band_are_not_merged_by_coarse_bins():
    values = np.linspace(1, 1.001, COUNTED_FROM, dtype=np.float32)
    centers = kmeans1d(values, 4).centers
    assert centers.tolist() == pytest.approx([1.000125, 1.000375, 1.000625, 1.000875], abs=1e-6)


def test_all_zeros_have_one_center():
    assert kmeans1d(np.zeros(COUNTED_FROM, np.float32), 5).centers.tolist() == [0.0]
