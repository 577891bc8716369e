"""Runs a `Program` by torch's functions, in float64: what an export of it is compared with."""

import torch
from torch.nn import functional as F

from reefknot.export.program import Activation, Conv2d, Linear, Pool, Softmax

FUNCTIONS = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "clip": F.hardtanh,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
}


def run(program, example):
    """The outputs for one example."""
    x = torch.as_tensor(example).double().reshape(1, *program.in_shape)
    for layer in program.layers:
        x = _run(layer, x)
        assert tuple(x.shape[1:]) == layer.out_shape
    return x[0].numpy()


def num_weights(program):
    """Weights and biases, zeros included."""
    weighted = [layer for layer in program.layers if isinstance(layer, Linear | Conv2d)]
    return sum(layer.weight.size + layer.bias.size for layer in weighted)


def _run(layer, x):
    if isinstance(layer, Linear | Conv2d):
        weight = torch.from_numpy(layer.weight).double()
        if isinstance(layer, Linear):
            y = F.linear(x, weight)
        else:
            y = F.conv2d(x, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
        channels = (-1, *[1] * (y.dim() - 2))
        if layer.scale is not None:
            y = y * torch.from_numpy(layer.scale).reshape(channels)
        return y + torch.from_numpy(layer.bias).reshape(channels)
    if isinstance(layer, Pool):
        pool = F.max_pool2d if layer.kind == "max" else F.avg_pool2d
        return pool(x, layer.kernel, layer.stride, layer.padding)
    if isinstance(layer, Activation):
        bounds = {"leaky_relu": [layer.slope], "clip": [layer.low, layer.high]}
        return FUNCTIONS[layer.kind](x, *bounds.get(layer.kind, []))
    if isinstance(layer, Softmax):
        return F.log_softmax(x, 1) if layer.log else F.softmax(x, 1)
    return x.flatten(1)
