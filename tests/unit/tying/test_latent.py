"""The model runs on tied values, the optimizer moves latent weights."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reefknot.tying import kmeans
from reefknot.tying.group import Group
from reefknot.tying.latent import LatentWeights, value_bits


def group_of(values, centers, clusters, zero, layout=torch.contiguous_format):
    weights = torch.tensor(values).to(memory_format=layout)
    group = Group("all", [("w", nn.Parameter(weights.clone()))], len(centers))
    group.assign(np.array(centers), np.array(clusters), zero)
    group.freeze()
    with torch.no_grad():
        group.members["w"].copy_(weights)
    return group


def test_bits_of_a_value_follow_its_share_of_the_non_zeros():
    # Half a weight more each: 3.5, 1.5 and 0.5 of 5.5; zeros are not counted.
    bits = value_bits(np.array([3, 4, 1, 0]), zero=1)
    shares = [3.5 / 5.5, 1.0, 1.5 / 5.5, 0.5 / 5.5]
    assert bits == pytest.approx([-math.log2(share) for share in shares])


def test_without_a_zero_cluster_every_value_has_its_share():
    assert value_bits(np.array([3, 1]), zero=None) == pytest.approx(
        [-math.log2(3.5 / 5), -math.log2(1.5 / 5)]
    )


@given(
    st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=20),
    st.lists(st.floats(-2, 2, width=32).filter(bool), min_size=1, max_size=6, unique=True),
    st.floats(0, 1),
)
def test_each_weight_goes_where_it_is_cheapest(values, centers, price):
    centers = sorted({*centers, 0.0})
    zero = centers.index(0.0)
    other = (zero + 1) % len(centers)
    group = group_of(values, centers, [other] * len(values), zero)
    latent = LatentWeights(group)
    bits, places = value_bits(latent.counts, zero), latent._place_bits.tolist()
    latent.tie(price)
    for w, k, place in zip(values, latent.clusters.tolist(), places, strict=True):
        costs = [
            w * w if n == zero else (w - c) ** 2 + price * (bits[n] + place)
            for n, c in enumerate(centers)
        ]
        assert costs[k] == pytest.approx(min(costs), abs=1e-5)


def test_the_model_runs_on_means_and_the_latent_weights_come_back():
    group = group_of([-1.0, -0.8, 0.0, 0.3, 0.7], [-1.0, 0.0, 0.5], [0, 0, 1, 2, 2], zero=1)
    latent = LatentWeights(group)
    latent.tie(0.0)
    # 0.3 is nearer to 0.5 than to 0; the means are -0.9 and 0.5.
    assert group.members["w"].tolist() == pytest.approx([-0.9, -0.9, 0.0, 0.5, 0.5])
    latent.put({}, 0.0)
    assert group.members["w"].tolist() == pytest.approx([-1.0, -0.8, 0.0, 0.3, 0.7])
    with torch.no_grad():
        group.members["w"].copy_(torch.tensor([-1.0, -0.8, 9.0, 0.2, 0.7]))  # an optimizer's step
    latent.take()
    latent.tie(0.0)
    # 0.2 is nearer to 0 now, and what was fixed at zero stays there wherever it was moved.
    assert group.members["w"].tolist() == pytest.approx([-0.9, -0.9, 0.0, 0.0, 0.7])
    assert group.counts.tolist() == [2, 2, 1]
    with torch.no_grad():
        latent.put({}, 0.0)
        group.members["w"][3] = 0.6  # its gradient asks for it again
    latent.take()
    latent.tie(0.0)
    assert group.members["w"].tolist() == pytest.approx([-0.9, -0.9, 0.0, 0.65, 0.65])


def test_a_weight_that_is_not_worth_its_bits_becomes_zero():
    values = [1.0, 1.0, 1.0, 0.3, 0.0, 0.0, 0.0, 0.0]
    group = group_of(values, [0.0, 0.3, 1.0], [2, 2, 2, 1, 0, 0, 0, 0], zero=0)
    latent = LatentWeights(group)
    latent.tie(1e-6)
    assert group.members["w"].tolist() == pytest.approx(values)
    latent.tie(0.1)  # some bits at 0.1 each are more than 0.3² = 0.09, and far less than 1
    assert group.members["w"].tolist() == pytest.approx([1.0, 1.0, 1.0, 0, 0, 0, 0, 0])


def test_images_laid_out_channels_last_keep_their_places():
    values = np.arange(1.0, 17.0).reshape(2, 2, 2, 2)
    plain = group_of(values, [0.0, 4.0, 12.0], [1] * 8 + [2] * 8, zero=0)
    # In memory the channels of a pixel come first; clusters are given in that order.
    first = np.transpose(values, (0, 2, 3, 1)).ravel()
    clusters = [1 if value <= 8 else 2 for value in first]
    other = group_of(values, [0.0, 4.0, 12.0], clusters, zero=0, layout=torch.channels_last)
    for group in (plain, other):
        LatentWeights(group).tie(0.0)
    assert torch.equal(plain.members["w"], other.members["w"])
    assert plain.members["w"].unique().tolist() == [0.0, 5.5, 12.5]  # 1 and 2, 3 to 8, 9 to 16


def test_a_group_without_zeros_has_a_latent_weight_behind_each_weight():
    group = Group("norms", [("w", nn.Parameter(torch.tensor([0.9, 1.0, 1.1, 2.0])))], 2)
    kmeans.start(group, "kmeans")
    latent = LatentWeights(group)
    latent.tie(0.0)
    assert group.members["w"].tolist() == pytest.approx([1.0, 1.0, 1.0, 2.0])
    latent.put({}, 0.0)
    assert group.members["w"].tolist() == pytest.approx([0.9, 1.0, 1.1, 2.0])


def test_the_pull_is_that_of_the_latent_weights():
    group = group_of([-1.0, 0.0, 0.8, 1.2], [-1.0, 0.0, 1.0], [0, 1, 2, 2], zero=1)
    latent = LatentWeights(group)
    latent.tie(0.0)
    grad = torch.full((4,), 0.5)
    latent.put({"w": grad}, 0.1)
    assert grad.tolist() == pytest.approx([0.5, 0.5, 0.48, 0.52])


def test_the_value_with_the_largest_error_becomes_two():
    values = [-1.0, 0.0, 0.4, 0.6, 2.0, 2.2, 0.1]
    group = group_of(values, [-1.0, 0.0, 1.3], [0, 1, 2, 2, 2, 2, 1], zero=1)
    latent = LatentWeights(group)
    error = latent.error()
    assert error[:2] == pytest.approx([0, 0])
    assert error[2] == pytest.approx(sum((v - 1.3) ** 2 for v in (0.4, 0.6, 2.0, 2.2)))
    latent.split()
    away = math.sqrt(error[2] / 4)
    assert group.centers == pytest.approx([-1, 0, 1.3 - away, 1.3 + away])
    assert (group.zero_cluster, group.num_clusters, int(latent.counts.sum())) == (1, 4, 5)
    latent.tie(0.0)
    assert group.clusters().tolist() == [0, 1, 2, 2, 3, 3, 1]
    assert group.centers == pytest.approx([-1, 0, 0.5, 2.1])
    assert group.members["w"].tolist() == pytest.approx([-1, 0, 0.5, 0.5, 2.1, 2.1, 0])


def test_clusters_below_a_split_value_keep_their_numbers_and_zero_moves_up():
    group = group_of([-3.0, -1.0, 0.0, 1.0], [-2.0, 0.0, 1.0], [0, 0, 1, 2], zero=1)
    latent = LatentWeights(group)
    latent.split()
    latent.tie(0.0)
    assert group.zero_cluster == latent.zero == 2
    assert group.clusters().tolist() == [0, 1, 2, 3]
    assert group.members["w"].tolist() == [-3, -1, 0, 1]
