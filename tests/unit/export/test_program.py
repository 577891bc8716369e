"""Modules as lists of layers: the same function as torch, fewer units, one sentence otherwise."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from unit.export.networks import ready, strangers
from unit.export.reference import num_weights, run

import reefknot
from reefknot.errors import ConfigError
from reefknot.export.layers import program
from reefknot.export.program import Conv2d, Linear, Reshape, Softmax
from reefknot.export.shrunk import program_of
from reefknot.lab.zoo import INPUTS, NETWORKS


class Functional(nn.Module):
    """Layers as modules, functions and methods; a size that is read from the tensor."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding="same", bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 16, 3, groups=8, stride=2, dilation=2)
        self.last = nn.Linear(16 * 5 * 5, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 3, 2, 1)
        x = F.leaky_relu(self.depthwise(x), 0.2).contiguous()
        x = F.dropout(x.view(x.size(0), -1), training=self.training)
        return F.log_softmax(self.last(x), dim=1)


def activations():
    yield from (nn.ReLU(), nn.LeakyReLU(0.3), nn.ReLU6(), nn.Hardtanh(-0.5, 0.25), nn.Sigmoid())
    yield from (nn.Tanh(), nn.SiLU(), nn.GELU(), nn.Softmax(dim=1), nn.Identity(), nn.Dropout())


def examples():
    torch.manual_seed(0)
    yield "functional", Functional(), (1, 28, 28)
    for activation in activations():
        model = nn.Sequential(nn.Linear(6, 5), activation, nn.Linear(5, 3))
        yield type(activation).__name__, model, (6,)
    pools = nn.Sequential(
        nn.AvgPool2d(2), nn.Conv2d(2, 3, (1, 3), padding=(1, 0)), nn.AvgPool2d(3, 2, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    yield "pools", pools, (2, 9, 11)
    for name in ("lenet-300-100", "lenet-5-caffe", "digits-mlp"):
        yield name, NETWORKS[name](), INPUTS[name].shape
    normed = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.BatchNorm1d(5), nn.Sigmoid())
    yield "norms", normed, (4,)
    yield from strangers()


EXAMPLES = list(examples())


@pytest.mark.parametrize(
    ("model", "shape"), [e[1:] for e in EXAMPLES], ids=[e[0] for e in EXAMPLES]
)
def test_a_program_computes_what_the_module_does(model, shape):
    x = torch.randn(1, *shape)
    found = program(ready(model, shape), x)
    with torch.no_grad():
        expected = model(x).numpy()[0]
    assert found.in_shape == shape
    assert found.out_shape == expected.shape
    np.testing.assert_allclose(run(found, x), expected, atol=2e-6)


def test_layers_have_names_shapes_and_values():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3), nn.LogSoftmax(dim=1))
    conv, flat, linear, last = program(model, torch.zeros(1, 1, 4, 4)).layers
    assert (type(conv), type(flat), type(linear), type(last)) == (Conv2d, Reshape, Linear, Softmax)
    assert [layer.name for layer in (conv, flat, linear, last)] == ["0", "1", "2", "3"]
    assert (conv.in_shape, conv.out_shape, linear.out_shape) == ((1, 4, 4), (2, 2, 2), (3,))
    assert conv.weight.dtype == np.float32
    np.testing.assert_array_equal(linear.weight, model[2].weight.detach())


class Calls(nn.Module):
    """One layer as a function or a method, with its options by position."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (torch.tanh, (12,)),
        (torch.sigmoid, (12,)),
        (lambda x: x.softmax(1), (12,)),
        (lambda x: F.hardtanh(x, -0.5, 0.25), (12,)),
        (lambda x: F.relu6(x, False), (12,)),
        (lambda x: F.avg_pool2d(x, 2, 1).flatten(1), (1, 3, 4)),
    ],
)
def test_options_of_functions_and_methods_are_those_of_the_call(call, shape):
    x = torch.randn(1, *shape)
    np.testing.assert_allclose(run(program(Calls(call), x), x), call(x)[0], atol=1e-6)


def test_a_softmax_over_the_batch_is_refused():
    with pytest.raises(ConfigError, match="is taken over dimension 0 of several"):
        program(Calls(lambda x: x.softmax(0)), torch.zeros(1, 4))


class Conditional(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class TwoOutputs(nn.Module):
    def forward(self, x):
        return x, F.relu(x)


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Hardshrink()), (4,), "'1' is a Hardshrink"),
        (nn.Sequential(nn.LSTM(4, 4)), (4,), "'0'"),
        (Conditional(), (4,), "Conditional cannot be traced by torch.fx"),
        (TwoOutputs(), (4,), "does not return exactly one tensor"),
        (
            nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2, track_running_stats=False)),
            (1, 4, 4), "'1' has no running statistics",
        ),
        (nn.Sequential(nn.MaxPool2d(2, ceil_mode=True)), (1, 5, 5), "'0' has ceil_mode True"),
        (nn.Sequential(nn.Conv2d(1, 1, 2, padding="same")), (1, 5, 5), "'0' has different padding"),
        (nn.Sequential(nn.Conv2d(1, 1, 3, 1, 1, padding_mode="circular")), (1, 5, 5), "circular"),
        (nn.Sequential(nn.Linear(4, 2)), (3, 4), "'0' works on the last"),
        (nn.Sequential(nn.Linear(4, 2)), (5,), "does not take the example input of shape (1, 5)"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(2)), (1, 5, 5), "windows of different sizes"),
    ],
)  # fmt: skip
def test_what_cannot_be_expressed_is_one_sentence_that_names_the_layer(model, shape, words):
    with pytest.raises(ConfigError) as error:
        program(model.eval(), torch.randn(1, *shape))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_example_is_a_batch_of_one():
    with pytest.raises(ConfigError, match="batch of one"):
        program(nn.Linear(4, 2), torch.zeros(2, 4))


# -- dead units ------------------------------------------------------------------------------


def emptied(model, share, seed=0):
    """Most weights zero, so that units die; biases stay."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data *= torch.rand(parameter.shape, generator=generator) < share
    return model.eval()


