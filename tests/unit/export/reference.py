"""Runs a `Program` by torch's functions, in float64: what an export of it is compared with."""

import torch
from torch.nn import functional as F

from reefknot.export.program import (
    Activation,
    Cat,
    Conv2d,
    Join,
    Linear,
    Norm,
    Pick,
    Pool,
    Softmax,
    planes_of,
)

FUNCTIONS = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "clip": F.hardtanh,
    "sigmoid": torch.sigmoid,
    "hardsigmoid": F.hardsigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "gelu": F.gelu,
    "affine": lambda x, slope, low: slope * x + low,
}


def run(program, example):
    """The outputs for one example."""
    values = [torch.as_tensor(example).double().reshape(1, *program.in_shape)]
    for layer in program.layers:
        inputs = [values[number] for number in layer.inputs]
        assert tuple(inputs[0].shape[1:]) == layer.in_shape
        values.append(_run(layer, *inputs))
        assert tuple(values[-1].shape[1:]) == layer.out_shape
    return values[-1][0].numpy()


def num_weights(program):
    """Weights and biases, zeros included."""
    weighted = [layer for layer in program.layers if isinstance(layer, Linear | Conv2d)]
    return sum(layer.weight.size + layer.bias.size for layer in weighted)


def _run(layer, x, *others):
    if isinstance(layer, Linear | Conv2d):
        weight, bias = (torch.from_numpy(v).double() for v in (layer.weight, layer.bias))
        if isinstance(layer, Linear):
            return F.linear(x, weight, bias)
        windows = (layer.stride, layer.padding, layer.dilation, layer.groups)
        return F.conv2d(x, weight, bias, *windows)
    if isinstance(layer, Norm):
        scale, shift = (torch.from_numpy(v).view(-1, *[1] * (x.dim() - 2)) for v in
                        (layer.scale, layer.shift))  # fmt: skip
        return x * scale + shift
    if isinstance(layer, Pool):
        pool = F.max_pool2d if layer.kind == "max" else F.avg_pool2d
        return pool(x, layer.kernel, layer.stride, layer.padding).view(1, *layer.out_shape)
    if isinstance(layer, Activation):
        bounds = {"leaky_relu": [layer.slope], "clip": [layer.low, layer.high],
                  "elu": [layer.slope], "affine": [layer.slope, layer.low]}  # fmt: skip
        return FUNCTIONS[layer.kind](x, *bounds.get(layer.kind, []))
    if isinstance(layer, Softmax):
        return F.log_softmax(x, 1) if layer.log else F.softmax(x, 1)
    if isinstance(layer, Join):
        return x + others[0] if layer.kind == "add" else x * others[0]
    if isinstance(layer, Cat):
        return torch.cat([x, *others], 1)
    if isinstance(layer, Pick):
        return _picked(layer, x)
    return x.reshape(1, *layer.out_shape)


def _picked(layer, x):
    """Element by element, as the class says."""
    x = x.reshape(planes_of(layer.in_shape))
    out = torch.zeros(planes_of(layer.out_shape), dtype=x.dtype)
    for c, channel in enumerate(layer.channels):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                y, z = (layer.start[k] + layer.step[k] * (i, j)[k] for k in (0, 1))
                if channel >= 0 and 0 <= y < x.shape[1] and 0 <= z < x.shape[2]:
                    out[c, i, j] = x[channel, y, z]
    return out.reshape(1, *layer.out_shape)
