"""From a torch module to the operations that exporters understand.

Takes     a plain module that holds its values already, and an example input (a batch of one).
Gives     `program`; what it cannot express is named in an error, with what would work.
Unaware   of files, of what is dead (give it a shrunk module, if you have one) and of languages.

The graph is that of `shrinking.trace`, where kinds are one name for a module, a function and a
method. What only moves elements (views, slices, padding, channel shuffles) is run on their indices,
so that several of them are one operation, and need no code of their own.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.node import Node
from torch.utils._pytree import tree_map

from reefknot.batchnorm import channel_scale
from reefknot.errors import ConfigError
from reefknot.export import program as ops
from reefknot.export.program import Layer, Pair, Program, Shape, planes_of
from reefknot.shrinking.trace import Trace, trace

NOTHING = {
    *("identity", "dropout", "dropout1d", "dropout2d", "dropout3d", "alphadropout"),
    *("contiguous", "clone", "detach", "to", "float"),
}
SHAPES = {"flatten", "unflatten", "view", "reshape", "squeeze", "unsqueeze"}
_MOVES = SHAPES | {
    *("permute", "transpose", "movedim", "swapaxes", "chunk", "split", "getitem", "expand"),
    *("expandas", "repeat", "flip", "roll", "pad", "zeropad2d", "pixelshuffle", "channelshuffle"),
}
_KNOWN = (
    "supported are Linear, Conv2d, BatchNorm, pooling, sums and products of two values, "
    "concatenation of channels, views, slices, padding, Dropout, a last Softmax, and ReLU, "
    "LeakyReLU, ELU, ReLU6, Hardtanh, Sigmoid, Hardsigmoid, Tanh, SiLU, Hardswish and GELU"
)
_ENDLESS = 3e38  # the bound of a clip that has none


Options = Mapping[str, Any]
Made = tuple[Callable[..., Layer], dict[str, Any]]  # the class of a layer, and its own fields
Maker = Callable[[Shape, Shape, Options], Made]  # of the shapes around a layer


class UnsupportedError(Exception):
    """A setting of a supported layer that exporters do not support."""


def program(model: nn.Module, example_input: Tensor) -> Program:
    """The operations in the order they run, with the module's values in float32."""
    if example_input.dim() < 2 or len(example_input) != 1:
        raise ConfigError(
            "the example input is a batch of one, such as torch.zeros(1, 1, 28, 28); "
            f"found shape {tuple(example_input.shape)}"
        )
    reader = _Reader(trace(model, example_input), tuple(example_input.shape[1:]))
    return Program(reader.shapes[0], tuple(reader.layers))