def test_dead_units_go_and_the_function_stays():
    model = emptied(NETWORKS["lenet-300-100"](), 0.003)
    nn.init.normal_(model.fc1.bias)  # constants that must be carried on
    x = torch.randn(1, 1, 28, 28)
    whole, small = program(model, x), program_of(None, model, x)
    assert num_weights(small) < num_weights(whole) / 4
    np.testing.assert_allclose(run(small, x), run(whole, x), atol=1e-6)
    for layer in small.layers:
        if isinstance(layer, Linear) and layer.name != "fc3":
            assert layer.weight.any(1).all()
            assert layer.out_shape == (len(layer.weight),)


def test_dead_channels_go_through_pooling_and_flattening():
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 5, 3), nn.Tanh(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(5 * 2 * 2, 4),
    ).eval()  # fmt: skip
    with torch.no_grad():
        model[0].weight[2] = 0  # a constant
        model[3].weight[:, 4] = 0  # nothing uses it
        model[3].weight[1] = 0  # a constant, after tanh
        model[7].weight.view(4, 5, 4)[:, 3] = 0  # nothing uses it
    x = torch.randn(1, 1, 14, 14)
    small = program_of(None, model, x)
    assert [layer.out_shape for layer in small.layers] == [
        (4, 12, 12), (4, 12, 12), (4, 6, 6), (3, 4, 4), (3, 4, 4), (3, 2, 2), (12,), (4,),
    ]  # fmt: skip
    np.testing.assert_allclose(run(small, x), model(x)[0].detach(), atol=1e-6)


def test_a_constant_that_is_padded_stays_unless_it_is_zero():
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.Conv2d(3, 1, 3, padding=1)).eval()
    with torch.no_grad():
        model[0].weight[:2] = 0
        model[0].bias[:] = torch.tensor([1.0, 0.0, 1.0])
    x = torch.randn(1, 1, 5, 5)
    small = program_of(None, model, x)
    assert small.layers[0].out_shape == (2, 5, 5)
    np.testing.assert_allclose(run(small, x), model(x)[0].detach(), atol=1e-6)


# -- where values come from ------------------------------------------------------------------


def test_values_come_from_the_file_and_the_module_stays_as_it_was(tmp_path):
    torch.manual_seed(0)
    trained, fresh = nn.Linear(6, 2), nn.Linear(6, 2)
    before = fresh.weight.clone()
    reefknot.save(reefknot.cluster(trained.state_dict(), keep=["*"]), tmp_path / "model.reef")
    found = program_of(tmp_path / "model.reef", fresh)
    np.testing.assert_array_equal(found.layers[0].weight, trained.weight.detach())
    assert torch.equal(before, fresh.weight)
    assert program_of(None, fresh).layers[0].weight[0, 0] == fresh.weight[0, 0].item()


def test_a_file_that_does_not_fit_and_a_shape_that_is_not_known_are_one_sentence(tmp_path):
    reefknot.save(reefknot.cluster(nn.Linear(6, 2).state_dict()), tmp_path / "model.reef")
    with pytest.raises(ConfigError, match=r"model.reef does not fit the model: .*size mismatch"):
        program_of(tmp_path / "model.reef", nn.Linear(5, 2))
    with pytest.raises(ConfigError, match=r"the input shape of .* is not known"):
        program_of(None, nn.Conv2d(1, 2, 3))
