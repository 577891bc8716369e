"""Layers put together into stages: weights, an activation, pooling, another activation.

Takes     a `Program`.
Gives     `Stage`s, each of which reads one buffer and writes the next, and where the buffers are in
          one arena. A convolution and its pooling are one stage: nothing between them is stored.
Unaware   of C and of how weights are coded.

Everything is a convolution here: a dense layer is one whose kernel is as large as its input.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

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


@dataclass(frozen=True, eq=False)
class Buffer:
    """Planes of values, padded with zeros as the stage that reads them needs."""

    planes: int
    height: int
    width: int
    padding: Pair = (0, 0)

    @property
    def line(self) -> int:
        """The distance from one line to the next."""
        return self.width + 2 * self.padding[1]

    @property
    def plane(self) -> int:
        """The distance from one plane to the next."""
        return (self.height + 2 * self.padding[0]) * self.line

    @property
    def start(self) -> int:
        """The offset of the first value."""
        return self.padding[0] * self.line + self.padding[1]

    @property
    def size(self) -> int:
        """The number of values, padding included."""
        return self.planes * self.plane


@dataclass(frozen=True, eq=False)
class Stage:
    """One pass from buffer to buffer."""

    conv: Conv2d
    source: Buffer
    target: Buffer
    before: Activation | None = None  # before the pooling
    pool: Pool | None = None
    after: Activation | None = None

    @property
    def dense(self) -> bool:
        """Whether its kernel is applied at one position only."""
        return (
            self.conv.out_shape[1:] == (1, 1) and self.pool is None and not any(self.conv.padding)
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """The stages, where each one's buffers begin in the arena, and what comes after the last."""

    stages: tuple[Stage, ...]
    copied: bool  # the input is copied into the arena first, because it is padded
    places: tuple[int, ...]  # of the buffers, from input to output; 0 for those not in the arena
    arena: int  # values
    softmax: Softmax | None


def plan(program: Program) -> Plan:
    """Stages for a program, and one arena for all of their buffers."""
    layers = [layer for layer in program.layers if not isinstance(layer, Flatten)]
    last = layers[-1] if layers else None
    softmax = last if isinstance(last, Softmax) else None
    if softmax is not None:
        layers.pop()
    for layer in layers:
        if isinstance(layer, Softmax):
            raise ConfigError(
                f"{layer.name!r} is a softmax before the last layer, which C cannot express"
            )
    parts = _parts(layers, program.in_shape)
    stages = _stages(parts)
    copied = any(stages[0].conv.padding)
    sizes = [stages[0].source.size if copied else 0]
    sizes += [stage.target.size for stage in stages[:-1]] + [0]
    arena = max(one + two for one, two in pairwise(sizes))
    # Buffers alternate between both ends of the arena, so that no stage's two buffers overlap.
    places = [arena - size if number % 2 else 0 for number, size in enumerate(sizes)]
    return Plan(tuple(stages), copied, tuple(places), arena, softmax)


def _parts(layers: Sequence[Layer], in_shape: Shape) -> list[Stage]:
    """Stages whose buffers are not known yet."""
    nowhere = Buffer(0, 0, 0)
    parts: list[Stage] = []
    shape = in_shape
    for layer in layers:
        last = parts[-1] if parts else None
        if isinstance(layer, Linear | Conv2d):
            parts.append(Stage(_as_conv(layer), nowhere, nowhere))
        elif isinstance(layer, Activation):
            full = last is None or last.after is not None or (last.before and not last.pool)
            if last is None or full:
                last = Stage(_identity(layer, shape), nowhere, nowhere)
                parts.append(last)
            free = last.pool is None
            parts[-1] = replace(last, before=layer) if free else replace(last, after=layer)
        elif isinstance(layer, Pool):
            if last is None or last.pool is not None:
                last = Stage(_identity(layer, shape), nowhere, nowhere)
                parts.append(last)
            parts[-1] = replace(last, pool=layer)
        else:
            raise ConfigError(f"{layer.name!r} is a {type(layer).__name__}, which C cannot express")
        shape = layer.out_shape
    if not parts:
        raise ConfigError("the network has no layers: there is nothing to write")
    return parts


def _as_conv(layer: Linear | Conv2d) -> Conv2d:
    if isinstance(layer, Conv2d):
        return layer
    weight = layer.weight[:, None, None, :]
    shapes = ((1, 1, weight.shape[3]), (len(weight), 1, 1))
    return Conv2d(layer.name, *shapes, weight, layer.bias, layer.scale)


def _identity(layer: Layer, shape: Shape) -> Conv2d:
    """An identity convolution, for a pooling or an activation without one before it."""
    planes = shape if len(shape) == 3 else (math.prod(shape), 1, 1)
    ones = np.ones((planes[0], 1, 1, 1), np.float32)
    bias = np.zeros(planes[0], np.float32)
    return Conv2d(layer.name, planes, planes, ones, bias, groups=planes[0])


def _stages(parts: list[Stage]) -> list[Stage]:
    """Stages with their buffers: each as the stage that reads it sees it."""
    made = []
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        shape = (part.pool or part.conv).out_shape
        padding = (0, 0)
        if following is not None and following.conv.in_shape == shape:
            padding = following.conv.padding
        source = _buffer(part.conv.in_shape, part.conv.padding)
        made.append(replace(part, source=source, target=_buffer(shape, padding)))
    return made


def _buffer(shape: Shape, padding: Pair) -> Buffer:
    planes, height, width = shape
    return Buffer(planes, height, width, padding)
