"""Rate-aware error feedback of one matrix."""

import numpy as np
import pytest
import torch

from reefknot.bits import entropy
from reefknot.packing.feedback import MOST, _bits, feedback


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def correlated(n, width):
    return torch.randn(n, width // 4, generator=seeded(1)) @ torch.randn(
        width // 4, width, generator=seeded(2)
    ) + 0.3 * torch.randn(n, width, generator=seeded(3))


def test_the_error_of_feedback_is_that_of_the_outputs():
    inputs, weights = correlated(2000, 64), torch.randn(40, 64, generator=seeded())
    moments = inputs.T @ inputs / len(inputs)
    variance = float((inputs @ weights.T).var(0).sum())
    fed = feedback(weights.numpy(), moments.clone(), 1 / variance, 1e-6, damping=0.0)
    off = inputs @ (torch.from_numpy(fed.values()) - weights).T
    assert fed.error == pytest.approx(float(off.square().mean(0).sum()) / variance, rel=1e-3)


@pytest.mark.parametrize("price", [1e-6, 1e-5])
def test_feedback_has_half_the_error_of_rounding_in_the_same_bits(price):
    inputs, weights = correlated(2000, 64), torch.randn(40, 64, generator=seeded())
    moments = inputs.T @ inputs / len(inputs)
    variance = float((inputs @ weights.T).var(0).sum())
    fed = feedback(weights.numpy(), moments.clone(), 1 / variance, price, damping=0.01)
    rounded = []
    for step in np.geomspace(0.01, 8, 200):
        near = torch.round(weights / step)
        if entropy(np.unique(near, return_counts=True)[1]) <= entropy(fed.counts()):
            off = inputs @ (near * step - weights).T
            rounded.append(float(off.square().mean(0).sum()) / variance)
    assert fed.error < 0.5 * min(rounded)


def test_a_dearer_bit_gives_fewer_bits_and_more_error():
    inputs, weights = correlated(2000, 64), torch.randn(40, 64, generator=seeded())
    moments, found = inputs.T @ inputs / len(inputs), []
    for price in (1e-6, 1e-5, 1e-4):
        fed = feedback(weights.numpy(), moments.clone(), 1e-3, price, damping=0.01)
        found.append((fed.error, -np.count_nonzero(fed.multiples)))
    assert found == sorted(found)


def test_weights_far_beyond_the_others_keep_their_size_at_fine_steps():
    weights = torch.randn(40, 64, generator=seeded())
    weights[3, 5], weights[7, 9] = 40, -60  # the finest step is rms / 128
    fed = feedback(weights.numpy(), torch.eye(64), 1.0, 1e-12, damping=0.0)
    assert np.abs(fed.values() - weights.numpy()).max() <= 0.51 * fed.step


def test_multiples_that_were_not_seen_cost_what_their_neighbours_cost():
    known = np.zeros((1, 1000), np.int16)
    known[0, :600] = np.repeat([-1, 1, 40, 42], 150)
    bits = dict(zip(range(-MOST, MOST + 1), _bits(known), strict=True))
    assert bits[0] < bits[1] == bits[-1] < bits[41] == pytest.approx(bits[40], abs=0.3)
    assert bits[41] < bits[20] - 5
    assert np.isfinite(_bits(np.zeros((2, 2), np.int16))).all()


def test_inputs_that_are_always_zero_break_nothing():
    moments = torch.zeros(8, 8)
    fed = feedback(np.ones((4, 8), np.float32), moments, 0.0, 1e-6, damping=0.05)
    assert np.isfinite(fed.values()).all()
