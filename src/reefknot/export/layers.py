"""Layers of torch, as modules, functions or methods, as layers of a program.

Takes     the shapes around a layer, and its options and tensors by name.
Gives     `MAKERS`, a function for each kind; `NOTHING`, which changes nothing; `SHAPES`, views;
          `options`, which the export to ONNX reads, too.
Unaware   of what comes before and after a layer.

Kinds are those of `shrinking.trace`: one name for a module, a function and a method.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.fx.node import Node

from reefknot.export.program import Activation, Conv2d, Layer, Linear, Pair, Pool, Softmax
from reefknot.shrinking.trace import Trace

NOTHING = {
    *("identity", "dropout", "dropout1d", "dropout2d", "dropout3d", "alphadropout"),
    *("contiguous", "clone", "detach", "to", "float"),
}
SHAPES = {"flatten", "unflatten", "view", "reshape", "squeeze", "unsqueeze"}


def options(trace: Trace, node: Node, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a node by name: of its module, or its arguments after the first."""
    module = trace.module(node)
    if module is not None:
        return {name: getattr(module, name, value) for name, value in defaults.items()}
    told = dict(zip(defaults, node.args[1:], strict=False)) | dict(node.kwargs)
    return {name: told.get(name, value) for name, value in defaults.items()}


class UnsupportedError(Exception):
    """A setting of a supported layer that exporters do not support."""


Options = Mapping[str, Any]
Maker = Callable[[dict[str, Any], Options], Layer]  # of the name and shapes of a layer


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


def _linear(base: dict[str, Any], a: Options) -> Layer:
    if len(base["in_shape"]) != 1:
        raise UnsupportedError(f"works on the last of the dimensions {base['in_shape']}")
    weight = _array(a["weight"])
    return Linear(**base, weight=weight, bias=_array(a["bias"], len(weight)))


def _conv(base: dict[str, Any], a: Options) -> Layer:
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
    return Conv2d(
        **base,
        weight=weight,
        bias=_array(a["bias"], len(weight)),
        stride=_pair(a["stride"], "stride"),
        padding=_pair(padding, "padding"),
        dilation=dilation,
        groups=int(a["groups"]),
    )


def _pool(kind: Any) -> Maker:
    def make(base: dict[str, Any], a: Options) -> Layer:
        kernel, padding = _pair(a["kernel_size"], "kernel"), _pair(a["padding"], "padding")
        for key, usual in (("ceil_mode", False), ("dilation", 1), ("return_indices", False)):
            if a.get(key, usual) not in (usual, (usual, usual)):
                raise UnsupportedError(f"has {key} {a[key]!r}")
        if any(padding) and kind == "mean" and not a["count_include_pad"]:
            raise UnsupportedError("leaves padding out of its means")
        if a.get("divisor_override") is not None:
            raise UnsupportedError("has a divisor_override")
        if len(base["in_shape"]) != 3:
            raise UnsupportedError(f"pools an input of shape {base['in_shape']}")
        stride = a["stride"] or kernel  # in functions, none means the size of the kernel
        return Pool(
            **base, kind=kind, kernel=kernel, stride=_pair(stride, "stride"), padding=padding
        )

    return make


def _adaptive(kind: Any) -> Maker:
    def make(base: dict[str, Any], a: Options) -> Layer:
        size, out = base["in_shape"][1:], base["out_shape"][1:]
        if len(size) != 2 or any(s % o for s, o in zip(size, out, strict=True)):
            raise UnsupportedError(f"pools {base['in_shape']} into windows of different sizes")
        kernel = (size[0] // out[0], size[1] // out[1])
        return Pool(**base, kind=kind, kernel=kernel, stride=kernel)

    return make


def _activation(kind: Any, **fixed: float) -> Maker:
    def make(base: dict[str, Any], a: Options) -> Layer:
        a = {**a, **fixed}
        if a.get("approximate", "none") != "none":
            raise UnsupportedError("is approximated by tanh")
        return Activation(
            **base,
            kind=kind,
            slope=float(a.get("negative_slope", 0.0)),
            low=float(a.get("min_val", 0.0)),
            high=float(a.get("max_val", 0.0)),
        )

    return make


def _softmax(log: bool) -> Maker:
    def make(base: dict[str, Any], a: Options) -> Layer:
        if len(base["in_shape"]) != 1 or a["dim"] not in (1, -1, None):
            raise UnsupportedError(f"is taken over dimension {a['dim']} of several")
        return Softmax(**base, log=log)

    return make


# The maker of each kind, and its options in the order of a function's arguments.
_LINEAR = {"weight": None, "bias": None}
_CONV = _LINEAR | {
    "stride": 1, "padding": 0, "dilation": 1, "groups": 1, "padding_mode": "zeros"
}  # fmt: skip
_POOL = {"kernel_size": None, "stride": None, "padding": 0}
MAX_POOL = _POOL | {"dilation": 1, "ceil_mode": False, "return_indices": False}
MEAN_POOL = _POOL | {"ceil_mode": False, "count_include_pad": True, "divisor_override": None}
MAKERS: dict[str, tuple[Maker, Options]] = {
    "linear": (_linear, _LINEAR),
    "conv": (_conv, _CONV),
    "maxpool2d": (_pool("max"), MAX_POOL),
    "avgpool2d": (_pool("mean"), MEAN_POOL),
    "adaptiveavgpool2d": (_adaptive("mean"), {}),
    "adaptivemaxpool2d": (_adaptive("max"), {}),
    "relu": (_activation("relu"), {}),
    "leakyrelu": (_activation("leaky_relu"), {"negative_slope": 0.01}),
    "hardtanh": (_activation("clip"), {"min_val": -1.0, "max_val": 1.0}),
    "relu6": (_activation("clip", min_val=0.0, max_val=6.0), {}),
    "sigmoid": (_activation("sigmoid"), {}),
    "tanh": (_activation("tanh"), {}),
    "silu": (_activation("silu"), {}),
    "gelu": (_activation("gelu"), {"approximate": "none"}),
    "softmax": (_softmax(log=False), {"dim": -1}),
    "logsoftmax": (_softmax(log=True), {"dim": -1}),
}
