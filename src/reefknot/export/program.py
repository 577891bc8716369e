"""A network as a list of operations with numpy values, which exporters write in other languages.

Takes     operations in an order in which they can run, made by `layers`.
Gives     `Program`; `ACTIVATIONS`, the functions of an element in C and JavaScript, side by side.
Unaware   of torch and of files.

Shapes are those of one example, without the batch: (channels, height, width) or (features,). Values
are float32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from reefknot.errors import ConfigError

Shape = tuple[int, ...]
Pair = tuple[int, int]
Planes = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Layer:
    """What all operations have: the name in the network, the shapes around it, what it reads.

    Values are numbered: 0 is the input of the network, k what the operation k gives, from 1 on.
    `in_shape` is that of the first value read.
    """

    name: str
    in_shape: Shape
    out_shape: Shape
    inputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Linear(Layer):
    """weight @ x + bias."""

    weight: np.ndarray  # (outputs, inputs)
    bias: np.ndarray  # (outputs,), zeros if there is none


@dataclass(frozen=True, eq=False)
class Conv2d(Layer):
    """weight * x + bias, with zeros around the input; a negative padding leaves out its edge."""

    weight: np.ndarray  # (outputs, inputs // groups, height, width)
    bias: np.ndarray  # (outputs,), zeros if there is none
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1


@dataclass(frozen=True, eq=False)
class Norm(Layer):
    """A BatchNorm with its statistics: scale · x + shift, for each channel."""

    scale: np.ndarray  # float64
    shift: np.ndarray
    epsilon: float


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

    kind: str  # in ACTIVATIONS
    slope: float = 0.0  # of leaky_relu, below zero; the factor of affine, elu
    low: float = 0.0  # what affine adds
    high: float = 0.0


@dataclass(frozen=True, eq=False)
class Softmax(Layer):
    """Over all features of a vector; with `log`, its logarithm."""

    log: bool = False


@dataclass(frozen=True, eq=False)
class Join(Layer):
    """The sum or the product of two values; a dimension of 1 of the second stands for all."""

    kind: Literal["add", "mul"]
    second: Planes


@dataclass(frozen=True, eq=False)
class Cat(Layer):
    """The channels of all inputs, one input after the other."""


@dataclass(frozen=True, eq=False)
class Pick(Layer):
    """Planes chosen, cropped or surrounded by zeros: y[c, i, j] = x[channels[c], place of i, j].

    The place is start + step · (i, j); outside of the input, and where a channel is -1, are zeros.
    """

    channels: tuple[int, ...]
    start: Pair
    step: Pair


@dataclass(frozen=True, eq=False)
class Reshape(Layer):
    """The same values in the same order."""


@dataclass(frozen=True, eq=False)
class Program:
    """Operations in order; the last of them gives the output."""

    in_shape: Shape
    layers: tuple[Layer, ...]

    @property
    def out_shape(self) -> Shape:
        """The shape of what the last operation gives."""
        return self.layers[-1].out_shape if self.layers else self.in_shape


Numbers = float | Sequence[float]
Scales = tuple[tuple[float, ...], tuple[float, ...]]


def scales_of(mean: Numbers, deviation: Numbers, channels: int) -> Scales:
    """Mean and deviation of pixels: one number for all channels, or one for each.

    >>> scales_of(0.5, [1, 2, 3], 3)
    ((0.5,), (1.0, 2.0, 3.0))
    """
    found = [tuple(map(float, n if isinstance(n, Sequence) else (n,))) for n in (mean, deviation)]
    if any(len(numbers) not in (1, channels) for numbers in found):
        raise ConfigError(
            f"{len(found[0])} means and {len(found[1])} deviations were given for an input of "
            f"{channels} channel{'s' * (channels > 1)}: give one of each, or one for each channel"
        )
    if not (0 <= min(found[0]) <= max(found[0]) < math.inf and 0 < min(found[1]) < math.inf):
        raise ConfigError(
            "pixels have a mean of 0 or more and a positive standard deviation, found "
            f"{mean} and {deviation}"
        )
    return found[0], found[1]


def planes_of(shape: Shape) -> Planes:
    """A shape as planes of lines: features are planes of one element.

    >>> planes_of((3, 8, 8)), planes_of((10,))
    ((3, 8, 8), (10, 1, 1))
    """
    return shape if len(shape) == 3 else (math.prod(shape), 1, 1)


class Formula(NamedTuple):
    """A function of one element: in C an expression in `x`, in JavaScript a function.

    `slope`, `low` and `high` are filled in as literals of that language.
    """

    c: str
    javascript: str


ACTIVATIONS: dict[str, Formula] = {
    "relu": Formula("x < 0 ? 0 : x", "v=>v>0?v:0"),
    "leaky_relu": Formula("x < 0 ? {slope} * x : x", "v=>v<0?{slope}*v:v"),
    "elu": Formula("x < 0 ? {slope} * (expf(x) - 1) : x", "v=>v<0?{slope}*Math.expm1(v):v"),
    "clip": Formula(
        "x < {low} ? {low} : x > {high} ? {high} : x", "v=>Math.min(Math.max(v,{low}),{high})"
    ),
    "affine": Formula("{slope} * x + {low}", "v=>{slope}*v+{low}"),
    "sigmoid": Formula("1 / (1 + expf(-x))", "v=>1/(1+Math.exp(-v))"),
    "hardsigmoid": Formula(
        "x < -3 ? 0 : x > 3 ? 1 : x / 6 + 0.5f", "v=>Math.min(Math.max(v/6+.5,0),1)"
    ),
    "tanh": Formula("tanhf(x)", "Math.tanh"),
    "silu": Formula("x / (1 + expf(-x))", "v=>v/(1+Math.exp(-v))"),
    "hardswish": Formula(
        "x < -3 ? 0 : x > 3 ? x : x * (x + 3) / 6", "v=>v*Math.min(Math.max(v/6+.5,0),1)"
    ),
    "gelu": Formula(
        "x * 0.5f * (1 + erff(x * 0.70710678f))",
        # Abramowitz and Stegun 7.1.26: within 1.5e-7 of the error function.
        "v=>{{let s=Math.abs(v)*Math.SQRT1_2,t=1/(1+.3275911*s),e=((((1.061405429*t"
        "-1.453152027)*t+1.421413741)*t-.284496736)*t+.254829592)*t*Math.exp(-s*s)/2;"
        "return v*(v<0?e:1-e)}}",
    ),
}
