"""Sparse VD: noise for each weight."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, linear

from reefknot import ConfigError
from reefknot.lab.baselines import SparseVD


def alive(layer, log_variance):
    """Which weights are not pruned, some of them and not all."""
    found = (log_variance - 2 * layer.weight.abs().log() < 3).detach()
    assert found.any() and not found.all()
    return found


def test_outputs_have_the_mean_and_variance_that_noisy_weights_give():
    torch.manual_seed(0)
    layer = nn.Linear(5, 3).double()
    method = SparseVD(layer, num_examples=10)
    log_variance = method.phases[0].layers[0].log_variance
    with torch.no_grad():
        log_variance.copy_(torch.randn_like(log_variance) - 1)
    x = torch.randn(1, 5, dtype=torch.float64)
    outputs = layer(x.expand(200_000, 5)).detach()
    noise = torch.randn(200_000, 3, 5, dtype=torch.float64)
    weights = layer.weight * alive(layer, log_variance) + (log_variance / 2).exp() * noise
    expected = (weights @ x[0] + layer.bias).detach()
    assert torch.allclose(outputs.mean(0), expected.mean(0), atol=0.02)
    assert torch.allclose(outputs.var(0), expected.var(0), rtol=0.02)


def test_a_convolutions_outputs_too():
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 2, stride=2, padding=1)
    method = SparseVD(layer, num_examples=10)
    log_variance = method.phases[0].layers[0].log_variance
    with torch.no_grad():
        log_variance.copy_(torch.randn_like(log_variance) - 1)
    x = torch.randn(1, 2, 4, 4)
    outputs = layer(x.expand(50_000, 2, 4, 4)).detach()
    weights = layer.weight + (log_variance / 2).exp() * torch.randn(50_000, 3, 2, 2, 2)
    weights = weights * alive(layer, log_variance)  # what is pruned has no noise here
    # One convolution with the filters of all draws.
    expected = conv2d(x, weights.flatten(0, 1), stride=2, padding=1).detach()
    expected = expected.view(50_000, 3, 3, 3) + layer.bias.detach().view(3, 1, 1)
    assert torch.allclose(outputs.mean(0), expected.mean(0), atol=0.1)
    assert torch.allclose(outputs.var(0), expected.var(0), rtol=0.05, atol=1e-3)


def test_noisy_weights_are_pruned_by_hand():
    layer = nn.Linear(3, 1)
    method = SparseVD(layer, num_examples=10, threshold=3.0)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.1, -2.0]]))
        layer.bias.fill_(0.25)
        # log alpha = log variance − 2 log |weight|: 2.9, 3.1 and −1.4.
        logs = [2.9, 3.1 + 2 * math.log(0.1), 0.0]
        method.phases[0].layers[0].log_variance.copy_(torch.tensor([logs]))
    layer.eval()
    x = torch.tensor([[1.0, 1.0, 1.0]])
    assert layer(x).item() == pytest.approx(1.0 - 2.0 + 0.25)
    method.harden()
    assert layer.weight.tolist() == [[1.0, 0.0, -2.0]]
    assert torch.equal(layer(x), linear(x, layer.weight, layer.bias))
    state = method.finish()
    assert state.density == 3 / 4


def test_what_the_data_does_not_need_drowns_in_noise():
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    method = SparseVD(model, num_examples=200, num_clusters=9)
    optimizer = torch.optim.Adam(
        [p for g in method.parameter_groups() for p in g["params"]], lr=0.05
    )
    method.attach(optimizer)
    x = torch.randn(200, 8)
    target = 3 * x[:, :1] - 2 * x[:, 1:2]
    for step in range(3000):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / 3000)
        optimizer.zero_grad()
        (50 * (model(x) - target).square().mean()).backward()
        optimizer.step()
    method.harden()
    assert torch.count_nonzero(model.weight) == 2
    assert model.weight[0, 0].item() == pytest.approx(3, abs=0.1)
    assert model.weight[0, 1].item() == pytest.approx(-2, abs=0.1)


def test_a_pruned_weight_is_zero_while_training_too():
    layer = nn.Linear(2, 1, bias=False)
    method = SparseVD(layer, num_examples=10)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[2.0, 0.5]]))
        method.phases[0].layers[0].log_variance.copy_(
            torch.tensor([[-20.0, 3.1 + 2 * math.log(0.5)]])
        )
    outputs = layer(torch.tensor([[1.0, 1.0]]).expand(100_000, 2))
    assert outputs.mean().item() == pytest.approx(2.0, abs=0.05)  # not 2.5
    assert outputs.var().item() == pytest.approx(math.exp(3.1) / 4, rel=0.05)  # its noise is left


def test_log_alpha_is_clipped_in_the_kl():
    layer = nn.Linear(1, 1)
    method = SparseVD(layer, num_examples=10)
    with torch.no_grad():
        method.phases[0].layers[0].log_variance.fill_(50.0)
    method.phases[0].penalty().backward()
    assert method.phases[0].layers[0].log_alpha().item() == 8.0
    assert method.phases[0].layers[0].log_variance.grad.item() == 0.0


def test_a_threshold_that_is_no_number_is_refused():
    with pytest.raises(ConfigError, match="threshold must be a number, found 'high'"):
        SparseVD(nn.Linear(2, 2), num_examples=10, threshold="high")
