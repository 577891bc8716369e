"""Layers of torch, by module, function or method, as layers of a program.

Takes     the shapes around a layer, and its settings and tensors by name.
Gives     `MAKERS`, a function for each kind; `NOTHING`, which changes nothing; `SHAPES`, views.
Unaware   of graphs.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reefknot.export.program import Activation, Conv2d, Layer, Linear, Pair, Pool, Softmax


class UnsupportedError(Exception):
    """A setting of a supported layer that exporters do not support."""


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


def _linear(base: dict[str, Any], a: Mapping[str, Any]) -> Layer:
    if len(base["in_shape"]) != 1:
        raise UnsupportedError(f"works on the last of the dimensions {base['in_shape']}")
    weight = _array(a["weight"])
    return Linear(**base, weight=weight, bias=_array(a.get("bias"), len(weight)))


def _conv(base: dict[str, Any], a: Mapping[str, Any]) -> Layer:
    if a.get("padding_mode", "zeros") != "zeros":
        raise UnsupportedError(f"has padding_mode {a['padding_mode']!r}")
    weight = _array(a["weight"])
    dilation, padding = _pair(a.get("dilation", 1), "dilation"), a.get("padding", 0)
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
                raise UnsupportedError(f"has {key} {a[key]!r}")
        if any(padding) and kind == "mean" and not a.get("count_include_pad", True):
            raise UnsupportedError("leaves padding out of its means")
        if a.get("divisor_override") is not None:
            raise UnsupportedError("has a divisor_override")
        if len(base["in_shape"]) != 3:
            raise UnsupportedError(f"pools an input of shape {base['in_shape']}")
        stride = a.get("stride") or kernel  # in functions, none means the size of the kernel
        return Pool(
            **base, kind=kind, kernel=kernel, stride=_pair(stride, "stride"), padding=padding
        )

    return make


def _adaptive(kind: Any) -> Callable[[dict[str, Any], Mapping[str, Any]], Layer]:
    def make(base: dict[str, Any], a: Mapping[str, Any]) -> Layer:
        size, out = base["in_shape"][1:], base["out_shape"][1:]
        if len(size) != 2 or any(s % o for s, o in zip(size, out, strict=True)):
            raise UnsupportedError(f"pools {base['in_shape']} into windows of different sizes")
        kernel = (size[0] // out[0], size[1] // out[1])
        return Pool(**base, kind=kind, kernel=kernel, stride=kernel)

    return make


def _activation(kind: Any) -> Callable[[dict[str, Any], Mapping[str, Any]], Layer]:
    def make(base: dict[str, Any], a: Mapping[str, Any]) -> Layer:
        if kind == "gelu" and a.get("approximate", "none") != "none":
            raise UnsupportedError("is approximated by tanh")
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
            raise UnsupportedError(f"is taken over dimension {a.get('dim')} of several")
        return Softmax(**base, log=log)

    return make


NOTHING: set[Any] = {
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout),
    *(F.dropout, F.dropout2d, "contiguous", "to", "float", "detach", "clone"),
}
SHAPES: set[Any] = {
    *(nn.Flatten, nn.Unflatten, torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze),
    *("flatten", "view", "reshape", "squeeze", "unsqueeze"),
}
MAKERS: dict[Any, Callable[[dict[str, Any], Mapping[str, Any]], Layer]] = {
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
