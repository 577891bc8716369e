"""1-D k-means and k-medians, against brute force and an independent exact solver."""

from itertools import combinations

import kmeans1d as oracle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reefknot import ReefknotError, kmeans1d
from reefknot.kernels.kmeans1d import nearest

small_values = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=9)


def cost(values, centers, assignment, distance="l2", weights=None):
    away = np.abs(np.asarray(values, float) - np.asarray(centers)[np.asarray(assignment)])
    weights = np.ones(len(away)) if weights is None else np.asarray(weights)
    return float((weights * (away if distance == "l1" else away**2)).sum())


def least_cost(values, k, distance, weights):
    """Try every way to cut the sorted values into at most k intervals."""
    order = np.argsort(values, kind="stable")
    v, w = np.asarray(values, float)[order], np.asarray(weights, float)[order]
    best = np.inf
    for cuts in combinations(range(1, len(v)), min(k, len(v)) - 1):
        total = 0.0
        for part in zip(np.split(v, cuts), np.split(w, cuts), strict=True):
            if part[1].sum() == 0:
                continue
            candidates = part[0] if distance == "l1" else [np.average(part[0], weights=part[1])]
            away = [np.abs(part[0] - c) for c in candidates]
            total += min((part[1] * (a if distance == "l1" else a**2)).sum() for a in away)
        best = min(best, total)
    return best


def test_two_obvious_clusters():
    centers, assignment = kmeans1d([1.0, 2.0, 10.0, 12.0], 2)
    assert centers.tolist() == [1.5, 11.0]
    assert assignment.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("distance", ["l2", "l1"])
@given(values=small_values, k=st.integers(1, 5), data=st.data())
def test_exact_is_the_true_optimum_also_with_weights(distance, values, k, data):
    count = len(values)
    weights = data.draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    found = kmeans1d(values, k, exact=True, distance=distance, weights=weights)
    best = least_cost(values, k, distance, weights)
    assert cost(values, *found, distance, weights) == pytest.approx(best, abs=1e-9)


def test_exact_agrees_with_an_independent_solver():
    values = np.random.default_rng(0).normal(size=3000)
    theirs = oracle.cluster(values.tolist(), 17)
    ours = kmeans1d(values, 17, exact=True)
    theirs_cost = cost(values, theirs.centroids, theirs.clusters)
    assert cost(values, *ours) == pytest.approx(theirs_cost, rel=1e-9)


def test_cold_start_is_within_a_thousandth_of_the_optimum_even_with_far_outliers():
    values = np.random.default_rng(1).normal(size=30_000).astype(np.float32)
    values[:3] = [50, -80, 200]
    best = cost(values, *kmeans1d(values, 17, exact=True))
    assert cost(values, *kmeans1d(values, 17)) <= 1.001 * best


