"""Training on what fixed zeros leave of a network: the same outputs, gradients and results."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shrink_networks import NETWORKS, random_network, sparsified
from torch import nn
from torch.nn.functional import cross_entropy

import reefknot
from reefknot.lab.runs.batches import Batches
from reefknot.lab.runs.training import Plan, train
from reefknot.shrinking.narrow import Narrowed


def zeros_of(model, seed, share=1.0):
    """This share of a model's zeros, as rows and columns may be fixed and single ones not."""
    random = torch.Generator().manual_seed(seed)
    return {
        name: (parameter == 0) & (torch.rand(parameter.shape, generator=random) < share)
        for name, parameter in model.named_parameters()
    }


def same_step(model, fixed):
    """Compare outputs, gradients and statistics of one training step, whole and narrowed."""
    example = model.example.double()
    other = copy.deepcopy(model)
    narrowed = Narrowed(other, fixed, example)
    inputs = torch.randn(4, *example.shape[1:], dtype=torch.float64)
    for one, network in ((model, model), (other, narrowed)):
        one.train()
        outputs = network(inputs)
        (outputs * torch.linspace(-1, 1, outputs.numel()).reshape(outputs.shape)).sum().backward()
        one.outputs = outputs.detach()
    torch.testing.assert_close(other.outputs, model.outputs, rtol=0, atol=1e-8)
    for (name, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if mine.grad is not None:
            mine.grad[fixed[name]] = 0  # what is fixed does not follow its gradient
            theirs.grad[fixed[name]] = 0
            torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-7, atol=1e-8, msg=name)
    model.eval(), other.eval()
    torch.testing.assert_close(other(inputs), model(inputs), rtol=0, atol=1e-8)
    return narrowed


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("share", [1.0, 0.97])
def test_a_training_step_is_the_same(name, share):
    model = sparsified(NETWORKS[name](), 1).double()
    model.apply(lambda m: setattr(m, "p", 0.0) if isinstance(m, nn.Dropout) else None)
    before, after = same_step(model, zeros_of(model, 0, share)).macs
    views = name in ("grouped", "shuffled")  # by numbers: left whole
    assert after < before or share < 1 or views


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 1 << 30))
def test_a_training_step_of_random_networks_is_the_same(seed):
    model = random_network(seed).double()
    same_step(model, zeros_of(model, seed, 0.9 if seed % 2 else 1.0))


def test_a_zero_that_is_not_fixed_keeps_its_gradient():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
        model[2].weight.zero_()
    fixed = {"2.weight": torch.tensor([[True, False]])}
    network = Narrowed(model, fixed, torch.ones(1, 3))
    network(torch.ones(1, 3)).sum().backward()
    assert model[2].weight.grad.tolist() == [[0.0, 4.0]]
    assert network.macs == (8, 4)


def test_a_bias_is_not_a_constant_while_it_is_trained():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        model[0].weight[0] = 0
        model[0].bias[0] = -1.0  # its ReLU gives 0 now, and may not tomorrow
    fixed = {"0.weight": model[0].weight == 0}
    assert Narrowed(model, fixed, torch.ones(1, 3)).macs == (8, 8)
    fixed["0.bias"] = torch.tensor([True, False])
    assert Narrowed(model, fixed, torch.ones(1, 3)).macs == (8, 4)


def run_once(shrink):
    """A small convolutional network from two numbers, in float64 so that noise stays small."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 12, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(12 * 16, 20), nn.ReLU(), nn.Linear(20, 2),
    ).double()  # fmt: skip
    inputs = torch.randn(64, 1, 8, 8, dtype=torch.float64)
    labels = (inputs[:, 0, :4].mean((1, 2)) > 0).long()
    tie = reefknot.SparseAPT(model, target_density=0.02, steps=50)
    optimizer = torch.optim.SGD(tie.parameter_groups(), lr=0.05, momentum=0.9)
    tie.attach(optimizer)
    plan = Plan(steps=50, soft_steps=None, lr=0.05, hard_lr=0.05, decay="phases")
    batches = Batches(inputs, labels, 16, seed=0)
    steps = train(model, tie, optimizer, batches, plan, shrink=shrink)
    losses = [progress.loss for progress in steps if progress.event == "step"]
    return losses, tie.finish(), cross_entropy(model.eval()(inputs), labels)


def test_a_whole_run_ends_in_the_same_file(caplog):
    caplog.set_level("INFO", "reefknot")
    losses, state, end = run_once(shrink=False)
    assert not [r for r in caplog.records if "multiplications" in r.message]
    narrow_losses, narrow_state, narrow_end = run_once(shrink=True)
    counts = [r.args for r in caplog.records if "multiplications" in r.message]
    assert len(counts) == 3  # recover, commit, frozen
    after, before = (int(text.replace(",", "")) for text in counts[-1])
    assert after < before / 2
    torch.testing.assert_close(
        torch.tensor(narrow_losses), torch.tensor(losses), rtol=1e-5, atol=1e-7
    )
    torch.testing.assert_close(narrow_end, end, rtol=1e-4, atol=1e-6)
    tied = {tensor.name: tensor for tensor in state.tensors if hasattr(tensor, "indices")}
    for tensor in narrow_state.tensors:
        if tensor.name in tied:
            assert (tensor.indices == tied[tensor.name].indices).all(), tensor.name


def test_layers_inside_of_others_may_read_few_of_their_inputs():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(20, 8), nn.ReLU()), nn.Linear(8, 3))
    fixed = {"0.0.weight": torch.zeros(8, 20, dtype=torch.bool)}
    fixed["0.0.weight"][:, :10] = True
    with torch.no_grad():
        model[0][0].weight[fixed["0.0.weight"]] = 0
    x = torch.randn(5, 20)
    narrowed = Narrowed(model, fixed, x)
    assert narrowed.macs == (8 * 20 + 3 * 8, 8 * 20 + 3 * 8)  # for one example
    assert torch.allclose(narrowed(x), model(x), atol=1e-6)
