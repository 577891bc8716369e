"""A network as a list of layers with numpy values, which exporters write in other languages.

Takes     layers in the order they run, each with its shapes, made by `chain`.
Gives     `Program`, which can run itself (slowly, as a reference for the exports).
Unaware   of torch, of files and of the language that it becomes.

Shapes are those of one example, without the batch: (channels, height, width) or (features,). Values
are float32. A BatchNorm is already folded in, as a `scale` for each output: tied weights stay tied.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from reefknot.export.activations import ACTIVATIONS

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
        """Weights and biases, zeros included."""
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
        return ACTIVATIONS[layer.kind].numpy(x, layer.slope, layer.low, layer.high)
    if isinstance(layer, Softmax):
        log = x - x.max() - np.log(np.exp(x - x.max()).sum())
        return log if layer.log else np.exp(log)
    return x.reshape(layer.out_shape)


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
