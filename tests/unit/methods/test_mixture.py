"""The mixture prior against torch.distributions and autograd, in float64."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.utils._python_dispatch import TorchDispatchMode

from reefknot.lab.baselines import mixture as module
from reefknot.lab.baselines.mixture import (
    Components,
    Gamma,
    Mixture,
    divergence,
    merged,
    most_likely,
)

ZERO_PRIOR, PRIOR = Gamma(50.0, 0.7), Gamma(20.0, 0.1)


def weights(count=500, dtype=torch.float64):
    return torch.randn(count, generator=torch.Generator().manual_seed(1), dtype=dtype) * 0.3


def mixture(row, num_components=6):
    made = Mixture(
        row, num_components, zero_weight=0.8, std=0.2, zero_prior=ZERO_PRIOR, prior=PRIOR
    )
    generator = torch.Generator().manual_seed(2)
    for parameter in made.parameters.values():  # away from the even start
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.data += 0.2 * noise
    return made


def reference(made, row):
    """-log p by torch.distributions, which autograd can follow."""
    means = torch.cat([torch.zeros(1, dtype=row.dtype), made.means])
    rest = (1 - 0.8) * made.log_weights.softmax(0)
    fractions = torch.cat([torch.tensor([0.8], dtype=row.dtype), rest])
    normals = Normal(means, (-made.log_precisions / 2).exp())
    prior = MixtureSameFamily(Categorical(fractions), normals)
    precisions = made.log_precisions.exp()
    first, others = (
        torch.distributions.Gamma(*torch.tensor(gamma, dtype=row.dtype))
        for gamma in (ZERO_PRIOR, PRIOR)
    )
    hyper = first.log_prob(precisions[0]) + others.log_prob(precisions[1:]).sum()
    return -prior.log_prob(row).sum(), -hyper


def test_it_starts_evenly_over_the_range_with_one_deviation():
    made = Mixture(
        torch.tensor([-1.0, 0.2, 3.0]),
        4,
        zero_weight=0.9,
        std=0.5,
        zero_prior=ZERO_PRIOR,
        prior=PRIOR,
    )
    means, precisions, fractions = made.components()
    assert means.tolist() == [0, -1, 1, 3]
    assert precisions == pytest.approx([4] * 4)
    assert fractions == pytest.approx([0.9, 0.1 / 3, 0.1 / 3, 0.1 / 3])
    assert made.means.dtype == torch.float32


def test_every_gradient_is_that_of_autograd():
    row = weights().requires_grad_()
    made = mixture(row.detach())
    (0.01 * sum(reference(made, row))).backward()
    rows = [row.detach()[:200], row.detach()[200:]]
    slopes, by_mixture = made.gradients(rows, 0.01)
    assert torch.allclose(torch.cat(slopes), row.grad, rtol=1e-10, atol=1e-14)
    for found, parameter in zip(by_mixture, made.parameters.values(), strict=True):
        assert torch.allclose(found, parameter.grad, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_weights_have_nearly_the_same_gradient(dtype):
    row = weights().to(dtype)
    slopes, by_mixture = mixture(row).gradients([row], 1.0)
    exact, exactly = mixture(row.double()).gradients([row.double()], 1.0)
    assert slopes[0].dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    assert torch.allclose(slopes[0].double(), exact[0], rtol=tolerance, atol=tolerance)
    for found, wanted in zip(by_mixture, exactly, strict=True):
        assert found.dtype == torch.float32
        assert torch.allclose(found.double(), wanted, rtol=5e-3, atol=5e-2)


def test_pieces_give_what_the_whole_gives(monkeypatch):
    row = weights()
    made = mixture(row)
    whole = made.gradients([row], 1.0)
    likely = most_likely(row, made.components())
    monkeypatch.setattr(module, "PIECE", 7)
    assert torch.allclose(made.gradients([row], 1.0)[0][0], whole[0][0], rtol=1e-12)
    for found, wanted in zip(made.gradients([row], 1.0)[1], whole[1], strict=True):
        assert torch.allclose(found, wanted, rtol=1e-10)
    assert np.array_equal(most_likely(row, made.components()), likely)


class Largest(TorchDispatchMode):
    """The most elements that any tensor had that was made meanwhile."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else [result]
        sizes = [part.numel() for part in made if isinstance(part, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


def test_no_tensor_of_weights_times_components_is_ever_made(monkeypatch):
    monkeypatch.setattr(module, "PIECE", 32)
    row, components = weights(4000), 12
    made = mixture(row, components)
    with Largest() as largest:
        made.gradients([row], 1.0)
        most_likely(row, made.components())
    assert largest.elements == max(len(row), 32 * components) < len(row) * components


def test_divergence_is_that_of_torch_distributions():
    two = Components(np.array([0.1, -0.3]), np.array([4.0, 9.0]), np.array([0.5, 0.5]))
    p, q = Normal(0.1, 0.5), Normal(-0.3, 1 / 3)
    both = torch.distributions.kl_divergence(p, q) + torch.distributions.kl_divergence(q, p)
    assert divergence(two, 0, 1) == pytest.approx(float(both), rel=1e-6)
    assert divergence(two, 1, 1) == 0


def test_merging_worked_by_hand():
    # 0.4 and 0.6, of weights 1 to 3, diverge least: their mean is 0.55, and their variance
    # 1/100 + (1·0.15² + 3·0.05²)/4 = 0.01 + 0.0075.
    made = Components(
        np.array([0.0, 0.6, -2.0, 0.4]), np.full(4, 100.0), np.array([0.9, 0.03, 0.06, 0.01])
    )
    found = merged(made, 3, 1e-10)
    assert found.means == pytest.approx([-2.0, 0.0, 0.55])
    assert 1 / found.precisions == pytest.approx([0.01, 0.01, 0.01 + 0.0075])
    assert found.weights == pytest.approx([0.06, 0.9, 0.04])
    assert made.means.tolist() == [0.0, 0.6, -2.0, 0.4]


def test_alike_components_are_merged_even_where_there_is_room():
    # Symmetric KL of equal precisions 100 at distance 0.2 is 0.2²·100 = 4.
    made = Components(np.array([0.0, 0.5, 0.7]), np.full(3, 100.0), np.array([0.9, 0.05, 0.05]))
    assert len(merged(made, 9, 3.9).means) == 3
    assert merged(made, 9, 4.1).means == pytest.approx([0.0, 0.6])
    assert merged(made, 1, 0.0).means == pytest.approx([0.06])


def test_the_most_likely_component_counts_weight_and_width():
    # At 0.3 both are as near, but the first weighs more; the wide one wins far out.
    made = Components(np.array([0.0, 0.6]), np.array([100.0, 100.0]), np.array([0.9, 0.1]))
    assert most_likely(torch.tensor([0.3, 0.5]), made).tolist() == [0, 1]
    wide = Components(np.array([0.0, 0.0]), np.array([100.0, 1.0]), np.array([0.5, 0.5]))
    edge = math.sqrt(math.log(100.0) / 99.0)
    row = torch.tensor([edge - 1e-3, edge + 1e-3])
    assert most_likely(row, wide).tolist() == [0, 1]


def test_what_is_learned_is_what_an_optimizer_takes():
    made = mixture(weights())
    assert all(isinstance(p, nn.Parameter) for p in made.parameters.values())
    assert [len(p) for p in made.parameters.values()] == [5, 6, 5]
