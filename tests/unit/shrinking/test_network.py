"""Smaller networks: the same outputs, the expected shapes, and reasons for what stays."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shrink_networks import NETWORKS, random_network, sparsified
from torch import nn

import reefknot
from reefknot.lab.zoo import NETWORKS as ZOO
from reefknot.shrinking.folding import fold_batchnorm
from reefknot.shrinking.network import shrink

RECORDS = Path(__file__).parents[3] / "experiments" / "records"


def shapes(model):
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_stay(name):
    for seed in range(4):
        model = sparsified(NETWORKS[name](), seed).double().eval()
        shrunk = shrink(model, model.example.double())
        inputs = torch.rand(3, *model.example.shape[1:], dtype=torch.float64)
        torch.testing.assert_close(shrunk.model(inputs), model(inputs), rtol=0, atol=1e-9)
        assert shrunk.parameters[1] < shrunk.parameters[0]
        assert shrunk.macs[1] < shrunk.macs[0]


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 1 << 30))
def test_outputs_of_random_networks_stay(seed):
    model = random_network(seed).double().eval()
    smaller = shrink(model, model.example.double()).model
    inputs = torch.randn(3, *model.example.shape[1:], dtype=torch.float64)
    torch.testing.assert_close(smaller(inputs), model(inputs), rtol=0, atol=1e-9)


@pytest.mark.parametrize("record", ["lenet-300-100_sparse_apt-3300", "lenet-5-caffe_sparse_apt"])
def test_networks_of_committed_records_shrink_and_stay(record):
    folder = next(RECORDS.glob(f"*_{record}_seed0"))
    model = ZOO[json.loads((folder / "record.json").read_text())["network"]]().eval()
    model.load_state_dict(reefknot.load(folder / "model.reef"))
    shrunk = reefknot.shrink(model, torch.zeros(1, 1, 28, 28))
    inputs = torch.randn(64, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(shrunk.model(inputs), model(inputs), rtol=0, atol=1e-5)
    assert shrunk.parameters[0] > 5 * shrunk.parameters[1]
    assert shrunk.macs[0] > 5 * shrunk.macs[1]


def test_vgg_16_with_empty_channels_shrinks_to_what_is_left():
    torch.manual_seed(0)
    model = ZOO["vgg-16"]().eval()
    widths = {}
    with torch.no_grad():
        for number in range(1, 14):
            weight = model.get_submodule(f"conv{number}").weight
            widths[number] = len(weight) // 8
            weight[widths[number] :] = 0  # and so is the bias, and the shift of the norm
        model.fc1.weight[40:] = 0
    shrunk = shrink(model, torch.zeros(1, 3, 32, 32))
    found = shapes(shrunk.model)
    assert found["conv7.weight"] == (widths[7], widths[6], 3, 3)
    assert found["bn7.running_var"] == (widths[7],)
    assert found["fc1.weight"] == (40, widths[13])
    assert found["fc2.weight"] == (10, 40)
    inputs = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(shrunk.model(inputs), model(inputs), rtol=0, atol=1e-5)


# -- by hand ---------------------------------------------------------------------------------


def test_a_constant_unit_goes_into_the_next_bias_and_an_unread_input_is_not_asked_for():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0], [0, 2.0, 0, 0]]))
        model[0].bias.copy_(torch.tensor([0.0, 0.5, 0.0]))
        model[2].weight.copy_(torch.tensor([[1.0, 4.0, 1.0]]))
        model[2].bias.fill_(1.0)
    shrunk = shrink(model, torch.ones(1, 4))
    state = shrunk.model.state_dict()
    assert state["0_inputs.indices"].tolist() == [0, 1]
    assert state["0.weight"].tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert state["2.weight"].tolist() == [[1.0, 1.0]]
    assert state["2.bias"].tolist() == [3.0]  # 1 + 4 · 0.5
    first, last = shrunk.table
    assert (first.inputs, first.units, first.macs) == ((4, 2), (3, 2), (12, 4))
    assert (last.units, last.folded) == ((1, 1), 1)
    assert shrunk.parameters == (19, 9)


def test_names_stay_and_the_model_stays_as_it_is():
    model = sparsified(NETWORKS["residual"](), 1)
    before, keys = shapes(model), list(model.state_dict())
    smaller = shrink(model, model.example).model
    assert list(smaller.state_dict()) == keys
    assert shapes(model) == before
    assert type(smaller) is type(model)
    assert smaller.training
    assert smaller.first.out_channels == len(smaller.first.weight) < 6
    assert smaller.first_norm.num_features == smaller.first.out_channels


def constant_channel(**options):
    """A channel that is 1 everywhere, read by a convolution."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 1, 3, **options))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([1.0, 0.0]).reshape(2, 1, 1, 1))
        model[0].bias.fill_(1.0)
        model[2].weight.fill_(1.0)
    return model


