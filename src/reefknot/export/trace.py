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
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from reefknot.errors import ConfigError
from reefknot.export.program import (
    Activation,
    Conv2d,
    Flatten,
    Layer,
    Linear,
    Pair,
    Pool,
    Program,
    Shape,
    Softmax,
)

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
    if kind in _NOTHING or (kind in _SHAPES and in_shape == out_shape):
        return
    if kind in _SHAPES and out_shape == (math.prod(in_shape),):
        layers.append(Flatten(**base))
        return
    maker = _MAKERS.get(kind)
    if maker is None:
        raise _unknown(node, kind)
    try:
        layers.append(maker(base, arguments))
    except _UnsupportedError as error:
        raise ConfigError(f"{_name(node)} {error}, which an export cannot express") from error


def _unknown(node: fx.Node, kind: Any) -> ConfigError:
    what = getattr(kind, "__name__", kind)
    return ConfigError(f"{_name(node)} is a {what}, which an export cannot express; {_KNOWN}")


class _UnsupportedError(Exception):
    """A setting of a known layer that exporters do not know."""


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


def _array(tensor: Any, fallback: int = 0) -> np.ndarray:
    if not isinstance(tensor, Tensor):
        return np.zeros(fallback, np.float32)
    array = np.ascontiguousarray(tensor.detach().numpy())
    return np.where(array == 0, np.float32(0), array)  # -0.0 is no value of its own


def _pair(value: Any, what: str) -> Pair:
    if isinstance(value, int):
        return value, value
    if isinstance(value, tuple | list) and len(value) == 2 and all(type(v) is int for v in value):
        return int(value[0]), int(value[1])
    raise _UnsupportedError(f"has {what} {value!r}")


def _linear(base: dict[str, Any], a: Mapping[str, Any]) -> Layer:
    if len(base["in_shape"]) != 1:
        raise _UnsupportedError(f"works on the last of the dimensions {base['in_shape']}")
    weight = _array(a["weight"])
    return Linear(**base, weight=weight, bias=_array(a.get("bias"), len(weight)))