@given(values=small_values, k=st.integers(1, 6), distance=st.sampled_from(["l2", "l1"]))
def test_every_result_is_sorted_full_and_made_of_its_own_means(values, k, distance):
    centers, assignment = kmeans1d(values, k, distance=distance, centers=[0.0])
    assert np.all(np.diff(centers) > 0)
    assert len(centers) == min(k, len(set(values)))
    for cluster, center in enumerate(centers):
        inside = np.sort(np.asarray(values)[assignment == cluster])
        expected = inside[(len(inside) - 1) // 2] if distance == "l1" else inside.mean()
        assert center == pytest.approx(expected)
    # Sorted values have sorted clusters.
    assert np.all(np.diff(assignment[np.argsort(values, kind="stable")].astype(int)) >= 0)


def test_warm_start_continues_from_the_given_centers():
    # From 0 and 9, the value 4 belongs to 0, then its cluster's mean is 2 and nothing moves any
    # more; the true optimum {0}, {4, 9, 10} or {0, 4}, {9, 10} is the latter here.
    centers, _ = kmeans1d([0.0, 4.0, 9.0, 10.0], 2, centers=[0.0, 9.0])
    assert centers.tolist() == [2.0, 9.5]


def test_one_iteration_moves_centers_once():
    # Nearest to 0 is {0, 1}, nearest to 3 is {2, 10}; then 0.5 and 6, and {0, 1, 2}, {10}.
    centers, assignment = kmeans1d([0.0, 1.0, 2.0, 10.0], 2, centers=[0.0, 3.0], max_iterations=1)
    assert assignment.tolist() == [0, 0, 0, 1]
    assert centers.tolist() == [1.0, 10.0]


def test_an_empty_cluster_moves_to_the_value_that_is_served_worst():
    # The center 100 serves nothing. The others converge to {0, 1} and {10, 16}; the worst served
    # values are 10 and 16, both 3 away, and the lower one is taken.
    centers, assignment = kmeans1d([0.0, 1.0, 10.0, 16.0], 3, centers=[0.0, 13.0, 100.0])
    assert centers.tolist() == [0.5, 10.0, 16.0]
    assert assignment.tolist() == [0, 0, 1, 2]


def test_weights_count_as_repetitions():
    plain = kmeans1d([0.0, 0.0, 0.0, 4.0, 5.0], 2, exact=True)
    weighted = kmeans1d([0.0, 4.0, 5.0], 2, weights=[3, 1, 1], exact=True)
    assert plain.centers.tolist() == weighted.centers.tolist()


def test_a_value_of_weight_zero_is_assigned_but_does_not_count():
    centers, assignment = kmeans1d([0.0, 1.0, 100.0], 2, weights=[1, 1, 0])
    assert centers.tolist() == [0.0, 1.0]
    assert assignment.tolist() == [0, 1, 1]


def test_one_cluster_is_the_mean_or_the_median():
    assert kmeans1d([1.0, 2.0, 6.0], 1).centers.tolist() == [3.0]
    assert kmeans1d([1.0, 2.0, 6.0], 1, distance="l1").centers.tolist() == [2.0]


def test_constant_input_and_more_clusters_than_values_give_the_values_themselves():
    assert kmeans1d([3.0, 3.0, 3.0], 5).centers.tolist() == [3.0]
    found = kmeans1d([2.0, 1.0, 2.0], 5)
    assert found.centers.tolist() == [1.0, 2.0]
    assert found.assignment.tolist() == [1, 0, 1]


def test_the_assignment_has_the_shape_of_the_values():
    assert kmeans1d(np.arange(12.0).reshape(3, 4), 2).assignment.shape == (3, 4)


def test_many_clusters_need_a_wider_type():
    found = kmeans1d(np.arange(1000.0), 300)
    assert len(found.centers) == 300
    assert found.assignment.max() == 299


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, np.nan], 2), "1 of 2 are not"),
        (([1.0, np.inf], 2), "finite"),
        (([], 2), "no values"),
        (([1.0], 0), "at least 1"),
    ],
)
def test_impossible_input_is_refused_in_a_sentence(arguments, message):
    with pytest.raises(ReefknotError, match=message):
        kmeans1d(*arguments)


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [0.0, 0.0], [1.0, np.nan]])
def test_impossible_weights_are_refused(weights):
    with pytest.raises(ReefknotError, match="weights"):
        kmeans1d([1.0, 2.0], 2, weights=weights)


def test_nearest_takes_the_lower_center_half_way():
    assert nearest([0.0, 1.0, 1.5, 2.0], np.array([0.0, 2.0])).tolist() == [0, 0, 1, 1]


def test_a_far_outlier_spoils_no_other_center():
    values = np.append(np.random.default_rng(0).normal(size=1000), 1e20)
    centers, assignment = kmeans1d(values, 4)
    for k, center in enumerate(centers):
        assert center == pytest.approx(values[assignment == k].mean(), rel=1e-9)


@pytest.mark.parametrize("unit", [1e-300, 1e-200, 1e150, 1e307])
@pytest.mark.parametrize("exact", [False, True])
def test_numbers_of_any_magnitude_are_clustered_alike(unit, exact):
    values = np.array([1.0, 2.0, 7.0, 8.0, 15.0, 16.0])
    centers, assignment = kmeans1d(values * unit, 3, exact=exact)
    assert (centers / unit).tolist() == pytest.approx([1.5, 7.5, 15.5])
    assert assignment.tolist() == [0, 0, 1, 1, 2, 2]


def test_the_largest_numbers_there_are_do_not_overflow():
    most = np.finfo(float).max
    values = np.append(np.linspace(-1, 1, 40), [1, 0.9]) * most
    assert np.all(np.isfinite(kmeans1d(values, 9, centers=[0.0]).centers))
    assert kmeans1d(values, 1).centers[0] == pytest.approx(1.9 / 42 * most)


def test_huge_weights_do_not_overflow():
    found = kmeans1d([1.0, 2.0, 9.0], 2, weights=np.full(3, 1e308))
    assert found.centers.tolist() == [1.5, 9.0]


def test_more_centers_to_start_from_than_clusters_are_refused():
    with pytest.raises(ReefknotError, match="from 1 to 2 finite centers"):
        kmeans1d(np.arange(10.0), 2, centers=[1, 2, 3, 4])


def test_every_cluster_is_used_where_lloyd_does_not_settle():
    values = np.random.default_rng(0).standard_t(2, 20_000)
    even = np.linspace(values.min(), values.max(), 64)
    assert len(kmeans1d(values, 64, centers=even).centers) == 64


def test_the_median_of_an_even_number_is_the_lower_one_beside_heavier_points():
    # 3/8 stands three times; the two points before it share a cluster, and 0 is its lower median.
    found = kmeans1d([0.0, 1 / 8, -0.25, 3 / 8, 3 / 8, 3 / 8], 3, distance="l1", centers=[0.0])
    assert found.centers.tolist() == [-0.25, 0.0, 3 / 8]