@pytest.mark.parametrize(
    ("options", "units", "reason"),
    [
        ({}, 1, None),
        ({"padding": 1, "padding_mode": "circular"}, 1, None),
        ({"padding": 1}, 2, "2 pads the constant with zeros"),
        ({"padding": "same"}, 2, "2 pads the constant with zeros"),
        ({"bias": False}, 2, "2 has no bias to hold the constant"),
    ],
)
def test_a_constant_is_folded_only_where_that_is_exact(options, units, reason):
    model = constant_channel(**options).double().eval()
    shrunk = shrink(model, torch.rand(1, 1, 5, 5, dtype=torch.float64))
    assert shrunk.table[0].units == (2, units)
    assert shrunk.table[1].folded == 2 - units
    assert shrunk.table[0].stuck == (() if reason is None else ((reason, 1),))
    inputs = torch.rand(2, 1, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(shrunk.model(inputs), model(inputs), rtol=0, atol=1e-12)


def test_zero_goes_through_padding():
    model = constant_channel(padding=1)
    with torch.no_grad():
        model[0].bias[1] = -1.0
    assert shrink(model, torch.rand(1, 1, 5, 5)).table[0].units == (2, 1)


def test_depthwise_channels_go_with_their_input_and_their_output():
    model = nn.Sequential(
        nn.Conv1d(1, 4, 1), nn.Conv1d(4, 4, 3, groups=4), nn.ReLU(), nn.Conv1d(4, 2, 1)
    )
    with torch.no_grad():
        model[3].weight[:, 2] = 0
    smaller = shrink(model, torch.rand(1, 1, 8)).model
    assert smaller[0].out_channels == smaller[1].in_channels == smaller[1].groups == 3
    assert smaller[1].weight.shape == (3, 1, 3)
    assert smaller[3].weight.shape == (2, 3, 1)


def test_groups_stay_alike():
    model = nn.Sequential(nn.Conv1d(1, 6, 1), nn.Conv1d(6, 4, 1, groups=2))
    with torch.no_grad():
        model[1].weight[:2, 2] = 0  # input 2 of the first group; the second group reads its own
    shrunk = shrink(model, torch.rand(1, 1, 8))
    assert shrunk.table[0].stuck == (("the groups of 1 stay alike", 1),)
    with torch.no_grad():
        model[1].weight[2:, 2] = 0
    smaller = shrink(model, torch.rand(1, 1, 8)).model
    assert smaller[1].weight.shape == (4, 2, 1)
    assert smaller[1].groups == 2


def test_a_residual_sum_keeps_what_one_side_needs():
    model = NETWORKS["residual"]().eval()
    with torch.no_grad():
        model.second.weight[2] = 0
        model.second.bias[2] = 0
    rows = {row.name: row for row in shrink(model, model.example).table}
    assert rows["second"].units == (4, 4)
    assert rows["second"].stuck == (("add joins it with what is needed", 1),)


def test_views_that_tell_their_shape_in_numbers_are_put_right():
    model = NETWORKS["grouped"]().eval()
    with torch.no_grad():
        model.head.weight[:, 0:27] = 0  # the first three groups of three channels
    smaller = shrink(model, model.example).model
    assert smaller.second.groups == 1
    assert smaller.head.in_features == 9
    inputs = torch.rand(5, 2, 18)
    torch.testing.assert_close(smaller(inputs), model(inputs), rtol=0, atol=1e-5)


def test_what_is_used_twice_or_not_known_is_left_whole_with_its_reason():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.twice = nn.Linear(4, 4), nn.Linear(4, 4)
            self.last = nn.Linear(4, 4)

        def forward(self, x):
            x = self.twice(torch.relu(self.twice(torch.relu(self.first(x)))))
            return torch.cumsum(self.last(x), 1)

    model = Model()
    with torch.no_grad():
        model.twice.weight[:, 1] = 0
        model.last.weight[2] = 0
    shrunk = shrink(model, torch.rand(1, 4))
    rows = {row.name: row for row in shrunk.table}
    assert rows["first"].stuck == (("twice is used more than once", 1),)
    assert rows["last"].stuck == (("cumsum needs all of its inputs", 1),)
    assert [one.name for one in shrunk.unfollowed] == ["cumsum"]


def test_a_shape_that_is_computed_is_left_whole():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(3, 1)

        def forward(self, x):
            x = self.first(x)
            return self.last(x.reshape(x.size(0), 2, x.size(1) // 2))

    model = Model()
    with torch.no_grad():
        model.first.weight[4] = model.first.bias[4] = 0
        model.last.weight[:, 1] = 0
    inputs = torch.rand(3, 4)
    smaller = shrink(model, inputs[:1]).model
    torch.testing.assert_close(smaller(inputs), model(inputs))


def test_a_network_that_is_a_constant_keeps_one_unit_a_layer():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2))
    with torch.no_grad():
        model[3].weight.zero_()
    shrunk = shrink(model, torch.rand(1, 1, 5, 5))
    assert shrunk.table[0].units == (3, 1)
    assert torch.equal(shrunk.model(torch.rand(1, 1, 5, 5))[0], model[3].bias)


def test_the_result_can_be_trained_saved_and_shrunk_again():
    model = sparsified(NETWORKS["grouped"](), 3)
    smaller = shrink(model, model.example).model
    smaller(torch.rand(4, 2, 18)).sum().backward()
    assert all(p.grad is not None for p in smaller.parameters())
    again = shrink(smaller, model.example)
    assert again.parameters[1] == again.parameters[0]


def test_batchnorm_is_folded_into_the_layer_before_it():
    model = sparsified(NETWORKS["residual"](), 2).double().eval()
    folded = fold_batchnorm(model)
    assert isinstance(folded.norm, nn.Identity)
    assert folded.stem.bias is not None
    inputs = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(folded(inputs), model(inputs), rtol=0, atol=1e-12)
    smaller = shrink(folded, model.example.double()).model
    torch.testing.assert_close(smaller(inputs), model(inputs), rtol=0, atol=1e-9)
    assert isinstance(model.norm, nn.BatchNorm2d)


def test_a_batchnorm_whose_layer_is_seen_elsewhere_is_left_alone():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

        def forward(self, x):
            x = self.layer(x)
            return x + self.norm(x)

    assert isinstance(fold_batchnorm(Model()).norm, nn.BatchNorm1d)
