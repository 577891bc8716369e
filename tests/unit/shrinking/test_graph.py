"""Which elements are dead: hand-worked networks, and random ones whose dead elements are zeroed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shrink_networks import NETWORKS, build, random_network, sparsified
from torch import nn
from torch.nn import functional as F

from reefknot.errors import ReefknotError
from reefknot.shrinking.graph import NOT_KNOWN, NOT_USED, analyse, dead_elements


def zeroed(model, dead):
    """The model with every dead element zero."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, mask in dead.items():
        state[name][mask] = 0
    copy = build(model)
    copy.load_state_dict(state)
    return copy


def test_a_unit_that_feeds_only_zeros_is_dead_and_so_is_one_that_only_gives_zero():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
        model[2].weight[:, 1] = 0  # unit 1 feeds zeros
        model[0].weight[2] = 0  # unit 2 is fed by zeros, and its ReLU gives 0
        model[0].bias[2] = -1
        model[0].weight[3] = 0  # unit 3 is fed by zeros, and gives the constant 1
        model[0].weight[:, 0] = 0  # input 0 is not looked at; its weights could live again
    dead = dead_elements(model, torch.ones(1, 3))
    assert dead["0.weight"].tolist() == [[False] * 3, [True] * 3, [True] * 3, [False] * 3]
    assert dead["0.bias"].tolist() == [False, True, True, False]
    assert dead["2.weight"].tolist() == [[False, False, True, False]] * 2
    assert dead["2.bias"].tolist() == [False, False]


def test_a_negative_bias_is_alive_where_the_next_layer_sees_it():
    model = nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 1))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(-1.0)
    assert dead_elements(model, torch.ones(1, 3))["0.bias"].tolist() == [False]


def test_channels_die_through_batchnorm_pooling_and_flatten():
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(3 * 2 * 2, 2),
    )  # fmt: skip
    with torch.no_grad():
        model[5].weight[:, 4:8] = 0  # all four pixels of channel 1
        model[5].weight[:, 8:11] = 0  # three of channel 2: its filter is needed for the last
        model[1].weight[0] = 0  # channel 0 is what its shift is
        model[1].bias[0] = 0.5
    dead = dead_elements(model, torch.rand(1, 1, 6, 6))
    assert dead["0.weight"].flatten(1).all(1).tolist() == [True, True, False]
    assert dead["1.bias"].tolist() == [False, True, False]
    assert dead["1.weight"].tolist() == [False, True, False]
    assert dead["1.running_var"].tolist() == [True, True, False]
    assert not dead["5.weight"].any()


def test_a_convolution_that_sees_only_the_middle_has_dead_borders():
    model = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1))
    dead = dead_elements(model, torch.rand(1, 1, 1, 1))  # one pixel: only the middle touches it
    expected = torch.ones(3, 3, dtype=torch.bool)
    expected[1, 1] = False
    assert torch.equal(dead["0.weight"][0, 0], expected)


def test_groups_and_depthwise_convolutions_are_followed_channel_by_channel():
    model = nn.Sequential(
        nn.Conv1d(2, 4, 1), nn.Conv1d(4, 4, 3, groups=4), nn.Conv1d(4, 2, 1, groups=2)
    )
    with torch.no_grad():
        model[2].weight[1, 0] = 0  # the second group has channels 2 and 3, and looks at 3 alone
    dead = dead_elements(model, torch.rand(1, 2, 8))
    assert dead["0.weight"].flatten(1).all(1).tolist() == [False, False, True, False]
    assert dead["1.weight"].flatten(1).all(1).tolist() == [False, False, True, False]
    assert not dead["2.weight"].any()


def test_a_residual_sum_needs_what_comes_after_it_of_both_branches():
    model = NETWORKS["residual"]()
    with torch.no_grad():
        model.head.weight[:, 1] = 0
        model.second.weight[2] = 0  # the branch adds nothing to channel 2, which lives on
    dead = dead_elements(model, torch.rand(1, 3, 8, 8))
    assert dead["stem.weight"].flatten(1).all(1).sum() == 0  # the branch still looks at channel 1
    assert dead["second.weight"].flatten(1).all(1).tolist() == [False, True, False, False]


