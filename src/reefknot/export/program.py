"""A network as a list of layers with numpy values: what the exporters write in other languages.

Takes     layers in the order they run, each with its shapes, made by `trace`.
Gives     `Program`, which can run itself (slowly, to check others by) and drop its dead units.
Unaware   of torch, of files and of the language that it becomes.

Shapes are those of one example, without the batch: (channels, height, width) or (features,). Values
are float32. A BatchNorm is folded before, as a `scale` for each output: tied weights stay tied.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

Shape = tuple[int, ...]
Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Layer:
    """What all layers have: the name in the network, and the shapes around it."""

    name: str
    in_shape: Shape
    out_shape: Shape


@dataclass(frozen=True, eq=False)
class Linear(Layer):
    """scale · (weight @ x) + bias."""

    weight: np.ndarray  # (outputs, inputs)
    bias: np.ndarray  # (outputs,), zeros if there is none
    scale: np.ndarray | None = None  # (outputs,), of a BatchNorm


@dataclass(frozen=True, eq=False)
class Conv2d(Layer):
    """scale · (weight * x) + bias, with zeros around the input."""

    weight: np.ndarray  # (outputs, inputs // groups, height, width)
    bias: np.ndarray  # (outputs,), zeros if there is none
    scale: np.ndarray | None = None  # (outputs,), of a BatchNorm
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1


@dataclass(frozen=True, eq=False)
class Pool(Layer):
    """The maximum, or the mean, of windows; padding counts as -infinity, or as zeros."""

    kind: Literal["max", "mean"]
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)


@dataclass(frozen=True, eq=False)
class Activation(Layer):
    """The same function of every element; `low` and `high` are the bounds of a clip."""

    kind: Literal["relu", "leaky_relu", "clip", "sigmoid", "tanh", "silu", "gelu"]
    slope: float = 0.0  # of leaky_relu, below zero
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, eq=False)
class Softmax(Layer):
    """Over all features of a vector; with `log`, its logarithm."""

    log: bool = False


@dataclass(frozen=True, eq=False)
class Flatten(Layer):
    """The same values as one vector, channel by channel, row by row."""


@dataclass(frozen=True, eq=False)
class Program:
    """Layers in order; the output of each is the input of the next."""

    in_shape: Shape
    layers: tuple[Layer, ...]

    @property
    def out_shape(self) -> Shape:
        """The shape of what the last layer gives."""
        return self.layers[-1].out_shape if self.layers else self.in_shape

    @property
    def num_weights(self) -> int:
        """Weights and biases, zeros among them counted."""
        weighted = (layer for layer in self.layers if isinstance(layer, Linear | Conv2d))
        return sum(layer.weight.size + layer.bias.size for layer in weighted)

    def run(self, example: np.ndarray) -> np.ndarray:
        """The outputs for one example, in float64."""
        x = np.asarray(example, np.float64).reshape(self.in_shape)
        for layer in self.layers:
            x = _run(layer, x)
        return x


# -- running ---------------------------------------------------------------------------------


def _run(layer: Layer, x: np.ndarray) -> np.ndarray:
    if isinstance(layer, Linear):
        y = layer.weight.astype(np.float64) @ x
        return (y if layer.scale is None else y * layer.scale) + layer.bias
    if isinstance(layer, Conv2d):
        return _convolved(layer, x)
    if isinstance(layer, Pool):
        outside = -np.inf if layer.kind == "max" else 0.0
        windows = _windows(x, layer.kernel, layer.stride, layer.padding, (1, 1), outside)
        return windows.max((3, 4)) if layer.kind == "max" else windows.mean((3, 4))
    if isinstance(layer, Activation):
        return activated(layer, x)
    if isinstance(layer, Softmax):
        log = x - x.max() - np.log(np.exp(x - x.max()).sum())
        return log if layer.log else np.exp(log)
    return x.reshape(layer.out_shape)


def activated(layer: Activation, x: np.ndarray) -> np.ndarray:
    """The function of an activation, element by element."""
    if layer.kind == "relu":
        return np.maximum(x, 0)
    if layer.kind == "leaky_relu":
        return np.where(x < 0, layer.slope * x, x)
    if layer.kind == "clip":
        return np.clip(x, layer.low, layer.high)
    if layer.kind == "tanh":
        return np.tanh(x)
    if layer.kind == "gelu":
        half = np.vectorize(_half_normal, otypes=[np.float64])
        return np.asarray(x * half(x))
    sigmoid = 0.5 * (1 + np.tanh(0.5 * x))
    return sigmoid if layer.kind == "sigmoid" else x * sigmoid


def _half_normal(x: float) -> float:
    from math import erf, sqrt

    return 0.5 * (1 + erf(x / sqrt(2)))


def _windows(
    x: np.ndarray, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, outside: float
) -> np.ndarray:
    """(channels, height, width, kernel height, kernel width)."""
    around = [(0, 0), (padding[0],) * 2, (padding[1],) * 2]
    padded = np.pad(x, around, constant_values=outside)
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, (1, 2))
    return windows[:, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def _convolved(layer: Conv2d, x: np.ndarray) -> np.ndarray:
    kernel: Pair = layer.weight.shape[2:]
    windows = _windows(x, kernel, layer.stride, layer.padding, layer.dilation, 0.0)
    parts = zip(np.split(windows, layer.groups), np.split(layer.weight, layer.groups), strict=True)
    y = np.concatenate([np.einsum("chwij,ocij->ohw", part, w, optimize=True) for part, w in parts])
    if layer.scale is not None:
        y = y * layer.scale[:, None, None]
    return y + layer.bias[:, None, None]


# -- dead units ------------------------------------------------------------------------------


def without_dead_units(program: Program) -> Program:
    """The same function with fewer units: those without inputs, and those that nothing uses.

    A unit without weights is a constant, which goes into the biases of the layer that uses it; if
    that layer pads, only a zero can go. Inputs and outputs of the program all stay.
    """
    layers = list(program.layers)
    weighted = [i for i, layer in enumerate(layers) if isinstance(layer, Linear | Conv2d)]
    changed = True
    while changed:  # a unit that goes may leave another one without use
        changed = False
        for first, second in pairwise(weighted):
            between = layers[first + 1 : second]
            if any(isinstance(layer, Softmax) for layer in between):
                continue
            changed |= _drop_between(layers, first, second)
    return replace(program, layers=tuple(layers))


def _drop_between(layers: list[Layer], first: int, second: int) -> bool:
    """Drop units of layer `first` that `second` can do without; whether there were any."""
    one, two = layers[first], layers[second]
    assert isinstance(one, Linear | Conv2d)
    assert isinstance(two, Linear | Conv2d)
    grouped = [layer for layer in (one, two) if isinstance(layer, Conv2d) and layer.groups > 1]
    if grouped:
        return False
    units = len(one.weight)
    used = two.weight.reshape(len(two.weight), units, -1)  # (outputs, units, their places)
    constant = ~one.weight.any(tuple(range(1, one.weight.ndim)))
    values = _constants(one, layers[first + 1 : second])
    pads = any(isinstance(layer, Pool | Conv2d) and any(layer.padding) for layer in
               layers[first + 1 : second + 1])  # fmt: skip
    foldable = constant & (values == 0) if pads else constant
    alive = ~foldable & used.any((0, 2))
    if alive.all() or not alive.any():
        return False
    gone = used.astype(np.float64).sum(2) @ np.where(foldable & ~alive, values, 0.0)
    if two.scale is not None:
        gone = gone * two.scale
    bias = (two.bias + gone).astype(np.float32)
    weight = used[:, alive].reshape(len(two.weight), -1, *two.weight.shape[2:])
    scale = None if one.scale is None else one.scale[alive]
    layers[first] = replace(one, weight=one.weight[alive], bias=one.bias[alive], scale=scale)
    layers[second] = replace(two, weight=weight, bias=bias)
    left = int(alive.sum())
    for at in range(first, second + 1):  # shapes between the two
        layer = layers[at]
        layers[at] = replace(
            layer,
            in_shape=layer.in_shape if at == first else _resized(layer.in_shape, units, left),
            out_shape=layer.out_shape if at == second else _resized(layer.out_shape, units, left),
        )
    return True


def _constants(one: Linear | Conv2d, between: list[Layer]) -> np.ndarray:
    """What each unit gives to the next layer if all of its weights are zero."""
    values = one.bias.astype(np.float64)
    for layer in between:
        if isinstance(layer, Activation):
            values = activated(layer, values)
    return values


def _resized(shape: Shape, units: int, left: int) -> Shape:
    """The shape with fewer units: a flattened one has several places for each."""
    return (shape[0] // units * left, *shape[1:])
