"""Bayesian Compression: noisy weights in groups with noisy scales."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from reefknot import ConfigError
from reefknot.lab.baselines import BayesianCompression
from reefknot.lab.baselines.bayesian_compression import gamma_kl, inverse_gamma_kl


def quadrature_kl(mean, variance, log_prior):
    """The KL from a log-normal to a density, by a sum over the logarithm."""
    logs = mean + math.sqrt(variance) * np.linspace(-12, 12, 100_001)
    step = logs[1] - logs[0]
    log_q = -((logs - mean) ** 2) / (2 * variance) - math.log(2 * math.pi * variance) / 2
    log_p = log_prior(np.exp(logs)) + logs  # as a density of the logarithm
    return float(np.sum(np.exp(log_q) * (log_q - log_p)) * step)


@pytest.mark.parametrize("variance", [1e-3, 0.1, 1.5])
@pytest.mark.parametrize("mean", [-3.0, 0.0, 2.0])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 3.0])
def test_the_kl_of_a_log_normal_to_a_gamma(mean, variance, scale):
    def log_gamma(x):
        return -0.5 * np.log(x) - x / scale - math.lgamma(0.5) - 0.5 * math.log(scale)

    found = gamma_kl(*torch.tensor([mean, math.log(variance)]).double(), math.log(scale))
    assert found.item() == pytest.approx(quadrature_kl(mean, variance, log_gamma), rel=1e-4)


@pytest.mark.parametrize("variance", [1e-3, 0.1, 1.5])
@pytest.mark.parametrize("mean", [-2.0, 0.0, 3.0])
def test_the_kl_of_a_log_normal_to_an_inverse_gamma(mean, variance):
    def log_inverse_gamma(x):
        return -1.5 * np.log(x) - 1 / x - math.lgamma(0.5)

    found = inverse_gamma_kl(*torch.tensor([mean, math.log(variance)]).double())
    expected = quadrature_kl(mean, variance, log_inverse_gamma)
    assert found.item() == pytest.approx(expected, rel=1e-4)


def test_gamma_times_inverse_gamma_is_the_square_of_a_half_cauchy():
    rng = np.random.default_rng(0)
    tau = 0.3
    product = rng.gamma(0.5, tau**2, 200_000) / rng.gamma(0.5, 1.0, 200_000)
    # The distribution function of a half-Cauchy is (2 / pi)·atan(x / tau).
    for x in (0.1, 0.3, 2.0):
        share = np.mean(np.sqrt(product) < x)
        assert share == pytest.approx(2 / math.pi * math.atan(x / tau), abs=0.005)


def spread_(method):
    """Distributions that are not the same everywhere, with noise that can be seen."""
    for key, parameter in method.phases[0].layers[0].learned.items():
        if key.endswith("log_variance"):
            parameter.copy_(torch.randn_like(parameter) * 0.3 - 2)
        else:
            parameter.add_(torch.randn_like(parameter) * 0.3)


def drawn_scales(layer, draws):
    """Scales drawn from the distributions one by one, as the module's text defines them."""
    learned = {key: p.detach() for key, p in layer.learned.items()}

    def gaussian(key):
        mean, log_variance = learned[f"{key}_mean"], learned[f"{key}_log_variance"]
        return mean + (log_variance / 2).exp() * torch.randn(draws, *mean.shape)

    if "scale_mean" in learned:
        return gaussian("scale")
    parts = [gaussian(key).exp() for key in ("s_a", "s_b", "alpha", "beta")]
    return torch.sqrt(parts[0] * parts[1] * parts[2] * parts[3])


@pytest.mark.parametrize("prior", ["gnj", "ghs"])
def test_outputs_have_the_moments_that_scaled_noisy_weights_give(prior):
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    method = BayesianCompression(layer, num_examples=10, prior=prior, global_scale=0.5)
    with torch.no_grad():
        spread_(method)
        noisy, x, draws = method.phases[0].layers[0], torch.randn(4), 200_000
        outputs = layer(x.expand(draws, 4))
        weights = layer.weight + (noisy.log_variance / 2).exp() * torch.randn(draws, 3, 4)
        biases = layer.bias + (noisy.bias_log_variance / 2).exp() * torch.randn(draws, 3)
        z = drawn_scales(noisy, draws)
        expected = torch.einsum("noi,ni->no", weights, z * x) + biases
    assert torch.allclose(outputs.mean(0), expected.mean(0), atol=0.02)
    # Together with the covariance: outputs of one example share its scales.
    assert torch.allclose(outputs.T.cov(), expected.T.cov(), rtol=0.05, atol=0.02)
    assert torch.allclose(z.mean(0), noisy.scales.means(), rtol=0.02)


@pytest.mark.parametrize("prior", ["gnj", "ghs"])
def test_a_convolution_has_a_scale_for_each_filter(prior):
    torch.manual_seed(0)
    layer = nn.Conv1d(2, 3, 2)
    method = BayesianCompression(layer, num_examples=10, prior=prior, global_scale=0.5)
    with torch.no_grad():
        spread_(method)
        noisy, x, draws = method.phases[0].layers[0], torch.randn(2, 2), 100_000
        outputs = layer(x.expand(draws, 2, 2))[..., 0]
        weights = layer.weight + (noisy.log_variance / 2).exp() * torch.randn(draws, 3, 2, 2)
        biases = layer.bias + (noisy.bias_log_variance / 2).exp() * torch.randn(draws, 3)
        z = drawn_scales(noisy, draws)[..., 0]
        expected = z * ((weights * x).sum((2, 3)) + biases)  # the bias is the filter's too
        unbatched = layer(x)
    assert torch.allclose(outputs.mean(0), expected.mean(0), atol=0.03)
    assert torch.allclose(outputs.var(0), expected.var(0), rtol=0.05)
    assert unbatched.shape == (3, 1)