def test_concatenation_keeps_apart_what_came_from_where():
    model = NETWORKS["concatenation"]()
    with torch.no_grad():
        model.head.weight[:, 5] = 0  # the second branch begins at 4
    dead = dead_elements(model, torch.rand(1, 6))
    assert not dead["left.weight"].any()
    assert dead["right.weight"].all(1).tolist() == [False, True, False]


def test_layer_norm_needs_all_that_it_normalises():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    with torch.no_grad():
        model[2].weight[:, 1] = 0
    dead = dead_elements(model, torch.rand(1, 3))
    assert not dead["0.weight"].any()
    assert dead["1.weight"].tolist() == dead["1.bias"].tolist() == [False, True, False, False]
    with torch.no_grad():
        model[2].weight.zero_()
    assert dead_elements(model, torch.rand(1, 3))["0.weight"].all()


def test_weights_used_twice_are_dead_only_if_they_are_dead_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.same = self.layer

        def forward(self, x):
            return self.same(torch.relu(self.layer(x)))[:, :1]

    model = Twice()
    with torch.no_grad():
        model.layer.weight.fill_(1.0)
        model.layer.weight[0, 2] = 0  # of all units only 0 is looked at, and it ignores unit 2
    dead = dead_elements(model, torch.rand(1, 3))
    assert dead["layer.bias"].tolist() == dead["same.bias"].tolist() == [False, False, True]
    assert dead["layer.weight"].tolist() == [[False] * 3, [False] * 3, [True] * 3]


def test_functions_and_parameters_of_ones_own_are_followed_as_modules_are():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Parameter(torch.rand(4, 3))
            self.scale = nn.Parameter(torch.tensor([1.0, 0.0, 1.0, 1.0]))
            self.last = nn.Parameter(torch.rand(2, 4))

        def forward(self, x):
            hidden = F.gelu(F.linear(x, self.first)) * self.scale
            return hidden @ self.last.t()

    model = Functional()
    with torch.no_grad():
        model.last[:, 3] = 0
    dead = dead_elements(model, torch.rand(1, 3))
    assert dead["first"].all(1).tolist() == [False, True, False, True]
    assert dead["scale"].tolist() == [False, False, False, True]
    assert dead["last"].tolist() == [[False, True, False, False]] * 2


def test_what_cannot_be_followed_is_alive_and_named():
    class Unfollowable(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x) if x.sum() > 0 else x

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.odd, self.last = nn.Linear(3, 4), Unfollowable(), nn.Linear(4, 2)
            self.idle = nn.Linear(2, 2)

        def forward(self, x):
            return self.last(torch.cumsum(self.odd(self.first(x)), 1))

    model = Model()
    with torch.no_grad():
        model.last.weight[:, 1:] = 0
    found = analyse(model, torch.rand(1, 3))
    assert not any(mask.any() for mask in found.dead.values())
    assert "idle.weight" not in found.dead
    reasons = {one.name: one.reason for one in found.unfollowed}
    assert "torch.fx cannot trace it" in reasons["odd"]
    assert reasons["cumsum"] == NOT_KNOWN
    assert reasons["idle.weight"] == NOT_USED


def test_a_model_that_fx_cannot_trace_at_all_is_refused_in_one_sentence():
    class Model(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ReefknotError, match="Model cannot be traced by torch"):
        analyse(Model(), torch.rand(1, 3))


def test_the_model_stays_as_it_is():
    model = NETWORKS["residual"]().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    analyse(model, torch.rand(1, 3, 8, 8))
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_zeroing_all_that_is_dead_changes_nothing(name):
    for seed in range(5):
        model = sparsified(NETWORKS[name](), seed).double().eval()
        dead = dead_elements(model, model.example)
        inputs = torch.rand(3, *model.example.shape[1:], dtype=torch.float64)
        changed = zeroed(model, dead).double().eval()
        torch.testing.assert_close(changed(inputs), model(inputs), rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 1 << 30))
def test_zeroing_all_that_is_dead_in_random_networks_changes_nothing(seed):
    model = random_network(seed).double().eval()
    changed = zeroed(model, dead_elements(model, model.example)).double().eval()
    inputs = torch.randn(2, *model.example.shape[1:], dtype=torch.float64)
    torch.testing.assert_close(changed(inputs), model(inputs), rtol=0, atol=1e-9)
