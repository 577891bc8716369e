"""What Soft Weight Sharing promises beyond the contract; the mixture has tests of its own."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reefknot import ConfigError, TyingError
from reefknot.lab.baselines import SoftWeightSharing
from reefknot.lab.runs.batches import Batches
from reefknot.lab.runs.training import Plan, train

INPUTS = torch.randn(32, 6, generator=torch.Generator().manual_seed(5))
LABELS = torch.randint(0, 3, (32,), generator=torch.Generator().manual_seed(6))


def net(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)


def sharing(model, **settings):
    return SoftWeightSharing(model, **{"num_examples": 32, "num_components": 5, **settings})


def test_the_priors_gradient_is_added_with_tau_over_the_examples():
    model = net(torch.float64)
    tie = sharing(model, tau=0.5)
    mixture = tie.phases[0].mixtures["network"]
    optimizer = torch.optim.SGD(tie.parameter_groups(), lr=0.0)
    tie.attach(optimizer)
    cross_entropy(model(INPUTS.double()), LABELS).backward()
    before = [p.grad.clone() for p in model.parameters()]
    rows = [p.detach().flatten() for p in model.parameters()]
    slopes, by_mixture = mixture.gradients(rows, 0.5 / 32)
    optimizer.step()
    for parameter, grad, slope in zip(model.parameters(), before, slopes, strict=True):
        assert torch.allclose(parameter.grad, grad + slope.view(grad.shape), rtol=1e-12)
    for parameter, grad in zip(mixture.parameters.values(), by_mixture, strict=True):
        assert torch.equal(parameter.grad, grad)


def test_a_weight_in_another_layout_gets_the_same_pull():
    grads = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = nn.Conv2d(3, 4, 3).to(memory_format=layout)
        tie = sharing(model)
        optimizer = torch.optim.SGD(tie.parameter_groups(), lr=0.0)
        tie.attach(optimizer)
        model.weight.grad = torch.zeros_like(model.weight)
        optimizer.step()
        grads.append(model.weight.grad.contiguous())
    assert torch.allclose(grads[0], grads[1], rtol=1e-6, atol=1e-9)
    assert grads[0].abs().max() > 0


def test_the_mixture_learns_at_learning_rates_of_its_own():
    model = net()
    tie = sharing(model, means_lr_factor=0.5, precisions_lr_factor=3.0, mixing_lr_factor=0.0)
    optimizer = torch.optim.SGD(tie.parameter_groups(), lr=1.0)
    tie.attach(optimizer)
    mixing = tie.phases[0].mixtures["network"].log_weights.detach().clone()
    plan = Plan(steps=3, soft_steps=3, lr=0.1, hard_lr=0.1)
    for _ in train(model, tie, optimizer, Batches(INPUTS, LABELS, 8, 0), plan):
        pass
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.1, 0.05, 0.3, 0.0])
    assert torch.equal(tie.phases[0].mixtures["network"].log_weights, mixing)


@pytest.mark.parametrize(("decays", "last"), [(True, 0.05), (False, 0.2)])
def test_the_mixtures_learning_rates_may_stay_constant_while_the_weights_decays(decays, last):
    tie = sharing(net(), means_lr_factor=2.0, mixture_decays=decays)
    optimizer = torch.optim.SGD(tie.parameter_groups(), lr=1.0)
    tie.attach(optimizer)
    plan = Plan(steps=4, soft_steps=4, lr=0.1, hard_lr=0.1, decay="linear")
    for _ in train(tie.model, tie, optimizer, Batches(INPUTS, LABELS, 8, 0), plan):
        pass
    assert [g["lr"] for g in optimizer.param_groups[:2]] == pytest.approx([0.025, last])


def test_the_priors_share_grows_to_its_full_value():
    pulls = []
    for settings in ({}, {"anneal_steps": 4}):
        tie = sharing(net(torch.float64), **settings)
        optimizer = torch.optim.SGD(tie.parameter_groups(), lr=0.0)
        tie.attach(optimizer)
        pulls.append([])
        for _ in range(6):
            for parameter in tie.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            pulls[-1].append(float(tie.model[0].weight.grad.abs().sum()))
    full, grown = pulls
    assert grown == pytest.approx(
        [x * s for x, s in zip(full, (0.25, 0.5, 0.75, 1, 1, 1), strict=True)]
    )


def test_an_optimizer_without_the_mixture_is_refused():
    model = net()
    with pytest.raises(TyingError, match="parameter_groups"):
        sharing(model).attach(torch.optim.SGD(model.parameters(), lr=0.1))


def test_hardening_assigns_to_the_most_responsible_and_the_nearest_mean_becomes_zero():
    model = nn.Linear(4, 1, bias=False)
    model.weight.data = torch.tensor([[0.02, -0.9, 0.45, 0.06]])
    tie = sharing(model, num_components=3, zero_weight=0.5, init_std=0.1)
    mixture = tie.phases[0].mixtures["network"]
    mixture.means.data = torch.tensor([-1.0, 0.5])
    assert tie.stats()["density"] == 0.5
    tie.harden()
    assert model.weight.tolist() == [[0.0, -1.0, 0.5, 0.0]]
    assert tie.stats()["density"] == 0.5
    assert tie.finish().density == 0.5


def test_components_are_merged_down_to_the_clusters_there_may_be():
    model = net()
    tie = sharing(model, num_components=9, num_clusters=4, zero_weight=0.2)
    tie.harden()
    state = tie.finish()
    assert state.num_clusters <= 4
    assert 0.0 in np.concatenate([values.ravel() for _, _, values in state.arrays()])


def test_the_prior_pulls_weights_together():
    distances = []
    for tau in (0.0, 1.0):
        model = net()
        tie = sharing(model, tau=tau)
        optimizer = torch.optim.Adam(tie.parameter_groups(), lr=5e-3)
        tie.attach(optimizer)
        for _ in range(200):
            optimizer.zero_grad()
            cross_entropy(model(INPUTS), LABELS).backward()
            optimizer.step()
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        tie.harden()
        moved = nn.utils.parameters_to_vector(model.parameters()).detach() - before
        distances.append(float(moved.square().mean().sqrt()))
    assert distances[1] < distances[0] / 2


def test_all_mistakes_in_settings_are_told_at_once():
    wrong = {
        "num_examples": 0,
        "tau": -1.0,
        "num_components": 1,
        "zero_weight": 1.0,
        "init_std": 0.0,
        "precision_prior": [1.0],
        "means_lr_factor": "fast",
        "mixture_decays": 1,
        "anneal_steps": -1,
    }
    with pytest.raises(ConfigError) as caught:
        SoftWeightSharing(net(), **wrong)
    assert len(caught.value.mistakes) == len(wrong)
    assert any("num_examples" in m for m in SoftWeightSharing.mistakes({}))
