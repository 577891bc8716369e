"""Activations in each language that networks are exported to.

Takes     the name of an activation in a `Program`.
Gives     `ACTIVATIONS`: its function in numpy, C and JavaScript, side by side.
Unaware   of layers and of where the text goes.

`slope`, `low` and `high` are filled in as literals of that language.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Function(NamedTuple):
    """A function of one element; in C it is an expression in `x`."""

    numpy: Callable[..., np.ndarray]  # of x, slope, low, high
    c: str
    javascript: str


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _gelu(x: np.ndarray) -> np.ndarray:
    half = np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))), otypes=[np.float64])
    return np.asarray(x * half(x))


ACTIVATIONS: dict[str, Function] = {
    "relu": Function(lambda x, *_: np.maximum(x, 0), "x < 0 ? 0 : x", "v=>v>0?v:0"),
    "leaky_relu": Function(
        lambda x, slope, *_: np.where(x < 0, slope * x, x),
        "x < 0 ? {slope} * x : x",
        "v=>v<0?{slope}*v:v",
    ),
    "clip": Function(
        lambda x, _, low, high: np.clip(x, low, high),
        "x < {low} ? {low} : x > {high} ? {high} : x",
        "v=>Math.min(Math.max(v,{low}),{high})",
    ),
    "sigmoid": Function(lambda x, *_: _sigmoid(x), "1 / (1 + expf(-x))", "v=>1/(1+Math.exp(-v))"),
    "tanh": Function(lambda x, *_: np.tanh(x), "tanhf(x)", "Math.tanh"),
    "silu": Function(lambda x, *_: x * _sigmoid(x), "x / (1 + expf(-x))", "v=>v/(1+Math.exp(-v))"),
    "gelu": Function(
        lambda x, *_: _gelu(x),
        "x * 0.5f * (1 + erff(x * 0.70710678f))",
        # Abramowitz and Stegun 7.1.26: within 1.5e-7 of the error function.
        "v=>{{let s=Math.abs(v)*Math.SQRT1_2,t=1/(1+.3275911*s),e=((((1.061405429*t"
        "-1.453152027)*t+1.421413741)*t-.284496736)*t+.254829592)*t*Math.exp(-s*s)/2;"
        "return v*(v<0?e:1-e)}}",
    ),
}