def test_pruning_and_folding_by_hand_with_normal_jeffreys():
    layer = nn.Linear(3, 2)
    method = BayesianCompression(layer, num_examples=10, threshold=-3.0)
    learned = method.phases[0].layers[0].learned
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
        layer.bias.copy_(torch.tensor([7.0, 0.5]))
        learned["scale_mean"].copy_(torch.tensor([2.0, 1.0, -1.0]))
        # log alpha of the groups is −5, −2 (noise) and −4.
        logs = torch.tensor([-5 + 2 * math.log(2.0), -2.0, -4.0])
        learned["scale_log_variance"].copy_(logs)
        learned["log_variance"].fill_(20.0)  # noise of single weights and biases prunes nothing
        learned["bias_log_variance"].fill_(20.0)
    method.harden()
    assert layer.weight.tolist() == [[2.0, 0.0, -3.0], [8.0, 0.0, -6.0]]
    assert layer.bias.tolist() == [7.0, 0.5]
    assert method.finish().density == 6 / 8


def test_pruning_and_folding_by_hand_with_the_horseshoe():
    layer = nn.Conv2d(1, 2, 1)
    method = BayesianCompression(layer, num_examples=10, prior="ghs", threshold=3.0)
    learned = method.phases[0].layers[0].learned
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(3.0)
        for key in ("s_a", "s_b", "alpha", "beta"):
            learned[f"{key}_mean"].zero_()
            learned[f"{key}_log_variance"].fill_(math.log(0.4))  # v = 4 · 0.4 / 4
        # m is half the sum: −2.5 and −2.7, so −log mode = v − m is 2.9 and 3.1.
        learned["alpha_mean"].copy_(torch.tensor([-5.0, -5.4]).view(2, 1, 1))
    method.harden()
    scale = math.exp(-2.5 + 0.2)
    assert layer.weight.flatten().tolist() == pytest.approx([scale, 0.0])
    assert layer.bias.tolist() == pytest.approx([3 * scale, 0.0])


def test_the_horseshoe_starts_with_all_scales_at_one():
    method = BayesianCompression(nn.Linear(3, 2), num_examples=10, prior="ghs")
    assert torch.allclose(method.phases[0].layers[0].scales.means(), torch.ones(3), atol=1e-3)
    assert method.phases[0].layers[0].scales.kl().item() < 100  # a tau of 1e-5 costs little


def test_log_variances_and_scales_learn_faster_than_means():
    model = net()
    method = BayesianCompression(model, num_examples=10)
    means, learned = method.parameter_groups()
    assert means == {"params": list(model.parameters())}
    own = [p for layer in method.phases[0].layers for p in layer.learned.values()]
    assert list(map(id, learned["params"])) == list(map(id, own))
    assert learned["lr_factor"] > 1


@pytest.mark.parametrize(("prior", "threshold"), [("gnj", -3.0), ("ghs", 0.5)])
def test_inputs_that_the_data_does_not_need_go_as_groups(prior, threshold):
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    method = BayesianCompression(model, num_examples=200, prior=prior, threshold=threshold)
    parameters = [p for g in method.parameter_groups() for p in g["params"]]
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    method.attach(optimizer)
    x = torch.randn(200, 8)
    target = x[:, :2] @ torch.tensor([[3.0, 1.0], [-2.0, 2.0]])
    for _ in range(600):
        optimizer.zero_grad()
        (50 * (model(x) - target).square().mean()).backward()
        optimizer.step()
    method.harden()
    assert model.weight.any(0).tolist() == [True] * 2 + [False] * 6


def test_the_first_layers_variances_are_kept_in_bounds():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    method = BayesianCompression(model, num_examples=10)
    parameters = [p for g in method.parameter_groups() for p in g["params"]]
    optimizer = torch.optim.SGD(parameters, lr=0.0)
    method.attach(optimizer)
    with torch.no_grad():
        for layer in method.phases[0].layers:
            layer.log_variance.fill_(0.0)
            layer.bias_log_variance.fill_(0.0)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    assert torch.all(method.phases[0].layers[0].log_variance == math.log(0.04))
    assert torch.all(method.phases[0].layers[0].bias_log_variance == math.log(0.04))
    assert torch.all(method.phases[0].layers[1].log_variance == 0)


def test_thresholds_by_layer():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    method = BayesianCompression(model, num_examples=10, threshold={"0": -2.8, "*": -5})
    assert [layer.threshold for layer in method.phases[0].layers] == [-2.8, -5.0]
    method = BayesianCompression(net(), num_examples=10)
    assert [layer.threshold for layer in method.phases[0].layers] == [-3.0, -3.0]
    method = BayesianCompression(net(), num_examples=10, prior="ghs")
    assert [layer.threshold for layer in method.phases[0].layers] == [2.5, 2.5]


def net():
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": {"0": -3.0}}, "no entry for '1'"),
        ({"threshold": {"x": -3.0, "*": -3.0}}, "names 'x', which matches none of 0, 1"),
        ({"threshold": {"*": "low"}}, r"threshold\.\* must be a number, found 'low'"),
        ({"threshold": True}, "threshold must be a number, found True"),
        ({"prior": "gsn"}, "prior must be one of gnj, ghs, found 'gsn'"),
        ({"global_scale": 0.0}, "global_scale must be a number of at least 1e-12"),
        ({"first_layer_max_variance": -1}, "first_layer_max_variance must be a number"),
    ],
)
def test_mistakes_in_settings_are_named(settings, message):
    model = net()
    with pytest.raises(ConfigError, match=message):
        BayesianCompression(model, num_examples=10, **settings)
    assert all("forward" not in vars(module) for module in model.modules())
