"""A network as a list of layers with numpy values, which exporters write in other languages.

Takes     layers in the order they run, each with its shapes, made by `chain`.
Gives     `Program`; `ACTIVATIONS`, the functions of an element in C and JavaScript, side by side.
Unaware   of torch and of files.

Shapes are those of one example, without the batch: (channels, height, width) or (features,). Values
are float32. A BatchNorm is already folded in, as a `scale` for each output: tied weights stay tied.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

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
    """One function of every element; `low` and `high` are the bounds of a clip."""

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
    """All values as one vector, channel by channel, row by row."""


@dataclass(frozen=True, eq=False)
class Program:
    """Layers in order; the output of each is the input of the next."""

    in_shape: Shape
    layers: tuple[Layer, ...]

    @property
    def out_shape(self) -> Shape:
        """The shape of what the last layer gives."""
        return self.layers[-1].out_shape if self.layers else self.in_shape


class Formula(NamedTuple):
    """A function of one element: in C an expression in `x`, in JavaScript a function.

    `slope`, `low` and `high` are filled in as literals of that language.
    """

    c: str
    javascript: str


ACTIVATIONS: dict[str, Formula] = {
    "relu": Formula("x < 0 ? 0 : x", "v=>v>0?v:0"),
    "leaky_relu": Formula("x < 0 ? {slope} * x : x", "v=>v<0?{slope}*v:v"),
    "clip": Formula(
        "x < {low} ? {low} : x > {high} ? {high} : x", "v=>Math.min(Math.max(v,{low}),{high})"
    ),
    "sigmoid": Formula("1 / (1 + expf(-x))", "v=>1/(1+Math.exp(-v))"),
    "tanh": Formula("tanhf(x)", "Math.tanh"),
    "silu": Formula("x / (1 + expf(-x))", "v=>v/(1+Math.exp(-v))"),
    "gelu": Formula(
        "x * 0.5f * (1 + erff(x * 0.70710678f))",
        # Abramowitz and Stegun 7.1.26: within 1.5e-7 of the error function.
        "v=>{{let s=Math.abs(v)*Math.SQRT1_2,t=1/(1+.3275911*s),e=((((1.061405429*t"
        "-1.453152027)*t+1.421413741)*t-.284496736)*t+.254829592)*t*Math.exp(-s*s)/2;"
        "return v*(v<0?e:1-e)}}",
    ),
}