def _conv(base: dict[str, Any], a: Mapping[str, Any]) -> Layer:
    if a.get("padding_mode", "zeros") != "zeros":
        raise _UnsupportedError(f"has padding_mode {a['padding_mode']!r}")
    weight = _array(a["weight"])
    dilation, padding = _pair(a.get("dilation", 1), "dilation"), a.get("padding", 0)
    if padding == "valid":
        padding = 0
    elif padding == "same":
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        if any(r % 2 for r in reach):
            raise _UnsupportedError("is padded by different numbers at its two sides")
        padding = (reach[0] // 2, reach[1] // 2)
    return Conv2d(
        **base,
        weight=weight,
        bias=_array(a.get("bias"), len(weight)),
        stride=_pair(a.get("stride", 1), "stride"),
        padding=_pair(padding, "padding"),
        dilation=dilation,
        groups=int(a.get("groups", 1)),
    )


def _pool(kind: Any) -> Callable[[dict[str, Any], Mapping[str, Any]], Layer]:
    def make(base: dict[str, Any], a: Mapping[str, Any]) -> Layer:
        kernel, padding = _pair(a["kernel_size"], "kernel"), _pair(a.get("padding", 0), "padding")
        for key, usual in (("ceil_mode", False), ("dilation", 1), ("return_indices", False)):
            if a.get(key, usual) not in (usual, (usual, usual)):
                raise _UnsupportedError(f"has {key} {a[key]!r}")
        if any(padding) and kind == "mean" and not a.get("count_include_pad", True):
            raise _UnsupportedError("has padding that its means do not count")
        if a.get("divisor_override") is not None:
            raise _UnsupportedError("has a divisor_override")
        if len(base["in_shape"]) != 3:
            raise _UnsupportedError(f"pools an input of shape {base['in_shape']}")
        stride = a.get("stride") or kernel  # functions leave it out for the kernel's own size
        return Pool(
            **base, kind=kind, kernel=kernel, stride=_pair(stride, "stride"), padding=padding
        )

    return make


def _adaptive(kind: Any) -> Callable[[dict[str, Any], Mapping[str, Any]], Layer]:
    def make(base: dict[str, Any], a: Mapping[str, Any]) -> Layer:
        size, out = base["in_shape"][1:], base["out_shape"][1:]
        if len(size) != 2 or any(s % o for s, o in zip(size, out, strict=True)):
            raise _UnsupportedError(f"pools {base['in_shape']} into windows of different sizes")
        kernel = (size[0] // out[0], size[1] // out[1])
        return Pool(**base, kind=kind, kernel=kernel, stride=kernel)

    return make


def _activation(kind: Any) -> Callable[[dict[str, Any], Mapping[str, Any]], Layer]:
    def make(base: dict[str, Any], a: Mapping[str, Any]) -> Layer:
        if kind == "gelu" and a.get("approximate", "none") != "none":
            raise _UnsupportedError("is approximated by tanh")
        slope = float(a.get("negative_slope", 0.01)) if kind == "leaky_relu" else 0.0
        low, high = (
            (float(a.get("min_val", -1)), float(a.get("max_val", 1))) if kind == "clip" else (0, 0)
        )
        return Activation(**base, kind=kind, slope=slope, low=low, high=high)

    return make


def _relu6(base: dict[str, Any], _: Mapping[str, Any]) -> Layer:
    return Activation(**base, kind="clip", low=0.0, high=6.0)


def _softmax(log: bool) -> Callable[[dict[str, Any], Mapping[str, Any]], Layer]:
    def make(base: dict[str, Any], a: Mapping[str, Any]) -> Layer:
        if len(base["in_shape"]) != 1 or a.get("dim", -1) not in (1, -1, None):
            raise _UnsupportedError(f"is taken over dimension {a.get('dim')} of several")
        return Softmax(**base, log=log)

    return make


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


_NOTHING: set[Any] = {
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout),
    *(F.dropout, F.dropout2d, "contiguous", "to", "float", "detach", "clone"),
}
_SHAPES: set[Any] = {
    *(nn.Flatten, nn.Unflatten, torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze),
    *("flatten", "view", "reshape", "squeeze", "unsqueeze"),
}
_MAKERS: dict[Any, Callable[[dict[str, Any], Mapping[str, Any]], Layer]] = {
    **dict.fromkeys((nn.Linear, F.linear), _linear),
    **dict.fromkeys((nn.Conv2d, F.conv2d, torch.conv2d), _conv),
    **dict.fromkeys((nn.MaxPool2d, F.max_pool2d, torch.max_pool2d), _pool("max")),
    **dict.fromkeys((nn.AvgPool2d, F.avg_pool2d), _pool("mean")),
    **dict.fromkeys((nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d), _adaptive("mean")),
    **dict.fromkeys((nn.AdaptiveMaxPool2d, F.adaptive_max_pool2d), _adaptive("max")),
    **dict.fromkeys(
        (nn.ReLU, F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_"), _activation("relu")
    ),
    **dict.fromkeys((nn.LeakyReLU, F.leaky_relu), _activation("leaky_relu")),
    **dict.fromkeys((nn.Hardtanh, F.hardtanh), _activation("clip")),
    **dict.fromkeys((nn.ReLU6, F.relu6), _relu6),
    **dict.fromkeys((nn.Sigmoid, F.sigmoid, torch.sigmoid, "sigmoid"), _activation("sigmoid")),
    **dict.fromkeys((nn.Tanh, F.tanh, torch.tanh, "tanh"), _activation("tanh")),
    **dict.fromkeys((nn.SiLU, F.silu), _activation("silu")),
    **dict.fromkeys((nn.GELU, F.gelu), _activation("gelu")),
    **dict.fromkeys((nn.Softmax, F.softmax, torch.softmax, "softmax"), _softmax(log=False)),
    **dict.fromkeys(
        (nn.LogSoftmax, F.log_softmax, torch.log_softmax, "log_softmax"), _softmax(log=True)
    ),
}
