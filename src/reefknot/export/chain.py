"""From a torch module to the list of layers that exporters understand.

Takes     a plain module that holds its values already, and an example input (a batch of one).
Gives     `Program`; a layer that it cannot express is named in an error.
Unaware   of files, of what is dead (give it a shrunk module, if you have one) and of languages.

The graph is that of `shrinking.trace`, so that modules, functions and methods of tensors all count.
The layers must form a chain: branches and sums are refused.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.fx.node import Node

from reefknot.batchnorm import channel_scale
from reefknot.errors import ConfigError
from reefknot.export.layers import MAKERS, NOTHING, SHAPES, UnsupportedError, options
from reefknot.export.program import Conv2d, Flatten, Layer, Linear, Program, Shape
from reefknot.shrinking.trace import Trace, trace

_KNOWN = (
    "supported are Linear, Conv2d, MaxPool2d, AvgPool2d, BatchNorm, Flatten, ReLU, LeakyReLU, "
    "ReLU6, Hardtanh, Sigmoid, Tanh, SiLU, GELU, Softmax and Dropout, one after the other"
)


def program(model: nn.Module, example_input: Tensor) -> Program:
    """The module's layers in the order they run, with its values in float32."""
    if example_input.dim() < 2 or len(example_input) != 1:
        raise ConfigError(
            "the example input is a batch of one, such as torch.zeros(1, 1, 28, 28); "
            f"found shape {tuple(example_input.shape)}"
        )
    found = trace(model, example_input)
    layers: list[Layer] = []
    last: Node | None = None
    tensors = [
        n for n in found.graph.nodes if isinstance(found.values[n], Tensor) and n.op != "get_attr"
    ]
    for node in found.graph.nodes:
        if node not in tensors:
            if node.op == "call_module":
                raise _unknown(node, found.module(node))
            continue
        sources = [n for n in node.all_input_nodes if n in tensors]
        if node.op == "placeholder":
            if last is not None:
                raise ConfigError("the network has several inputs; an export has one")
        elif sources != [last]:
            raise ConfigError(
                f"{_name(node)} does not follow {_name(last)} alone: the layers of an export are "
                "a chain, without branches, sums or constants"
            )
        elif node.op != "output" and last is not None:
            out = found.values[node]
            if len(out) != 1 or out.dim() < 2:
                shape = tuple(out.shape)
                raise ConfigError(f"{_name(node)} gives shape {shape}, not a batch of one")
            shapes = (tuple(found.values[last].shape[1:]), tuple(out.shape[1:]))
            _append(layers, node, found, *shapes)
        last = node
    if last is None or last.op != "output":
        raise ConfigError("the network does not return exactly one tensor, which an export needs")
    return Program(tuple(example_input.shape[1:]), tuple(layers))


def _name(node: Node | None) -> str:
    """The name of a node in messages: that of the module, or of the function."""
    if node is None:
        return "the input"
    if node.op == "placeholder":
        return f"the input {node.name!r}"
    if node.op == "call_module":
        return repr(str(node.target))
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return f"{node.name!r} ({target})"


# -- layers ----------------------------------------------------------------------------------


def _append(
    layers: list[Layer], node: Node, found: Trace, in_shape: Shape, out_shape: Shape
) -> None:
    """Add the node's layer, or change the last one if it is a BatchNorm."""
    module, kind = found.module(node), found.kind(node)
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        _fold(layers, module, node)
        return
    base: dict[str, Any] = {
        "name": found.name(node), "in_shape": in_shape, "out_shape": out_shape
    }  # fmt: skip
    if kind in NOTHING or (kind in SHAPES and in_shape == out_shape):
        return
    if kind in SHAPES and out_shape == (math.prod(in_shape),):
        layers.append(Flatten(**base))
        return
    if kind not in MAKERS or (kind == "conv" and len(in_shape) != 3):
        raise _unknown(node, module)
    make, defaults = MAKERS[kind]
    given = {
        name: found.values[value] if isinstance(value, Node) and value.op == "get_attr" else value
        for name, value in options(found, node, defaults).items()
    }
    try:
        layers.append(make(base, given))
    except UnsupportedError as error:
        raise ConfigError(f"{_name(node)} {error}, which an export cannot express") from error


def _unknown(node: Node, module: nn.Module | None) -> ConfigError:
    kind = node.target if module is None else type(module)
    what = getattr(kind, "__name__", kind)
    return ConfigError(f"{_name(node)} is a {what}, which an export cannot express; {_KNOWN}")


def _fold(layers: list[Layer], norm: nn.BatchNorm1d | nn.BatchNorm2d, node: Node) -> None:
    """Fold a BatchNorm into the layer before it."""
    last = layers[-1] if layers else None
    if not isinstance(last, Linear | Conv2d):
        raise ConfigError(
            f"{_name(node)} is a BatchNorm that does not follow a Linear or Conv2d layer, "
            "which an export cannot express"
        )
    if norm.running_mean is None or norm.running_var is None:
        raise ConfigError(
            f"{_name(node)} has no running statistics, which an export cannot express"
        )
    scale = channel_scale(norm)
    shift = -norm.running_mean.double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.detach().double()
    factor = scale.numpy()
    bias = (last.bias * factor + shift.numpy()).astype(np.float32)
    before = 1.0 if last.scale is None else last.scale
    layers[-1] = replace(last, scale=(before * factor).astype(np.float32), bias=bias)
