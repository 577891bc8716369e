"""Soft tying, refit and hard tying, worked by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from reefknot.errors import DivergedError, TyingError
from reefknot.tying import gradients, kmeans, statistics
from reefknot.tying.group import Group
from reefknot.tying.selection import Named


def group_of(*rows, k=3, distance="l2", dtype=torch.float64):
    parameters = [nn.Parameter(torch.tensor(row, dtype=dtype)) for row in rows]
    return Group("network", [Named(f"p{n}", p) for n, p in enumerate(parameters)], k, distance)


def values(group):
    return [p.detach().tolist() for p in group.members.values()]


def assigned(group):
    return [group.assignment(name).tolist() for name in group.members]


def test_first_centers_are_spread_evenly_over_the_range():
    group = group_of([0.0, 1.0], [3.0, 4.0])
    kmeans.start(group, "even")
    assert group.centers.tolist() == [0.0, 2.0, 4.0]  # not the means: no k-means has run
    assert assigned(group) == [[0, 0], [1, 2]]  # 1 and 3 lie half way: the lower center
    assert group.counts.tolist() == [2, 1, 1]


def test_first_centers_by_kmeans_are_means():
    group = group_of([0.0, 1.0, 10.0, 20.0])
    kmeans.start(group, "kmeans")
    assert group.centers.tolist() == [0.5, 10.0, 20.0]


def test_the_pull_is_towards_the_own_center_and_towards_zero():
    group = group_of([0.0, 1.0, 3.0, -1.0], k=2)
    kmeans.start(group, "even")  # centers -1 and 3; 1 lies half way
    grad = torch.tensor([10.0, 10.0, 10.0, 10.0], dtype=torch.float64)
    gradients.add_pull_(group, {"p0": grad}, 0.5, 0.25)
    # 0: 0.5*(0+1) = 0.5, sign 0; 1: 0.5*(1+1) + 0.25; 3: 0 + 0.25; -1: 0 - 0.25
    assert grad.tolist() == [10.5, 11.25, 10.25, 9.75]


def test_refreshing_moves_centers_to_means_and_keeps_the_assignment():
    group = group_of([0.0, 1.0, 4.0], k=2)
    kmeans.start(group, "even")
    with torch.no_grad():
        group.members["p0"].copy_(torch.tensor([5.0, 6.0, -7.0]))
    group.refresh()
    assert assigned(group) == [[0, 0, 1]]
    assert group.centers.tolist() == pytest.approx([5.5, -7.0], abs=1e-12)


def test_an_empty_cluster_keeps_its_center_until_the_refit_moves_it():
    group = group_of([0.0, 0.5, 10.0, 12.0])  # centers 0, 6, 12: 6 has no weight
    kmeans.start(group, "even")
    assert group.counts.tolist() == [2, 0, 2]
    group.refresh()
    assert group.centers.tolist() == [0.25, 6.0, 11.0]
    kmeans.refit(group)
    # {0, 0.5} and {10, 12}: 10 and 12 are both 1 from their mean, the lower is taken.
    assert group.centers.tolist() == [0.25, 10.0, 12.0]
    assert np.all(np.isfinite(group.centers))


def test_refit_tells_the_share_of_changed_assignments():
    group = group_of([0.0, 1.0, 9.0, 10.0], k=2)
    kmeans.start(group, "even")
    with torch.no_grad():
        group.members["p0"].copy_(torch.tensor([0.0, 9.5, 9.0, 10.0]))
    assert kmeans.refit(group) == 0.25
    assert assigned(group) == [[0, 1, 1, 1]]
    assert group.centers.tolist() == [0.0, 9.5]


def test_hardening_projects_and_makes_the_smallest_center_exactly_zero():
    group = group_of([0.2, 0.4, 4.0], [-5.0, 6.0])
    kmeans.start(group, "kmeans")  # {-5}, {0.2, 0.4}, {4, 6}
    group.freeze()
    assert values(group) == [[0.0, 0.0, 5.0], [-5.0, 5.0]]
    assert group.zero_cluster == 1


def test_hardening_without_a_zero_cluster_keeps_every_center():
    group = Group(
        "network", [Named("p0", nn.Parameter(torch.tensor([0.25, 0.75, 4.0])))], 2, sparse=False
    )
    kmeans.start(group, "kmeans")
    group.freeze()
    assert values(group) == [[0.5, 0.5, 4.0]]


def test_after_a_hard_step_each_weight_is_its_clusters_mean_and_zeros_stay_zero():
    group = group_of([0.1, -0.1, 4.0, 4.0, -3.0])
    kmeans.start(group, "kmeans")
    group.freeze()
    with torch.no_grad():  # an optimizer with a memory for each weight
        group.members["p0"].add_(torch.tensor([0.5, 0.0, 1.0, 2.0, -1.0]))
    group.project()
    assert values(group) == [[0.0, 0.0, 5.5, 5.5, -4.0]]


def test_zero_is_positive_zero():
    group = group_of([-0.25, 0.25, 8.0], k=2, dtype=torch.float32)
    kmeans.start(group, "kmeans")
    group.freeze()
    with torch.no_grad():
        group.members["p0"].copy_(torch.tensor([-0.0, -0.0, 8.0]))
    group.project()
    assert not torch.signbit(group.members["p0"]).any()


def test_medians_are_lower_medians():
    group = group_of([0.0, 1.0, 5.0, 20.0, 30.0], k=2, distance="l1")
    kmeans.start(group, "kmeans")
    assert group.centers.tolist() == [1.0, 20.0]
    with torch.no_grad():
        group.members["p0"].copy_(torch.tensor([3.0, 2.0, 9.0, 21.0, 33.0]))
    group.refresh()
    assert group.centers.tolist() == [3.0, 21.0]


def test_the_pull_to_a_median_has_constant_size():
    group = group_of([0.0, 1.0, 5.0], k=1, distance="l1")
    kmeans.start(group, "kmeans")  # the median is 1
    grad = torch.zeros(3, dtype=torch.float64)
    gradients.add_pull_(group, {"p0": grad}, 0.5, 0.0)
    assert grad.tolist() == [-0.5, 0.0, 0.5]


def test_a_parameter_laid_out_anew_keeps_its_assignment():
    weight = nn.Parameter(torch.randn(4, 3, 2, 2, dtype=torch.float64))
    group = Group("network", [Named("w", weight)], 5, sparse=False)
    kmeans.start(group, "kmeans")
    before = group.centers[group.assignment("w").numpy()]
    weight.data = weight.data.to(memory_format=torch.channels_last)
    group.refresh()
    after = group.centers[group.assignment("w").contiguous().numpy()]
    np.testing.assert_allclose(before, after, atol=1e-12)
    group.freeze()
    np.testing.assert_allclose(weight.detach().numpy(), before, atol=1e-12)


def test_saving_and_loading_gives_the_same_group():
    group = group_of([0.1, 2.0], [[3.0], [-1.0]])
    kmeans.start(group, "kmeans")
    group.freeze()
    other = group_of([0.0, 0.0], [[0.0], [0.0]])
    other.load_state_dict(group.state_dict())
    assert np.array_equal(other.centers, group.centers)
    assert assigned(other) == assigned(group)
    assert other.zero_cluster == group.zero_cluster
    assert other.counts.tolist() == group.counts.tolist()


def test_an_assignment_of_another_model_is_refused():
    group = group_of([0.1, 2.0, 3.0])
    kmeans.start(group, "kmeans")
    with pytest.raises(TyingError, match="another model"):
        group_of([0.1, 2.0]).load_state_dict(group.state_dict())


def test_weights_that_cannot_be_clustered_are_named():
    group = group_of([1.0], [float("nan")])
    with pytest.raises(DivergedError, match="'p1'"):
        kmeans.start(group, "even")


def test_a_sparse_start_leaves_zeros_alone_and_fits_the_others():
    weights = nn.Parameter(torch.tensor([0.0, 1.0, 1.2, 0.0, -2.0, -2.2, 5.0]))
    group = Group("g", [Named("w", weights)], num_clusters=4)
    kmeans.start_with_zero(group, "kmeans")
    group.move_to(group.centers)
    assert weights.tolist() == pytest.approx([0.0, 1.1, 1.1, 0.0, -2.1, -2.1, 5.0])
    assert group.centers[group.zero_cluster] == 0.0
    assert group.counts.tolist() == [2, 2, 2, 1]
    with torch.no_grad():
        weights += 1.0
    group.project()
    assert weights.tolist() == pytest.approx([0.0, 2.1, 2.1, 0.0, -1.1, -1.1, 6.0])


def test_zeros_are_parted_from_the_others_and_weights_stay():
    weights = nn.Parameter(torch.tensor([0.0, 1.0, 1.2, -0.3, -2.0, -2.2, 0.5, 5.0]))
    group = Group("g", [Named("w", weights)], num_clusters=4)
    kmeans.prune(group, 0.3, 4)
    assert group.centers.tolist() == pytest.approx([-2.1, 0.0, 0.9, 5.0])
    assert group.assignments["w"].tolist() == [1, 2, 2, 1, 0, 0, 2, 3]
    assert group.counts.tolist() == [2, 2, 3, 1]
    assert weights[3].item() == pytest.approx(-0.3)
    kmeans.prune(group, 0.0, 4)  # what is zero is no survivor
    assert group.counts[group.zero_cluster] == 1
    assert np.abs(group.members.weights()).tolist() == pytest.approx(
        [0.0, 1.0, 1.2, 0.3, 2.0, 2.2, 0.5, 5.0]
    )


def test_a_sparse_start_of_256_values_and_zero_needs_wider_indices():
    values = torch.cat([torch.zeros(3), torch.arange(1.0, 257.0)])
    group = Group("g", [Named("w", nn.Parameter(values.clone()))], num_clusters=257)
    kmeans.start_with_zero(group, "kmeans")
    group.move_to(group.centers)
    assert torch.equal(group.members["w"].detach(), values)


def test_a_sparse_start_of_nothing_but_zeros_is_zero():
    group = Group("g", [Named("w", nn.Parameter(torch.zeros(5)))], num_clusters=4)
    kmeans.start_with_zero(group, "even")
    group.project()
    assert group.members["w"].tolist() == [0.0] * 5


def test_gradients_are_summed_over_clusters_in_any_layout():
    weights = torch.randint(-1, 2, (4, 3, 2, 2), generator=torch.Generator().manual_seed(0)).float()
    grads = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(1)) * 100
    sums = {value: float(grads[weights == value].double().sum()) for value in (-1.0, 1.0)} | {
        0.0: 0.0
    }
    expected = torch.tensor([sums[float(w)] for w in weights.flatten()]).view(weights.shape)
    for of_weights in (torch.contiguous_format, torch.channels_last):
        for of_grads in (torch.contiguous_format, torch.channels_last):
            held = nn.Parameter(weights.to(memory_format=of_weights, copy=True))
            group = Group("g", [Named("w", held)], 3)
            kmeans.start_with_zero(group, "even")
            grad = grads.to(memory_format=of_grads, copy=True)
            gradients.share_(group, {"w": grad}, "sum")
            assert torch.allclose(grad, expected, rtol=1e-6)


def test_blocks_of_zeros_are_skipped_in_the_layout_of_the_weights_only():
    weights = torch.zeros(16, 16, 3, 3)
    weights[3, 5] = 1.0
    grads = torch.randn(16, 16, 3, 3, generator=torch.Generator().manual_seed(1))
    expected = torch.where(weights == 1, grads[3, 5].mean(), 0.0)
    for layout in (torch.contiguous_format, torch.channels_last):
        group = Group("g", [Named("w", nn.Parameter(weights.clone()))], 2)
        kmeans.start_with_zero(group, "even")
        group.freeze()
        grad = grads.to(memory_format=layout, copy=True)
        gradients.share_(group, {"w": grad}, "mean")
        assert torch.allclose(grad, expected, atol=1e-6)


def test_gradients_of_another_type_are_shared_too():
    one, other = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([2.0, 2.0]))
    group = Group("g", [Named("one", one), Named("other", other)], 2)
    kmeans.start(group, "kmeans")
    grads = {"one": torch.tensor([5.0, 1.0]), "other": torch.tensor([2.0, 6.0]).double()}
    gradients.share_(group, grads, "mean")
    assert grads["one"].tolist() == [5.0, 3.0]
    assert grads["other"].tolist() == [3.0, 3.0]
    assert grads["other"].dtype == torch.float64


def test_a_mean_gradient_is_that_of_the_gradients_that_are_there():
    one, other = nn.Parameter(torch.tensor([1.0, 0.0, 2.0])), nn.Parameter(torch.tensor([2.0, 2.0]))
    group = Group("g", [Named("one", one), Named("other", other)], 3)
    kmeans.start_with_zero(group, "even")
    grads = {"one": torch.tensor([5.0, 7.0, 1.0]), "other": torch.tensor([2.0, 6.0])}
    gradients.share_(group, grads, "mean")
    assert grads["one"].tolist() == [5.0, 0.0, 3.0]
    assert grads["other"].tolist() == [3.0, 3.0]
    part = {"other": torch.tensor([2.0, 6.0])}  # what another optimizer moves does not count
    gradients.share_(group, part, "mean")
    assert part["other"].tolist() == [4.0, 4.0]


def test_a_group_that_is_not_sparse_is_tied_but_never_zero():
    weights = nn.Parameter(torch.tensor([0.01, 0.0, 1.0, 1.1]))
    for prunes in (False, True):
        group = Group("norms", [Named("w", weights)], 2, sparse=False)
        if prunes:
            kmeans.prune(group, 0.5, 2)
        else:
            kmeans.start_with_zero(group, "kmeans")
        grad = torch.zeros(4)
        gradients.add_pull_(group, {"w": grad}, 0.0, 1.0)
        assert grad.tolist() == [0.0] * 4
        group.fix_zeros()
        group.hold_zeros()
        group.freeze()
        assert group.zero_cluster is None
        assert weights.tolist() == pytest.approx([0.005, 0.005, 1.05, 1.05])
        assert group.alive("w").all()


def test_given_clusters_are_tied_to_and_one_is_zero():
    first, second = nn.Parameter(torch.tensor([[0.3, 0.1]])), nn.Parameter(torch.tensor([0.9]))
    group = Group("g", [Named("a", first), Named("b", second)], 3)
    group.assign(np.array([0.02, 0.25, 1.0]), np.array([1, 0, 2]), zero_cluster=0)
    group.freeze()
    assert first.tolist() == [[0.25, 0.0]]
    assert second.tolist() == [1.0]
    assert group.counts.tolist() == [1, 1, 1]
    assert not list(statistics.untied(group))
