"""Operations of a network as operators of ONNX.

Takes     a trace, node by node.
Gives     operators of the standard set (opset 21), and the tensors they need.
Unaware   of how tensors are stored, and of files.

What has no entry here, or an option that ONNX cannot express, is refused with the layer's name.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch
from onnx import NodeProto, helper
from torch import Tensor
from torch.fx.node import Node

from reefknot.errors import ConfigError
from reefknot.export.layers import MAX_POOL, MEAN_POOL, NOTHING, SHAPES
from reefknot.shrinking.masks import weighted
from reefknot.shrinking.trace import Trace

OPSET = 21  # the first with UINT4


class Graph:
    """The operators so far; `names` has the name of the tensor that holds each node's value."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.operators: list[NodeProto] = []
        self.tensors: dict[str, np.ndarray] = {}
        self.names: dict[Node, str] = {}

    def put(self, node: Node) -> None:
        """Write one node."""
        if node.op == "get_attr":
            self.names[node] = self.hold(str(node.target), self.trace.values[node])
        elif isinstance(self.trace.values[node], Tensor):
            kind = self.trace.kind(node)
            if kind not in _WRITERS:
                self.refuse(node, f"{kind!r} is none of {', '.join(sorted(_WRITERS))}")
            self.names[node] = _WRITERS[kind](self, node)
        elif any(isinstance(user, Node) and user.op == "output" for user in node.users):
            self.refuse(node, "it does not return a tensor")

    def refuse(self, node: Node, reason: str) -> NoReturn:
        """Raise an error about a node that cannot be written."""
        raise ConfigError(f"{self.trace.name(node)} cannot be written as ONNX: {reason}")

    def add(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        """Append an operator; gives the name of its output."""
        name = f"t{len(self.operators)}"
        self.operators.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def hold(self, name: str, value: Any) -> str:
        """A tensor of the network, or a constant."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        self.tensors[name] = array.astype(np.float32) if array.dtype.kind == "f" else array
        return name

    def whole(self, *numbers: int) -> str:
        """A list of integers; equal lists are held once."""
        return self.hold(f"i{'_'.join(map(str, numbers))}", np.array(numbers, np.int64))

    def operand(self, argument: Any) -> str:
        """A node's value, or a number."""
        if isinstance(argument, Node):
            return self.names[argument]
        return self.hold(f"f{float(argument)!r}", np.float32(argument))

    def source(self, node: Node) -> str:
        """The value that a node works on."""
        return self.operand(node.args[0] if node.args else node.kwargs["input"])

    def options(self, node: Node, **defaults: Any) -> dict[str, Any]:
        """Options of a node by name; `defaults` are in the order of a function's arguments."""
        return self.trace.options(node, defaults)

    def module(self, node: Node, name: str) -> Any:
        """The module that a node calls; functions of its kind are refused."""
        module = self.trace.module(node)
        if module is None:
            self.refuse(node, f"only the module nn.{name} is supported")
        return module

    def value(self, node: Any) -> Tensor:
        """What a node gave for the example."""
        found = self.trace.values[node]
        assert isinstance(found, Tensor)
        return found


def _repeated(option: Any, dims: int) -> list[int]:
    numbers = torch.tensor(option).reshape(-1).tolist()
    return numbers * dims if len(numbers) == 1 else numbers


# -- layers ----------------------------------------------------------------------------------


def _linear(graph: Graph, node: Node) -> str:
    layer = weighted(graph.trace, node)
    if layer is None:
        graph.refuse(node, "its weights must be parameters")
    source = graph.names[layer.source]
    names = list(map(graph.hold, layer.names, layer.tensors))
    if graph.value(layer.source).ndim == 2:
        return graph.add("Gemm", [source, *names], transB=1)
    turned = graph.add("Transpose", names[:1], perm=[1, 0])
    product = graph.add("MatMul", [source, turned])
    return graph.add("Add", [product, names[1]]) if len(names) > 1 else product


def _conv(graph: Graph, node: Node) -> str:
    layer, module = weighted(graph.trace, node), graph.trace.module(node)
    if layer is None or getattr(module, "padding_mode", "zeros") != "zeros":
        graph.refuse(node, "only parameters as weights, and padding with zeros, are supported")
    dims = layer.tensors[0].ndim - 2
    options = graph.options(node, weight=None, bias=None, stride=1, padding=0, dilation=1)
    attributes: dict[str, Any] = {
        "strides": _repeated(options["stride"], dims),
        "dilations": _repeated(options["dilation"], dims),
        "group": layer.groups,
        "kernel_shape": list(layer.tensors[0].shape[2:]),
    }
    if options["padding"] == "same":
        attributes["auto_pad"] = "SAME_UPPER"
    elif options["padding"] != "valid":
        attributes["pads"] = 2 * _repeated(options["padding"], dims)
    names = list(map(graph.hold, layer.names, layer.tensors))
    return graph.add("Conv", [graph.names[layer.source], *names], **attributes)


def _batchnorm(graph: Graph, node: Node) -> str:
    module: Any = graph.trace.module(node)
    if module is None or module.running_mean is None:
        graph.refuse(node, "it has no running statistics")
    size = len(module.running_mean)
    own = {
        "weight": torch.ones(size) if module.weight is None else module.weight,
        "bias": torch.zeros(size) if module.bias is None else module.bias,
        "running_mean": module.running_mean,
        "running_var": module.running_var,
    }
    names = [graph.hold(f"{node.target}.{key}", tensor) for key, tensor in own.items()]
    return graph.add("BatchNormalization", [graph.source(node), *names], epsilon=module.eps)


def _layernorm(graph: Graph, node: Node) -> str:
    module = graph.module(node, "LayerNorm")
    shape = module.normalized_shape
    weight = torch.ones(shape) if module.weight is None else module.weight
    names = [graph.hold(f"{node.target}.weight", weight)]
    if module.bias is not None:
        names.append(graph.hold(f"{node.target}.bias", module.bias))
    return graph.add(
        "LayerNormalization", [graph.source(node), *names], axis=-len(shape), epsilon=module.eps
    )


def _prelu(graph: Graph, node: Node) -> str:
    module = graph.module(node, "PReLU")
    above = graph.value(node).ndim - 2
    slope = module.weight.reshape(-1, *[1] * above)
    return graph.add("PRelu", [graph.source(node), graph.hold(f"{node.target}.weight", slope)])


def _pool(operator: str) -> Callable[[Graph, Node], str]:
    def write(graph: Graph, node: Node) -> str:
        dims = int(graph.trace.kind(node)[-2])
        options = graph.options(node, **(MAX_POOL if operator == "MaxPool" else MEAN_POOL))
        if operator == "MaxPool":
            more: dict[str, Any] = {"dilations": _repeated(options["dilation"], dims)}
        else:
            more = {"count_include_pad": int(options["count_include_pad"])}
            if options["divisor_override"] is not None:
                graph.refuse(node, "divisor_override is not supported")
        stride = options["stride"] or options["kernel_size"]
        return graph.add(
            operator, [graph.source(node)], kernel_shape=_repeated(options["kernel_size"], dims),
            strides=_repeated(stride, dims), pads=2 * _repeated(options["padding"], dims),
            ceil_mode=int(options["ceil_mode"]), **more,
        )  # fmt: skip

    return write


def _adaptive(operator: str) -> Callable[[Graph, Node], str]:
    def write(graph: Graph, node: Node) -> str:
        dims = int(graph.trace.kind(node)[-2])
        before = graph.value(node.args[0]).shape[-dims:]
        after = graph.value(node).shape[-dims:]
        if all(size == 1 for size in after):
            return graph.add(f"Global{operator}", [graph.source(node)])
        if any(b % a for b, a in zip(before, after, strict=True)):
            graph.refuse(node, f"windows from {tuple(before)} to {tuple(after)} are not all alike")
        windows = [b // a for b, a in zip(before, after, strict=True)]
        return graph.add(operator, [graph.source(node)], kernel_shape=windows, strides=windows)

    return write


# -- shapes ----------------------------------------------------------------------------------


def _same(graph: Graph, node: Node) -> str:
    if not graph.value(node).is_floating_point():
        graph.refuse(node, "only real numbers are supported")
    return graph.source(node)


def _reshape(graph: Graph, node: Node) -> str:
    """The shape of the example; the first dimension, the batch, may have any size."""
    shape = list(graph.value(node).shape)
    before = graph.value(node.args[0]).shape
    first = 0 if shape[:1] == list(before[:1]) else -1
    return graph.add("Reshape", [graph.source(node), graph.whole(first, *shape[1:])])


def _getitem(graph: Graph, node: Node) -> str:
    if graph.value(node).numel() != graph.value(node.args[0]).numel():
        graph.refuse(node, "only indexing that adds dimensions is supported")
    return _reshape(graph, node)


def _transpose(graph: Graph, node: Node) -> str:
    """The order of dimensions is found with an array whose sizes are all different."""
    source: Any = node.args[0]
    sizes = torch.empty(tuple(range(2, 2 + graph.value(source).ndim)), device="meta")
    turned = graph.trace.call(node, graph.trace.values | {source: sizes})
    return graph.add("Transpose", [graph.source(node)], perm=[size - 2 for size in turned.shape])


def _cat(graph: Graph, node: Node) -> str:
    parts: Any = node.args[0] if node.args else node.kwargs["tensors"]
    options = graph.options(node, dim=0)
    return graph.add("Concat", [graph.operand(part) for part in parts], axis=options["dim"])


def _reduce(operator: str) -> Callable[[Graph, Node], str]:
    def write(graph: Graph, node: Node) -> str:
        options = graph.options(node, dim=None, keepdim=False)
        if options["dim"] is None:
            graph.refuse(node, "over all dimensions it would mix the batch")
        axes = graph.whole(*_repeated(options["dim"], 1))
        return graph.add(operator, [graph.source(node), axes], keepdims=int(options["keepdim"]))

    return write


def _select(graph: Graph, node: Node) -> str:
    options = graph.options(node, dim=0, index=None)
    indices = graph.operand(options["index"])
    return graph.add("Gather", [graph.source(node), indices], axis=options["dim"])


def _embedding(graph: Graph, node: Node) -> str:
    module = graph.module(node, "Embedding")
    return graph.add(
        "Gather", [graph.hold(f"{node.target}.weight", module.weight), graph.source(node)]
    )


# -- activations and arithmetic --------------------------------------------------------------


def _unary(operator: str, **renamed: tuple[str, float | str]) -> Callable[[Graph, Node], str]:
    """An operator with attributes, each from an option of torch with its default."""

    def write(graph: Graph, node: Node) -> str:
        options = graph.options(node, **dict(renamed.values()))
        attributes = {name: options[option] for name, (option, _) in renamed.items()}
        return graph.add(operator, [graph.source(node)], **attributes)

    return write


def _clip(**bounds: float | None) -> Callable[[Graph, Node], str]:
    """Bounds by their names in torch, with the defaults; ReLU6 has names of its own."""

    def write(graph: Graph, node: Node) -> str:
        found = graph.options(node, **bounds).values()
        names = ["" if bound is None else graph.operand(bound) for bound in found]
        return graph.add("Clip", [graph.source(node), *names])

    return write


def _silu(graph: Graph, node: Node) -> str:
    source = graph.source(node)
    return graph.add("Mul", [source, graph.add("Sigmoid", [source])])


def _softmax(operator: str) -> Callable[[Graph, Node], str]:
    def write(graph: Graph, node: Node) -> str:
        dim = graph.options(node, dim=None)["dim"]
        if dim is None:
            graph.refuse(node, "its dimension is not given")
        return graph.add(operator, [graph.source(node)], axis=dim)

    return write


def _binary(operator: str) -> Callable[[Graph, Node], str]:
    def write(graph: Graph, node: Node) -> str:
        if node.kwargs or len(node.args) != 2:
            graph.refuse(node, "it has options besides its two operands")
        return graph.add(operator, [graph.operand(argument) for argument in node.args])

    return write


_WRITERS: dict[str, Callable[[Graph, Node], str]] = {
    "linear": _linear, "conv": _conv, "batchnorm": _batchnorm, "layernorm": _layernorm,
    "prelu": _prelu, "embedding": _embedding, "indexselect": _select, "cat": _cat,
    "getitem": _getitem,
    "relu": _unary("Relu"), "sigmoid": _unary("Sigmoid"), "tanh": _unary("Tanh"),
    "softsign": _unary("Softsign"), "mish": _unary("Mish"), "hardswish": _unary("HardSwish"),
    "neg": _unary("Neg"), "abs": _unary("Abs"), "exp": _unary("Exp"), "sqrt": _unary("Sqrt"),
    "leakyrelu": _unary("LeakyRelu", alpha=("negative_slope", 0.01)),
    "elu": _unary("Elu", alpha=("alpha", 1.0)),
    "gelu": _unary("Gelu", approximate=("approximate", "none")),
    "silu": _silu, "relu6": _clip(min_val=0.0, max_val=6.0),
    "hardtanh": _clip(min_val=-1.0, max_val=1.0), "clamp": _clip(min=None, max=None),
    "softmax": _softmax("Softmax"), "logsoftmax": _softmax("LogSoftmax"),
    "add": _binary("Add"), "sub": _binary("Sub"), "mul": _binary("Mul"), "div": _binary("Div"),
    "truediv": _binary("Div"), "matmul": _binary("MatMul"),
    "mean": _reduce("ReduceMean"), "sum": _reduce("ReduceSum"),
    **dict.fromkeys([f"maxpool{n}d" for n in (1, 2, 3)], _pool("MaxPool")),
    **dict.fromkeys([f"avgpool{n}d" for n in (1, 2, 3)], _pool("AveragePool")),
    **dict.fromkeys([f"adaptiveavgpool{n}d" for n in (1, 2, 3)], _adaptive("AveragePool")),
    **dict.fromkeys([f"adaptivemaxpool{n}d" for n in (1, 2, 3)], _adaptive("MaxPool")),
    **dict.fromkeys(SHAPES, _reshape), **dict.fromkeys(NOTHING, _same),
    **dict.fromkeys(("permute", "transpose", "t", "movedim", "swapaxes"), _transpose),
}  # fmt: skip