class _Reader:
    """The layers so far, and where each node's value is: its number, or elements of another's."""

    def __init__(self, found: Trace, in_shape: Shape) -> None:
        self.found = found
        self.layers: list[Layer] = []
        self.shapes = [in_shape]  # of each value, by its number
        self.numbers: dict[Node, int] = {}
        # The number of a value, its shape, and for each element of a node's value which it is,
        # counted from 1; 0 is a zero.
        self.moved: dict[Node, tuple[int, Shape, Any]] = {}
        nodes = list(found.graph.nodes)
        needed = {nodes[-1]}
        for node in reversed(nodes):
            needed |= set(node.all_input_nodes) if node in needed else set()
        for node in nodes:
            if node in needed or node.op == "placeholder":
                self._read(node)

    def _read(self, node: Node) -> None:
        value = self.found.values[node]
        if node.op == "placeholder":
            if self.numbers:
                raise ConfigError("the network has several inputs; an export has one")
            self.numbers[node] = 0
        elif node.op == "output":
            [*results] = node.all_input_nodes
            if len(results) != 1 or node.args[0] is not results[0] or not self._has(results[0]):
                raise ConfigError(
                    "the network does not return exactly one tensor, which an export needs"
                )
            if self._number(results[0]) != len(self.layers):
                raise ConfigError("the network gives back what it reads: there is nothing to write")
        elif node.op != "get_attr" and any(self._has(n) for n in node.all_input_nodes):
            kind = self.found.kind(node)
            if kind in _MOVES or kind in NOTHING:
                self._move(node, kind)
            elif isinstance(value, Tensor):
                self._append(node, kind)
            elif node.op == "call_module":
                raise self._unknown(node)

    def _has(self, node: Any) -> bool:
        """Whether this is a node whose value depends on the input of the network."""
        return node in self.numbers or node in self.moved

    def _shape(self, node: Node) -> Shape:
        """The shape of a node's value, without the batch."""
        value = self.found.values[node]
        if not isinstance(value, Tensor) or value.dim() < 2 or len(value) != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ConfigError(f"{_name(node)} gives shape {shape}, not a batch of one")
        return tuple(value.shape[1:])

    def _put(self, make: Callable[..., Layer], node: Node, *sources: int, **more: Any) -> int:
        """Append a layer that reads these values."""
        self.shapes.append(self._shape(node))
        shapes = (self.shapes[sources[0]], self.shapes[-1])
        self.layers.append(make(self.found.name(node), *shapes, sources, **more))
        return len(self.layers)

    # -- elements that are moved -----------------------------------------------------------------

    def _move(self, node: Node, kind: str) -> None:
        source: Any = node.args[0] if node.args else node.kwargs["input"]
        if not self._has(source):
            raise self._unknown(node)
        if source in self.numbers:
            shape = self._shape(source)
            indices = torch.arange(1.0, math.prod(shape) + 1, dtype=torch.float64)
            start: tuple[int, Shape, Any] = self.numbers[source], shape, indices.view(1, *shape)
        else:
            start = self.moved[source]
        values = self.found.values
        once, twice = (
            start[2] if kind in NOTHING else self.found.call(node, values | {source: scaled})
            for scaled in (start[2], tree_map(lambda part: 2 * part, start[2]))
        )
        parts = [once] if isinstance(once, Tensor) else []
        if kind not in NOTHING and any((twice != 2 * part).any() for part in parts):
            raise self._refused(node, "pads with something other than zeros")
        self.moved[node] = (*start[:2], once)

    def _number(self, node: Node) -> int:
        """The number of a node's value; elements that were moved get an operation now."""
        if node not in self.numbers:
            number, shape, indices = self.moved[node]
            out = self._shape(node)
            flat = indices.flatten().long().numpy()
            if not np.array_equal(flat, np.arange(1, math.prod(shape) + 1)):
                picked = _picked(planes_of(shape), flat.reshape(planes_of(out)) - 1)
                source = node.all_input_nodes[0]
                if picked is None and source in self.moved and source not in self.numbers:
                    self._number(source)  # one operation after the other
                    self._move(node, self.found.kind(node))
                    return self._number(node)
                if picked is None:
                    raise self._refused(
                        node, "moves elements in a way that is no choice of channels, crop or "
                        "padding",
                    )  # fmt: skip
                number = self._put(ops.Pick, node, number, **picked)
            elif out != shape:
                number = self._put(ops.Reshape, node, number)
            self.numbers[node] = number
        return self.numbers[node]

    # -- layers ----------------------------------------------------------------------------------

    def _append(self, node: Node, kind: str) -> None:
        own: Any = node.args[0] if node.args else node.kwargs.get("input")
        operands = [own, *node.args[1:2]] if kind != "cat" else own
        sources = [n for n in operands if isinstance(n, Node) and self._has(n)]
        if not sources or any(self._has(n) and n not in sources for n in node.all_input_nodes):
            raise self._unknown(node)
        values = [self._number(n) for n in sources]
        shapes = [self._shape(n) for n in sources]
        if kind in _ARITHMETIC:
            made, more = self._arithmetic(node, kind, shapes)
        else:
            made, more = self._maker(node, kind, shapes)
        if made is ops.Join and math.prod(shapes[0]) < math.prod(shapes[1]):
            values.reverse()
        self.numbers[node] = self._put(made, node, *values, **more)

    def _maker(self, node: Node, kind: str, shapes: list[Shape]) -> Made:
        """The class of a layer and its fields."""
        module = self.found.module(node)
        if kind == "cat":
            dim = self.found.options(node, {"dim": 0})["dim"]
            if dim not in (1, 1 - len(self.found.values[node].shape)):
                raise self._refused(node, f"concatenates over dimension {dim}, not the channels")
            return ops.Cat, {}
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            return self._norm(node, module, shapes[0])
        if len(shapes) > 1 or kind not in MAKERS or (kind == "conv" and len(shapes[0]) != 3):
            raise self._unknown(node)
        make, defaults = MAKERS[kind]
        given = {
            name: self.found.values[value] if isinstance(value, Node) else value
            for name, value in self.found.options(node, defaults).items()
        }
        try:
            return make(shapes[0], self._shape(node), given)
        except UnsupportedError as error:
            raise self._refused(node, str(error)) from error

    def _norm(self, node: Node, norm: Any, shape: Shape) -> Made:
        if norm.running_mean is None or norm.running_var is None:
            raise self._refused(node, "has no running statistics")
        if len(shape) not in (1, 3):
            raise self._refused(node, f"normalises an input of shape {shape}")
        scale = channel_scale(norm).double()
        shift = -norm.running_mean.double() * scale
        if norm.bias is not None:
            shift = shift + norm.bias.detach().double()
        return ops.Norm, {"scale": scale.numpy(), "shift": shift.numpy(), "epsilon": norm.eps}

    def _arithmetic(self, node: Node, kind: str, shapes: list[Shape]) -> Made:
        """A sum or product of two values, or of a value and a number."""
        if len(node.args) != 2 or node.kwargs:
            raise self._refused(node, "has options besides its two operands")
        if len(shapes) == 1:
            return self._with_number(node, kind)
        one, two = sorted(map(planes_of, shapes), key=math.prod, reverse=True)
        alike = len(shapes[0]) == len(shapes[1])
        fits = alike and two[0] in (one[0], 1) and two[1:] in (one[1:], (1, 1))
        if kind not in ("add", "mul") or not fits:
            what = " and ".join(map(str, shapes))
            raise self._refused(node, f"is a {kind} of values of shapes {what}")
        return ops.Join, {"kind": kind, "second": two}

    def _with_number(self, node: Node, kind: str) -> Made:
        """A sum, product, difference or quotient of a value and a number: slope · x + low."""
        values = self.found.values
        first, second = (values.get(a, a) if isinstance(a, Node) else a for a in node.args)
        number = first if isinstance(second, Tensor) else second
        if (
            not isinstance(number, int | float)
            or (number is first and "div" in kind)
            or (not number and "div" in kind)
        ):
            raise self._refused(node, "has an operand that is neither a value nor a number")
        slope, low = {
            "add": (1, number), "mul": (number, 0),
            "sub": (-1, number) if number is first else (1, -number),
        }.get(kind) or (1 / number, 0)  # fmt: skip
        return ops.Activation, {"kind": "affine", "slope": float(slope), "low": float(low)}

    # -- what is refused -------------------------------------------------------------------------

    def _refused(self, node: Node, reason: str) -> ConfigError:
        return ConfigError(f"{_name(node)} {reason}, which an export cannot express")

    def _unknown(self, node: Node) -> ConfigError:
        module = self.found.module(node)
        kind = node.target if module is None else type(module)
        what = getattr(kind, "__name__", kind)
        return ConfigError(f"{_name(node)} is a {what}, which an export cannot express; {_KNOWN}")


