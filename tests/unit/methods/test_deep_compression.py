"""What Deep Compression promises beyond the contract."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reefknot import ConfigError, TyingError
from reefknot.lab.baselines import DeepCompression
from reefknot.state import KeptTensor

INPUTS = torch.randn(32, 6, generator=torch.Generator().manual_seed(5))
LABELS = torch.randint(0, 3, (32,), generator=torch.Generator().manual_seed(6))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def row(*values):
    """A layer without bias whose weights are these."""
    layer = nn.Linear(len(values), 1, bias=False, dtype=torch.float64)
    layer.weight.data[0] = torch.tensor(values)
    return layer


def go(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(INPUTS), LABELS).backward()
        optimizer.step()


def step_with(layer, optimizer, *gradient):
    layer.weight.grad = torch.tensor([gradient], dtype=torch.float64)
    optimizer.step()
    return layer.weight.detach()[0].tolist()


# -- pruning --------------------------------------------------------------------------------


def test_thresholds_worked_by_hand():
    # Mean 0, variance (1 + 1 + 9 + 9 + 16 + 16 + 36 + 36)/8 = 15.5, deviation 3.937.
    values = [1, -1, 3, -3, 4, -4, 6, -6]
    for quality, left in ((0.25, 8), (0.5, 6), (1.0, 4), (1.1, 2)):
        layer = row(*values)
        DeepCompression(layer, quality=quality).harden()
        assert torch.count_nonzero(layer.weight) == left


def test_rounds_come_every_so_many_steps_with_a_rising_factor():
    layer = row(1.0, -1.0, 3.0, -3.0, 4.0, -4.0, 6.0, -6.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    tie = DeepCompression(layer, quality=1.0, prune_every=2, prune_rounds=2).attach(optimizer)
    left = [np.count_nonzero(step_with(layer, optimizer, *[0.0] * 8)) for _ in range(6)]
    # Half of 3.937 takes the ones; then the variance is 122/8, and its root 3.905 takes the threes.
    assert left == [8, 6, 6, 4, 4, 4]
    tie.harden()
    assert np.count_nonzero(layer.weight.detach()) == 4


def test_pruned_weights_stay_zero_whatever_the_optimizer_remembers():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    tie = DeepCompression(model, 5, prune_every=3, prune_rounds=1).attach(optimizer)
    go(model, optimizer, 3)
    zeros = [model[i].weight.detach() == 0 for i in (0, 2)]
    assert all(bool(z.any()) and not bool(z.all()) for z in zeros)
    go(model, optimizer, 5)
    assert all(torch.equal(model[i].weight == 0, z) for i, z in zip((0, 2), zeros, strict=True))
    assert tie.stats()["density"] < 1
    tie.harden()
    go(model, optimizer, 5)
    assert all(torch.equal(model[i].weight == 0, z) for i, z in zip((0, 2), zeros, strict=True))


def test_quality_may_differ_by_name():
    model = net()
    DeepCompression(model, quality={"0.*": 0.0, "*": 1.5}).harden()
    assert torch.count_nonzero(model[0].weight) == 48
    assert torch.count_nonzero(model[2].weight) < 24


def test_a_matrix_that_would_vanish_is_named():
    with pytest.raises(TyingError, match=r"'0\.weight' are below the threshold"):
        DeepCompression(net(), quality=50.0).harden()


# -- hard phase -----------------------------------------------------------------------------


def test_a_step_with_summed_gradients_worked_by_hand():
    # Clusters at -1 (one weight), 0 (one), 1 (three). Gradients 0.5, 7, and 0.1 + 0.2 - 0.6 = -0.3.
    # SGD at rate 2: -1 - 2·0.5 = -2, 0, 1 + 2·0.3 = 1.6 (the mean would have given 1.2).
    layer = row(1.0, -1.0, 0.0, 1.0, 1.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=2.0)
    tie = DeepCompression(layer, num_clusters=3, quality=0.5).attach(optimizer)
    tie.harden()
    after = step_with(layer, optimizer, 0.1, 0.5, 7.0, 0.2, -0.6)
    assert after == pytest.approx([1.6, -2.0, 0.0, 1.6, 1.6], abs=1e-12)


def test_gradients_are_summed_over_tensors_that_share_a_codebook():
    model = nn.Sequential(row(1.0, 0.0), row(1.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    tie = DeepCompression(model, num_clusters=2, quality=0.1, scope="network").attach(optimizer)
    tie.harden()
    model[0].weight.grad = torch.tensor([[0.25, 9.0]], dtype=torch.float64)
    model[1].weight.grad = torch.tensor([[0.5]], dtype=torch.float64)
    optimizer.step()
    assert model[0].weight.tolist() == [[0.25, 0.0]]
    assert model[1].weight.tolist() == [[0.25]]


def test_each_tensor_has_a_codebook_and_biases_are_kept_exactly():
    model = net()
    tie = DeepCompression(model, num_clusters={"0.weight": 4, "2.weight": 3})
    assert set(tie.skipped) == {"0.bias", "2.bias"}
    tie.harden()
    state = tie.finish()
    assert [len(book) for book in state.codebooks] == [4, 3]
    assert [t.name for t in state.tensors if isinstance(t, KeptTensor)] == ["0.bias", "2.bias"]


def test_biases_are_compressed_if_nothing_is_excluded():
    tie = DeepCompression(net(), num_clusters=3, quality=0.1, exclude=[])
    tie.harden()
    assert len(tie.finish().codebooks) == 4


# -- settings -------------------------------------------------------------------------------


def test_all_mistakes_in_settings_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        DeepCompression(net(), num_clusters=1, quality={"a": -1.0}, prune_every=0, prune_rounds=0.5)
    assert len(caught.value.mistakes) == 4


def test_a_parameter_without_quality_is_named_before_training():
    with pytest.raises(ConfigError, match=r"no entry for '2\.weight'") as caught:
        DeepCompression(net(), quality={"0.*": 1.0, "7.*": 2.0})
    assert "'7.*'" in caught.value.mistakes[0]
