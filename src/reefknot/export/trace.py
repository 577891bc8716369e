"""From a torch module to the list of layers that exporters understand.

Takes     a plain module that holds its values already, and an example input (a batch of one).
Gives     `Program`; what it cannot express is one sentence that names the layer.
Unaware   of files, of shrinking (give it a shrunk module, if you have one) and of target languages.

torch.fx runs through the module once, so that modules, functions and methods of tensors all count.
The layers must form a chain: branches and sums are refused.
"""

import copy
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from reefknot.errors import ConfigError
from reefknot.export.layers import MAKERS, NOTHING, SHAPES, UnsupportedError
from reefknot.export.program import Conv2d, Flatten, Layer, Linear, Program, Shape

_KNOWN = (
    "known are Linear, Conv2d, MaxPool2d, AvgPool2d, BatchNorm, Flatten, ReLU, LeakyReLU, ReLU6, "
    "Hardtanh, Sigmoid, Tanh, SiLU, GELU, Softmax and Dropout, one after the other"
)


def trace(model: nn.Module, example_input: Tensor) -> Program:
    """The module's layers in the order they run, with its values in float32."""
    if example_input.dim() < 2 or len(example_input) != 1:
        raise ConfigError(
            "the example input is a batch of one, such as torch.zeros(1, 1, 28, 28); "
            f"found shape {tuple(example_input.shape)}"
        )
    plain = copy.deepcopy(model).cpu().float().eval()
    graph = _traced(plain)
    results = _run(graph, example_input.cpu().float())
    layers: list[Layer] = []
    last: Any = None
    in_shape: Shape = tuple(example_input.shape[1:])
    tensors = [
        n for n in graph.graph.nodes if isinstance(results[n], Tensor) and n.op != "get_attr"
    ]
    for node in graph.graph.nodes:
        if node not in tensors:
            if node.op == "call_module":
                raise _unknown(node, type(graph.get_submodule(str(node.target))))
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
        if node.op == "output" or node.op == "placeholder":
            last = node
            continue
        out = results[node]
        if len(out) != 1 or out.dim() < 2:
            raise ConfigError(f"{_name(node)} gives shape {tuple(out.shape)}, not a batch of one")
        shapes = (tuple(results[last].shape[1:]), tuple(out.shape[1:]))
        _append(layers, node, graph, *shapes)
        last = node
    if last is None or last.op != "output":
        raise ConfigError("the network gives something else than one tensor, which an export needs")
    return Program(in_shape, tuple(layers))


def _traced(model: nn.Module) -> fx.GraphModule:
    try:
        return fx.symbolic_trace(model)
    except Exception as error:  # torch.fx raises many kinds
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"torch.fx cannot follow {type(model).__name__}: {reason}; an export needs a forward "
            "without conditions on values and shapes"
        ) from error


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps what every node gave."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.results: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.results[n] = super().run_node(n)
        return self.results[n]


def _run(graph: fx.GraphModule, example: Tensor) -> dict[fx.Node, Any]:
    recorder = _Recorder(graph)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's advice on speed
        try:
            graph(example)  # first, since torch.fx takes seconds to tell of an error
        except Exception as error:  # whatever a layer says to a wrong shape
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"the network does not take an input of shape {tuple(example.shape)}: {reason}"
            ) from error
        recorder.run(example)
    return recorder.results


def _name(node: fx.Node | None) -> str:
    """What a sentence calls a node: the module's name, or the function's."""
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
    layers: list[Layer], node: fx.Node, graph: fx.GraphModule, in_shape: Shape, out_shape: Shape
) -> None:
    """Add the node's layer, or change the last one if it is a BatchNorm."""
    name = str(node.target) if node.op == "call_module" else node.name
    base: dict[str, Any] = {"name": name, "in_shape": in_shape, "out_shape": out_shape}
    if node.op == "call_module":
        module = graph.get_submodule(str(node.target))
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            _fold(layers, module, node)
            return
        kind: Any = type(module)
        known = {n: v for n, v in vars(module).items() if not n.startswith("_")}
        tensors: Mapping[str, Any] = dict(module.named_parameters(recurse=False))
        arguments = {**known, **tensors}
    else:
        kind = node.target
        arguments = _arguments(node, graph)
    if kind in NOTHING or (kind in SHAPES and in_shape == out_shape):
        return
    if kind in SHAPES and out_shape == (math.prod(in_shape),):
        layers.append(Flatten(**base))
        return
    maker = MAKERS.get(kind)
    if maker is None:
        raise _unknown(node, kind)
    try:
        layers.append(maker(base, arguments))
    except UnsupportedError as error:
        raise ConfigError(f"{_name(node)} {error}, which an export cannot express") from error


def _unknown(node: fx.Node, kind: Any) -> ConfigError:
    what = getattr(kind, "__name__", kind)
    return ConfigError(f"{_name(node)} is a {what}, which an export cannot express; {_KNOWN}")


def _arguments(node: fx.Node, graph: fx.GraphModule) -> dict[str, Any]:
    """The arguments of a function or method by name, with the values of attributes."""
    if node.op != "call_function":
        return dict(node.kwargs)
    normal = node.normalized_arguments(graph, normalize_to_only_use_kwargs=True)
    kwargs = dict(node.kwargs) if normal is None else normal.kwargs

    def value(x: Any) -> Any:
        if isinstance(x, fx.Node) and x.op == "get_attr":
            found: Any = graph
            for part in str(x.target).split("."):
                found = getattr(found, part)
            return found
        return x

    return {key: value(x) for key, x in kwargs.items()}


def _fold(layers: list[Layer], norm: nn.BatchNorm1d | nn.BatchNorm2d, node: fx.Node) -> None:
    """Put a BatchNorm into the layer before it."""
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
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.detach().double()
    shift = -norm.running_mean.double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.detach().double()
    factor = scale.numpy()
    bias = (last.bias * factor + shift.numpy()).astype(np.float32)
    before = 1.0 if last.scale is None else last.scale
    changed = {"scale": (before * factor).astype(np.float32), "bias": bias}
    layers[-1] = type(last)(**{**vars(last), **changed})