_ARITHMETIC = {"add", "sub", "mul", "div", "truediv"}


def _name(node: Node) -> str:
    """The name of a node in messages: that of the module, or of the function."""
    if node.op == "call_module":
        return repr(str(node.target))
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return f"{node.name!r} ({target})"


def _picked(shape: tuple[int, int, int], indices: np.ndarray) -> dict[str, Any] | None:
    """The fields of a `Pick` that gives these elements, if there is one; -1 is a zero."""
    height, width = shape[1:]
    alive = indices >= 0
    channel = np.where(alive, indices // (height * width), -1).max((1, 2), initial=-1)
    lines = (
        np.where(alive, indices // width % height, -1).max((0, 2)),
        np.where(alive, indices % width, -1).max((0, 1)),
    )
    start, step = [], []
    places: list[np.ndarray] = []
    for line in lines:
        known = np.flatnonzero(line >= 0)
        by = int(line[known[1]] - line[known[0]]) if len(known) > 1 else 1
        first = int(line[known[0]] - known[0] * by) if len(known) else 0
        start.append(first)
        step.append(by)
        places.append(first + by * np.arange(len(line)))
    down, across = np.meshgrid(*places, indexing="ij")
    inside = (down >= 0) & (down < height) & (across >= 0) & (across < width)
    found = (channel[:, None, None] * height + down) * width + across
    found = np.where((channel[:, None, None] >= 0) & inside, found, -1)
    if min(step) < 0 or not np.array_equal(found, indices):
        return None
    return {"channels": tuple(channel.tolist()), "start": tuple(start), "step": tuple(step)}


# -- layers of torch ---------------------------------------------------------------------------


def _array(tensor: Any, fallback: int = 0) -> np.ndarray:
    if not isinstance(tensor, Tensor):
        return np.zeros(fallback, np.float32)
    array = np.ascontiguousarray(tensor.detach().numpy(), np.float32)
    return np.where(array == 0, np.float32(0), array)  # -0.0 is no value of its own


def _pair(value: Any, what: str) -> Pair:
    if isinstance(value, int):
        return value, value
    if isinstance(value, tuple | list) and len(value) == 2 and all(type(v) is int for v in value):
        return int(value[0]), int(value[1])
    raise UnsupportedError(f"has {what} {value!r}")


def _linear(shape: Shape, out: Shape, a: Options) -> Made:
    if len(shape) != 1:
        raise UnsupportedError(f"works on the last of the dimensions {shape}")
    weight = _array(a["weight"])
    return ops.Linear, {"weight": weight, "bias": _array(a["bias"], len(weight))}


def _conv(shape: Shape, out: Shape, a: Options) -> Made:
    if a["padding_mode"] != "zeros":
        raise UnsupportedError(f"has padding_mode {a['padding_mode']!r}")
    weight = _array(a["weight"])
    dilation, padding = _pair(a["dilation"], "dilation"), a["padding"]
    if padding == "valid":
        padding = 0
    elif padding == "same":
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        if any(r % 2 for r in reach):
            raise UnsupportedError("has different padding on its two sides")
        padding = (reach[0] // 2, reach[1] // 2)
    return ops.Conv2d, {
        "weight": weight, "bias": _array(a["bias"], len(weight)), "dilation": dilation,
        "stride": _pair(a["stride"], "stride"), "padding": _pair(padding, "padding"),
        "groups": int(a["groups"]),
    }  # fmt: skip


def _pool(kind: str) -> Maker:
    def make(shape: Shape, out: Shape, a: Options) -> Made:
        kernel, padding = _pair(a["kernel_size"], "kernel"), _pair(a["padding"], "padding")
        for key, usual in (("ceil_mode", False), ("dilation", 1), ("return_indices", False)):
            if a.get(key, usual) not in (usual, (usual, usual)):
                raise UnsupportedError(f"has {key} {a[key]!r}")
        if any(padding) and kind == "mean" and not a["count_include_pad"]:
            raise UnsupportedError("leaves padding out of its means")
        if a.get("divisor_override") is not None:
            raise UnsupportedError("has a divisor_override")
        if len(shape) != 3:
            raise UnsupportedError(f"pools an input of shape {shape}")
        stride = _pair(a["stride"] or kernel, "stride")  # none means the size of the kernel
        return ops.Pool, {"kind": kind, "kernel": kernel, "stride": stride, "padding": padding}

    return make


def _adaptive(kind: str) -> Maker:
    def make(shape: Shape, out: Shape, a: Options) -> Made:
        size = shape[1:]
        if len(size) != 2 or any(s % o for s, o in zip(size, out[1:], strict=True)):
            raise UnsupportedError(f"pools {shape} into windows of different sizes")
        kernel = (size[0] // out[1], size[1] // out[2])
        return ops.Pool, {"kind": kind, "kernel": kernel, "stride": kernel}

    return make


def _over_planes(kind: str) -> Maker:
    """The mean or the maximum over height and width."""

    def make(shape: Shape, out: Shape, a: Options) -> Made:
        dims = a["dim"] if isinstance(a["dim"], tuple | list) else [a["dim"]]
        if len(shape) != 3 or sorted(d % 4 for d in dims if isinstance(d, int)) != [2, 3]:
            raise UnsupportedError(f"is over dimension {a['dim']}, not over height and width")
        return ops.Pool, {"kind": kind, "kernel": shape[1:], "stride": shape[1:]}

    return make


def _activation(kind: str, **fixed: float) -> Maker:
    def make(shape: Shape, out: Shape, a: Options) -> Made:
        if a.get("approximate", "none") != "none":
            raise UnsupportedError("is approximated by tanh")
        low, high = (a.get(f"{end}_val", a.get(end, fixed.get(end))) for end in ("min", "max"))
        return ops.Activation, {
            "kind": kind, "slope": float(a.get("negative_slope", a.get("alpha", 0.0))),
            "low": -_ENDLESS if low is None else float(low),
            "high": _ENDLESS if high is None else float(high),
        }  # fmt: skip

    return make


def _softmax(log: bool) -> Maker:
    def make(shape: Shape, out: Shape, a: Options) -> Made:
        if len(shape) != 1 or a["dim"] not in (1, -1, None):
            raise UnsupportedError(f"is taken over dimension {a['dim']} of several")
        return ops.Softmax, {"log": log}

    return make


# The maker of each kind, and its options in the order of a function's arguments.
_LINEAR = {"weight": None, "bias": None}
_CONV = _LINEAR | {
    "stride": 1, "padding": 0, "dilation": 1, "groups": 1, "padding_mode": "zeros"
}  # fmt: skip
_POOL = {"kernel_size": None, "stride": None, "padding": 0}
MAX_POOL = _POOL | {"dilation": 1, "ceil_mode": False, "return_indices": False}
MEAN_POOL = _POOL | {"ceil_mode": False, "count_include_pad": True, "divisor_override": None}
_PLAIN = ("relu", "sigmoid", "hardsigmoid", "tanh", "silu", "hardswish")
MAKERS: dict[str, tuple[Maker, Options]] = {
    "linear": (_linear, _LINEAR),
    "conv": (_conv, _CONV),
    "maxpool2d": (_pool("max"), MAX_POOL),
    "avgpool2d": (_pool("mean"), MEAN_POOL),
    "adaptiveavgpool2d": (_adaptive("mean"), {}),
    "adaptivemaxpool2d": (_adaptive("max"), {}),
    "mean": (_over_planes("mean"), {"dim": None, "keepdim": False}),
    "amax": (_over_planes("max"), {"dim": None, "keepdim": False}),
    **{kind: (_activation(kind), {}) for kind in _PLAIN},
    "leakyrelu": (_activation("leaky_relu"), {"negative_slope": 0.01}),
    "elu": (_activation("elu"), {"alpha": 1.0}),
    "hardtanh": (_activation("clip"), {"min_val": -1.0, "max_val": 1.0}),
    "clamp": (_activation("clip"), {"min": None, "max": None}),
    "relu6": (_activation("clip", min=0.0, max=6.0), {}),
    "gelu": (_activation("gelu"), {"approximate": "none"}),
    "softmax": (_softmax(log=False), {"dim": -1}),
    "logsoftmax": (_softmax(log=True), {"dim": -1}),
}
