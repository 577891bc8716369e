"""What Sparse VD and Bayesian Compression share: noisy layers, and which layers can be noisy."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy

from reefknot import ConfigError, TyingError
from reefknot.lab.baselines import BayesianCompression, SparseVD
from reefknot.lab.baselines.noisy import log_uniform_kl, unit_gaussian_kl

KINDS = {
    "sparse_vd": (SparseVD, {}),
    "gnj": (BayesianCompression, {"prior": "gnj"}),
    "ghs": (BayesianCompression, {"prior": "ghs"}),
}


@pytest.fixture(params=KINDS)
def make(request):
    kind, settings = KINDS[request.param]
    return lambda model, **more: kind(model, num_examples=100, **settings | more)


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4)
    )


INPUTS = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 4, (16,), generator=torch.Generator().manual_seed(2))


def attached(model, method):
    parameters = [p for g in method.parameter_groups() for p in g["params"]]
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    method.attach(optimizer)
    return optimizer


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(INPUTS), LABELS).backward()
        optimizer.step()


# -- the mathematics ------------------------------------------------------------------------


def true_log_uniform_kl(log_alpha):
    """By quadrature: E log|e| − log(alpha)/2 for e ~ N(1, alpha), less its limit at infinity."""
    deviation = math.exp(log_alpha / 2)
    # Between two points symmetric about the pole at e = 0 a midpoint rule is safe.
    edges = np.concatenate([-np.geomspace(40, 1e-9, 200_000), np.geomspace(1e-9, 40, 200_000)])
    scale = max(1.0, deviation)
    middle, width = scale * (edges[1:] + edges[:-1]) / 2, scale * np.diff(edges)
    density = np.exp(-(((middle - 1) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))
    with np.errstate(divide="ignore"):
        logs = np.where(middle == 0, 0.0, np.log(np.abs(middle)))
    expected = float(np.sum(density * logs * width))
    return expected - log_alpha / 2 + (np.euler_gamma + math.log(2)) / 2


@pytest.mark.parametrize("log_alpha", np.linspace(-8, 8, 17))
def test_the_fit_of_the_log_uniform_kl_is_right_to_a_fiftieth(log_alpha):
    fitted = log_uniform_kl(torch.tensor(log_alpha, dtype=torch.float64)).item()
    assert fitted == pytest.approx(true_log_uniform_kl(log_alpha), abs=0.02)


def test_the_kl_to_a_unit_gaussian_is_torchs():
    mean, log_variance = torch.randn(2, 50, dtype=torch.float64)
    expected = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0))
    assert torch.allclose(unit_gaussian_kl(mean, log_variance), expected)


# -- layers ---------------------------------------------------------------------------------


def test_noise_in_training_and_none_in_evaluation(make):
    model = net()
    make(model)
    assert not torch.equal(model(INPUTS), model(INPUTS))
    model.eval()
    assert torch.equal(model(INPUTS), model(INPUTS))


def test_a_deep_copy_of_the_model_is_a_model_of_its_own(make):
    model = net()
    method = make(model, initial_log_variance=-2.0)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in [p for g in method.parameter_groups() for p in g["params"]]:
            parameter.zero_()
    torch.manual_seed(3)
    first = copied(INPUTS)
    assert not torch.equal(first, copied(INPUTS))
    fresh = net()
    make(fresh, initial_log_variance=-2.0)
    torch.manual_seed(3)
    assert torch.equal(first, fresh(INPUTS))


def test_a_copy_in_another_type_can_be_evaluated(make):
    model = net()
    make(model)
    model.eval()
    outputs = copy.deepcopy(model).double()(INPUTS.double())
    assert outputs.dtype == torch.float64
    assert torch.allclose(outputs.float(), model(INPUTS), atol=1e-4)


def test_hardening_leaves_plain_layers_that_give_what_evaluation_gave(make):
    model = net()
    method = make(model, num_clusters=500)  # more than there are weights: clustering is exact
    optimizer = attached(model, method)
    train(model, optimizer, 3)
    model.eval()
    before = model(INPUTS)
    method.harden()
    assert all("forward" not in vars(module) for module in model.modules())
    assert torch.allclose(model(INPUTS), before, atol=1e-6)
    fresh = net().eval()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(INPUTS), model(INPUTS))


def test_density_is_told_while_soft_as_hardening_leaves_it(make):
    model = net()
    method = make(model, num_clusters=5)
    optimizer = attached(model, method)
    train(model, optimizer, 30)
    soft = method.stats()
    method.harden()
    hard = method.stats()
    assert soft["density"] == hard["density"]
    assert hard["predicted_bytes"] < soft["predicted_bytes"]


def test_a_unit_that_nobody_listens_to_goes_with_its_weights(make):
    for example, left in ((None, [3, 3]), (INPUTS[:1].flatten(1), [3, 0])):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 2), nn.ReLU(), nn.Linear(2, 4))
        method = make(model, example_input=example, num_clusters=200)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1.0)
            model[2].weight[:, 1] = 0.0
            model[0].weight[:, 2:] = 0.0
        model.eval()
        before = model(INPUTS.flatten(1))
        method.harden()
        rows = torch.cat([model[0].weight, model[0].bias[:, None]], 1)
        assert (rows != 0).sum(1).tolist() == left
        assert torch.allclose(model(INPUTS.flatten(1)), before)


def test_a_run_goes_on_where_it_was_saved(make):
    def begun():
        model = net()
        method = make(model, num_clusters=5)
        return model, method, attached(model, method)

    model, method, optimizer = begun()
    train(model, optimizer, 2)
    saved, weights = method.state_dict(), copy.deepcopy(model.state_dict())
    moments, random = copy.deepcopy(optimizer.state_dict()), torch.get_rng_state()
    train(model, optimizer, 2)
    method.harden()
    train(model, optimizer, 2)
    expected = method.finish()

    model, method, optimizer = begun()
    model.load_state_dict(weights)
    method.load_state_dict(saved)
    optimizer.load_state_dict(moments)
    torch.set_rng_state(random)
    train(model, optimizer, 2)
    method.harden()
    train(model, optimizer, 2)
    assert method.finish() == expected


def test_a_state_of_another_model_is_refused(make):
    saved = make(net()).state_dict()
    with pytest.raises(TyingError, match="saved for another model"):
        make(nn.Linear(2, 2)).load_state_dict(saved)


def test_an_optimizer_that_does_not_train_the_noise_is_refused(make):
    model = net()
    method = make(model)
    with pytest.raises(TyingError, match="parameter_groups"):
        method.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    attached(model, method)


# -- which layers ---------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))
        self.inner = nn.Linear(3, 3)


class Odd(nn.Linear):
    def forward(self, x):
        return super().forward(x.sin())


def shared():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, second)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2)), r"0\.weight \(in a Embedding\)"),
        (nn.LSTM(3, 4), r"weight_ih_l0 \(in a LSTM\)"),
        (Scaled(), r"gain \(in a Scaled\)"),
        (nn.Sequential(nn.ConvTranspose2d(1, 2, 3)), r"in a ConvTranspose2d"),
        (nn.Sequential(Odd(3, 3)), r"0\.weight \(its layer has a forward of its own\)"),
        (shared(), r"0\.weight \(shared with 1\.weight\)"),
        (nn.BatchNorm1d(4), "needs a Linear or a convolution"),
    ],
)
def test_a_parameter_that_no_noise_can_be_put_on_is_named(make, model, message):
    with pytest.raises(TyingError, match=message):
        make(model)
    assert all("forward" not in vars(module) for module in model.modules())


def test_excluded_parameters_stay_as_they_are(make):
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2), nn.Linear(2, 2))
    method = make(model, exclude=["0.weight", "2.weight", "1.bias"])
    assert [layer.name for layer in method.phases[0].layers] == ["1"]
    embedding, bias = model[0].weight.clone(), model[1].bias.clone()
    attached(model, method)
    method.harden()
    assert torch.equal(model[0].weight, embedding)
    assert torch.equal(model[1].bias, bias)


def test_a_model_is_not_given_noise_twice(make):
    model = net()
    make(model)
    with pytest.raises(TyingError, match="forward of its own"):
        make(model)


# -- the weight of the KL -------------------------------------------------------------------


def test_the_kl_is_warmed_up_by_steps_and_divided_by_the_examples(make):
    model = net()
    method = make(model, warmup_start=2, warmup_steps=4)
    optimizer = attached(model, method)
    weights = []
    for _ in range(8):
        weights.append(method.phases[0].kl_weight())
        kl = sum(layer.kl().item() for layer in method.phases[0].layers)
        penalty = method.phases[0].penalty()
        assert (0.0 if penalty is None else penalty.item()) == pytest.approx(weights[-1] * kl / 100)
        train(model, optimizer, 1)
    assert weights == [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_without_a_warm_up_the_kl_counts_from_the_first_step(make):
    assert make(net()).phases[0].kl_weight() == 1.0


def test_all_mistakes_in_settings_are_told_together():
    with pytest.raises(ConfigError, match="2 mistakes"):
        SparseVD(net(), num_examples=0, warmup_steps=-1)
    (missing,) = SparseVD.mistakes({})
    assert "num_examples is missing" in missing
