"""What the simple methods promise beyond the contract: L1 and L2, magnitudes, random tying."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reefknot import ConfigError, RandomTying
from reefknot.lab.baselines import L2, L1Threshold, MagnitudeKmeans

INPUTS = torch.randn(32, 6, generator=torch.Generator().manual_seed(5))
LABELS = torch.randint(0, 3, (32,), generator=torch.Generator().manual_seed(6))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def row(*values):
    layer = nn.Linear(len(values), 1, bias=False)
    layer.weight.data[0] = torch.tensor(values)
    return layer


def still(layer, optimizer, steps=1):
    """Steps of a loss that has no gradient."""
    for _ in range(steps):
        layer.weight.grad = torch.zeros_like(layer.weight)
        optimizer.step()
    return layer.weight.detach()[0].tolist()


def go(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(INPUTS), LABELS).backward()
        optimizer.step()


def test_l1_moves_weights_towards_zero():
    layer = row(1.0, -0.5, 0.05)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    L1Threshold(layer, l1_strength=0.2).attach(optimizer)
    assert still(layer, optimizer) == pytest.approx([0.9, -0.4, -0.05])


def test_l1_prunes_when_told_and_then_trains_the_rest_without_penalty():
    layer = row(1.0, -0.5, 0.05)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    tie = L1Threshold(layer, l1_strength=0.02, threshold=0.1, prune_at=2).attach(optimizer)
    assert still(layer, optimizer, 2) == pytest.approx([0.98, -0.48, 0.0])
    assert still(layer, optimizer, 3) == pytest.approx([0.98, -0.48, 0.0])
    layer.weight.grad = torch.ones_like(layer.weight)
    optimizer.step()
    assert layer.weight.detach()[0].tolist() == pytest.approx([0.48, -0.98, 0.0])
    tie.harden()
    assert tie.finish().density == pytest.approx(2 / 3)


def test_l1_prunes_at_hardening_by_default():
    model = net()
    tie = L1Threshold(model, threshold=0.2)
    expected = sum(int((p.detach().abs() >= 0.2).sum()) for p in model.parameters())
    tie.harden()
    assert tie.finish().density == pytest.approx(expected / 83)


def test_l2_is_weight_decay_and_then_k_means():
    decayed, plain = net(), net()
    optimizer = torch.optim.SGD(decayed.parameters(), lr=0.1)
    tie = L2(decayed, num_clusters=4, l2_strength=0.3).attach(optimizer)
    go(decayed, optimizer, 5)
    go(plain, torch.optim.SGD(plain.parameters(), lr=0.1, weight_decay=0.3), 5)
    for ours, theirs in zip(decayed.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    tie.harden()
    state = tie.finish()
    assert state.num_clusters == 4
    assert state.density == 1


def test_magnitudes_keep_the_largest_share():
    layer = row(1.0, -0.5, 0.05, 0.7, -0.6)
    tie = MagnitudeKmeans(layer, num_clusters=4, density=0.6)
    tie.harden()
    assert layer.weight.detach()[0].tolist() == pytest.approx([1.0, 0.0, 0.0, 0.7, -0.6])
    assert tie.finish().density == pytest.approx(0.6)


def test_magnitudes_leave_training_alone():
    model, plain = net(), net()
    optimizer = torch.optim.Adam(model.parameters())
    MagnitudeKmeans(model).attach(optimizer)
    go(model, optimizer, 3)
    go(plain, torch.optim.Adam(plain.parameters()), 3)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True)
    )


def test_random_tying_never_leaves_the_clusters_of_the_start():
    model = net()
    first = nn.utils.parameters_to_vector(model.parameters()).detach().double().numpy()
    expected = np.abs(first[:, None] - np.linspace(first.min(), first.max(), 4)).argmin(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    tie = RandomTying(model, num_clusters=4, tying_strength=0.1).attach(optimizer)
    go(model, optimizer, 10)
    now = nn.utils.parameters_to_vector(model.parameters()).detach().double().numpy()
    means = [now[expected == k].mean() for k in range(4)]
    assert tie.tying.groups[0].centers == pytest.approx(means, abs=1e-7)
    tie.harden()
    go(model, optimizer, 5)
    found = [tie.tying.groups[0].assignment(n).numpy().ravel() for n in tie.tying.groups[0].members]
    assert np.array_equal(np.concatenate(found), expected)


def test_random_tying_pulls_to_the_own_center():
    # Clusters {0, 0.2} and {1}: centers 0 and 1 at first; the second step knows the mean 0.05.
    layer = row(0.0, 0.2, 1.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    RandomTying(layer, num_clusters=2, tying_strength=1.0).attach(optimizer)
    assert still(layer, optimizer) == pytest.approx([0.0, 0.1, 1.0])
    assert still(layer, optimizer) == pytest.approx([0.025, 0.075, 1.0])


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (L1Threshold, {"num_clusters": 1, "threshold": -1.0, "prune_at": -1}),
        (L2, {"num_clusters": 0, "l2_strength": -1.0}),
        (MagnitudeKmeans, {"num_clusters": 1, "density": 1.5}),
        (RandomTying, {"num_clusters": 0, "tying_strength": "strong"}),
    ],
)
def test_all_mistakes_in_settings_are_told_at_once(kind, settings):
    with pytest.raises(ConfigError) as caught:
        kind(net(), **settings)
    assert len(caught.value.mistakes) == len(settings)
