"""Operations put together into stages, and the memory that each of them reads and writes.

Takes     a `Program`.
Gives     `Stage`s in order: weights, an activation, pooling, a second operand, an activation; each
          reads values of one arena and writes to it. What lies between these is never stored.
Unaware   of C and of how weights are coded.

Everything is a convolution here: a dense layer is one whose kernel is as large as its input; sums,
pooling and activations with no convolution in front have one that changes nothing. A value has as
much room for zeros around it as the convolutions that read it need. Values that are not needed at
the same time share memory, and a sum takes the place of a value that is not needed afterwards.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reefknot.errors import ConfigError
from reefknot.export import program as ops
from reefknot.export.program import Layer, Pair, Planes, Program, planes_of


@dataclass(frozen=True)
class Area:
    """Planes of values in the arena, with room for zeros around each."""

    shape: Planes
    padding: Pair = (0, 0)
    place: int = 0  # where the room of the first plane begins

    @property
    def line(self) -> int:
        """The distance from one line to the next."""
        return self.shape[2] + 2 * self.padding[1]

    @property
    def plane(self) -> int:
        """The distance from one plane to the next."""
        return (self.shape[1] + 2 * self.padding[0]) * self.line

    @property
    def size(self) -> int:
        """The number of values, zeros included."""
        return self.shape[0] * self.plane

    def at(self, row: int = 0, column: int = 0) -> int:
        """The offset of an element of the first plane, which may be a zero around it."""
        return (self.padding[0] + row) * self.line + self.padding[1] + column


@dataclass(eq=False)
class Stage:
    """One pass over a value, by number; `scale` and `bias` are of each output."""

    conv: ops.Conv2d
    reads: int
    writes: int
    scale: np.ndarray | None
    bias: np.ndarray
    before: ops.Activation | None = None  # before the pooling
    pool: ops.Pool | None = None
    join: ops.Join | None = None
    other: int | None = None  # the second operand of the join
    after: ops.Activation | None = None
    channel: int = 0  # of the written value, where the outputs of this stage begin
    in_place: bool = False
    source: Area = Area((0, 0, 0))
    second: Area = Area((0, 0, 0))
    target: Area = Area((0, 0, 0))

    @property
    def out_shape(self) -> Planes:
        """The planes that it gives."""
        return planes_of((self.pool or self.conv).out_shape)

    @property
    def dense(self) -> bool:
        """Whether its kernel is applied at one position only, and nothing comes after it."""
        plain = self.pool is None and self.join is None and self.after is None
        is_whole = self.conv.weight.shape[1:] == self.conv.in_shape
        return plain and is_whole and self.conv.padding == (0, 0)

    @property
    def pointwise(self) -> bool:
        """Whether each element depends on the one in its place alone."""
        same = self.conv.in_shape == self.conv.out_shape and self.pool is None
        return same and self.conv.weight.shape[1:] == (1, 1, 1) and self.conv.padding == (0, 0)


@dataclass(frozen=True, eq=False)
class Plan:
    """The stages, the input if it is copied into the arena, and what comes after the last stage."""

    stages: tuple[Stage, ...]
    copied: Area | None
    arena: int  # values
    softmax: ops.Softmax | None


def plan(program: Program, *, copies: bool = False) -> Plan:
    """Stages for a program, and one arena for all values; `copies` asks for a copied input."""
    layers = program.layers
    last = layers[-1] if layers else None
    softmax = last if isinstance(last, ops.Softmax) else None
    if softmax is not None:
        layers = layers[:-1]
    for layer in layers:
        if isinstance(layer, ops.Softmax):
            raise ConfigError(
                f"{layer.name!r} is a softmax before the last layer, which C cannot express"
            )
    if all(isinstance(layer, ops.Reshape) for layer in layers):
        raise ConfigError("the network has no layers: there is nothing to write")
    builder = _Builder(Program(program.in_shape, layers))
    return _placed(builder, copies, softmax)


# -- stages ------------------------------------------------------------------------------------


class _Builder:
    """The stages of a program; `roots` gives the value in whose memory each value is."""

    def __init__(self, program: Program) -> None:
        self.stages: list[Stage] = []
        self.shapes = {0: planes_of(program.in_shape)}
        self.rooms: dict[int, Pair] = {}  # around a value
        self.flat: set[int] = set()  # values that are also read in another shape
        self.roots = {0: 0}
        self._room_for(program.layers)
        self.readers = Counter([self.roots[len(program.layers)]])
        for number, layer in enumerate(program.layers, 1):
            if self.roots[number] == number:
                self.readers.update(self.roots[n] for n in layer.inputs)
        for number, layer in enumerate(program.layers, 1):
            if self.roots[number] == number:
                self.shapes[number] = planes_of(layer.out_shape)
                self._add(number, layer)
        output = self.roots[len(program.layers)]
        makers = [stage for stage in self.stages if stage.writes == output]
        if len(makers) != 1 or self.readers[output] > 1:
            self._pass_through(program.layers[-1].name, output, self.shapes[output])

    def _room_for(self, layers: Sequence[Layer]) -> None:
        """Find the room around each value, and which views need no memory of their own."""
        same, wanted = {0: 0}, dict[int, Pair]()
        for number, layer in enumerate(layers, 1):
            source = same[layer.inputs[0]]
            is_same = isinstance(layer, ops.Reshape) and _keeps_planes(layer)
            same[number] = source if is_same else number
            if isinstance(layer, ops.Conv2d | ops.Pick):
                wanted[source] = _larger(wanted.get(source, (0, 0)), _room(_as_conv(layer)))
        for number, layer in enumerate(layers, 1):
            source = same[layer.inputs[0]]
            both = (wanted.get(source, (0, 0)), wanted.get(same[number], (0, 0)))
            shares = isinstance(layer, ops.Reshape) and (
                _keeps_planes(layer) or both == ((0, 0), (0, 0))
            )
            root = self.roots[layer.inputs[0]] if shares else number
            self.roots[number] = root
            if isinstance(layer, ops.Linear) or (shares and not _keeps_planes(layer)):
                self.flat.add(self.roots[layer.inputs[0]])
        self.rooms = {self.roots[n]: room for n, room in wanted.items() if any(room)}

    def _maker(self, number: int, shape: Planes | None) -> Stage | None:
        """The stage that makes a value for one reader alone, with planes of this shape."""
        root = self.roots[number]
        makers = [stage for stage in self.stages if stage.writes == root]
        fits = len(makers) == 1 and self.readers[root] == 1
        return makers[0] if fits and shape in (None, makers[0].out_shape) else None

    def _add(self, number: int, layer: Layer) -> None:
        if isinstance(layer, ops.Linear | ops.Conv2d | ops.Pick):
            self._convolve(number, layer)
        elif isinstance(layer, ops.Cat):
            self._concatenate(number, layer)
        elif isinstance(layer, ops.Join):
            self._join(number, layer)
        elif isinstance(layer, ops.Reshape):
            self._reshape(number, layer)
        else:
            self._extend(number, layer)

    def _convolve(self, number: int, layer: ops.Linear | ops.Conv2d | ops.Pick) -> None:
        source = self.roots[layer.inputs[0]]
        if isinstance(layer, ops.Linear):
            source = self._unpadded(layer, source)
        conv = _as_conv(layer)
        self.stages.append(Stage(conv, source, number, None, conv.bias))

    def _unpadded(self, layer: Layer, source: int) -> int:
        """The value itself, or a copy without room around it."""
        if self.rooms.get(source, (0, 0)) == (0, 0):
            return source
        return self._pass_through(layer.name, source, self.shapes[source])

    def _reshape(self, number: int, layer: ops.Reshape) -> None:
        """A view with memory of its own: it, or what it views, has room around it."""
        source = self._unpadded(layer, self.roots[layer.inputs[0]])
        self._pass_through(layer.name, source, planes_of(layer.out_shape), number)

    def _pass_through(
        self, name: str, source: int, shape: Planes, number: int | None = None
    ) -> int:
        """A stage that changes nothing, for what has no convolution before it."""
        if number is None:
            number = -len(self.stages) - 1
            self.roots[number], self.shapes[number] = number, shape
        ones, bias = np.ones((shape[0], 1, 1, 1), np.float32), np.zeros(shape[0], np.float32)
        conv = ops.Conv2d(name, shape, shape, (), ones, bias, groups=shape[0])
        self.stages.append(Stage(conv, source, number, None, bias))
        return number

    def _extend(self, number: int, layer: Layer) -> None:
        """Put a norm, a pooling or an activation at the end of the stage before it, if it fits."""
        shape = planes_of(layer.in_shape)
        anywhere = isinstance(layer, ops.Activation) and number not in self.rooms
        stage = self._maker(layer.inputs[0], None if anywhere else shape)
        if stage is None or not _has_room(stage, layer):
            self._pass_through(layer.name, self.roots[layer.inputs[0]], shape, number)
            stage = self.stages[-1]
        stage.writes = number
        if anywhere and shape != stage.out_shape:
            self.shapes[number] = stage.out_shape
            self.flat.add(number)
        if isinstance(layer, ops.Norm):
            scale = layer.scale if stage.scale is None else layer.scale * stage.scale
            stage.scale = scale.astype(np.float32)
            stage.bias = (stage.bias * layer.scale + layer.shift).astype(np.float32)
        elif isinstance(layer, ops.Pool):
            stage.pool = layer
        elif isinstance(layer, ops.Activation):
            if stage.pool or stage.join or stage.before:
                stage.after = layer
            else:
                stage.before = layer

    def _join(self, number: int, layer: ops.Join) -> None:
        """Join to the stage that makes one operand, if the other is there before it."""
        shape = planes_of(layer.in_shape)
        pairs = [layer.inputs]
        if layer.second == shape:
            pairs.append(layer.inputs[::-1])
        made = {stage.writes: at for at, stage in enumerate(self.stages)}
        for one, two in pairs:
            stage, other = self._maker(one, shape), self.roots[two]
            is_late = stage is not None and made.get(other, -1) < made[stage.writes]
            if stage is not None and is_late and _has_room(stage, layer):
                break
        else:
            (one, two), other = layer.inputs, self.roots[layer.inputs[1]]
            self._pass_through(layer.name, self.roots[one], shape, number)
            stage = self.stages[-1]
        stage.join, stage.other, stage.writes = layer, other, number

    def _concatenate(self, number: int, layer: ops.Cat) -> None:
        """Let the stages that make the parts write to one value."""
        channel, parts = 0, [self.roots[n] for n in layer.inputs]
        rest = planes_of(layer.out_shape)[1:]
        for one in layer.inputs:
            shape = self._part_shape(one, rest)
            stage = self._maker(one, shape) if parts.count(self.roots[one]) == 1 else None
            if stage is None or stage.channel:
                self._pass_through(layer.name, self.roots[one], shape, number)
                stage = self.stages[-1]
            stage.writes, stage.channel = number, channel
            channel += shape[0]

    def _part_shape(self, number: int, rest: Pair) -> Planes:
        shape = self.shapes[self.roots[number]]
        return (int(np.prod(shape)) // (rest[0] * rest[1]), *rest)


def _keeps_planes(layer: Layer) -> bool:
    return planes_of(layer.in_shape) == planes_of(layer.out_shape)


def _larger(one: Pair, two: Pair) -> Pair:
    return max(one[0], two[0]), max(one[1], two[1])


def _has_room(stage: Stage, layer: Layer) -> bool:
    """Whether this operation can be the next of a stage."""
    if isinstance(layer, ops.Activation):
        return stage.after is None
    free = stage.join is None and stage.after is None
    if isinstance(layer, ops.Norm):
        return free and stage.pool is None and stage.before is None
    return free and (stage.pool is None or isinstance(layer, ops.Join))


def _as_conv(layer: ops.Linear | ops.Conv2d | ops.Pick) -> ops.Conv2d:
    base = (layer.name, planes_of(layer.in_shape), planes_of(layer.out_shape), layer.inputs)
    if isinstance(layer, ops.Pick):
        weight = np.zeros((base[2][0], base[1][0], 1, 1), np.float32)
        for row, channel in enumerate(layer.channels):
            if channel >= 0:
                weight[row, channel] = 1
        bias = np.zeros(len(weight), np.float32)
        return ops.Conv2d(*base, weight, bias, layer.step, (-layer.start[0], -layer.start[1]))
    if isinstance(layer, ops.Linear):
        weight = layer.weight[:, None, None, :]
        base = (layer.name, (1, 1, weight.shape[3]), *base[2:])
        return ops.Conv2d(*base, weight, layer.bias)
    return layer


def _room(conv: ops.Conv2d) -> Pair:
    """How far around its input a convolution reads."""

    def far(k: int) -> int:
        reach = (conv.weight.shape[2 + k] - 1) * conv.dilation[k]
        end = (conv.out_shape[1 + k] - 1) * conv.stride[k] + reach - conv.padding[k]
        return max(conv.padding[k], end + 1 - conv.in_shape[1 + k], 0)

    return far(0), far(1)


# -- memory ------------------------------------------------------------------------------------


def _placed(builder: _Builder, copies: bool, softmax: ops.Softmax | None) -> Plan:
    """The stages with areas in the arena for what they read and write."""
    stages, rooms = builder.stages, builder.rooms
    reads = [(at, value) for at, one in enumerate(stages) for value in (one.reads, one.other)]
    last = {value: at for at, value in reads}
    copies = copies or 0 in rooms or (0 in (s.other for s in stages)) or last[0] > 0
    born = {stage.writes: at for at, stage in reversed([*enumerate(stages)])}
    born[0] = -1
    homes = {value: value for value in born}  # in whose memory a value is written
    for at, stage in enumerate(stages[:-1]):
        home = _in_place(builder, stage, {v for v in homes if last.get(v) == at}, homes, copies)
        if home is not None:
            homes[stage.writes], stage.in_place = homes[home], True
    areas, lives = dict[int, Area](), dict[int, Pair]()
    for value, home in homes.items():
        if home == value and value != stages[-1].writes and (value or copies):
            areas[value] = Area(builder.shapes[value], rooms.get(value, (0, 0)))
            ends = [last.get(v, born[v]) for v, one in homes.items() if one == home]
            lives[value] = (born[value], max(ends))
    sizes = {value: area.size for value, area in areas.items()}
    places, arena = _packed(sizes, lives)
    for stage in stages:
        _set_areas(stage, lambda value: (areas.get(homes[value]), places.get(homes[value], 0)))
    copied = replace(areas[0], place=places[0]) if copies else None
    return Plan(tuple(stages), copied, arena, softmax)


def _in_place(
    builder: _Builder, stage: Stage, dying: set[int], homes: dict[int, int], copies: bool
) -> int | None:
    """A value that is read for the last time, whose memory the stage may write its outputs to."""
    written = builder.rooms.get(stage.writes, (0, 0))
    for value in (stage.other, stage.reads):
        if value is None or value not in dying or (value == 0 and not copies):
            continue
        overtaken = not stage.pointwise and homes[value] == homes[stage.reads]
        room = builder.rooms.get(value, (0, 0))
        is_smaller = stage.writes not in builder.flat and _larger(room, written) == room
        alike = builder.shapes[value] == builder.shapes[stage.writes] == stage.out_shape
        if alike and not overtaken and (room == written or is_smaller):
            return value
    return None


def _set_areas(stage: Stage, find: Callable[[int], tuple[Area | None, int]]) -> None:
    """Where a stage reads and writes, as it sees the shapes."""

    def area(value: int, shape: Planes, channel: int = 0) -> Area:
        home, place = find(value)
        padding = (0, 0) if home is None else home.padding
        own = Area(shape, padding, place)
        return replace(own, place=place + channel * own.plane)

    stage.source = area(stage.reads, planes_of(stage.conv.in_shape))
    stage.target = area(stage.writes, stage.out_shape, stage.channel)
    if stage.join is not None and stage.other is not None:
        stage.second = area(stage.other, stage.join.second)


def _packed(sizes: dict[int, int], lives: dict[int, Pair]) -> tuple[dict[int, int], int]:
    """Places so that values that live at the same time do not overlap, and where the last ends.

    In the order of their birth, values go to the bottom and to the top of the room that is needed
    at least, in turns: in a chain of layers this is all that it takes. Else the largest go first.
    """
    steps = range(-1, max((end for _, end in lives.values()), default=0) + 1)
    least = max(
        (sum(sizes[v] for v, (a, b) in lives.items() if a <= at <= b) for at in steps), default=0
    )
    by_birth = sorted(sizes, key=lambda v: lives[v])
    by_size = sorted(sizes, key=lambda v: (-sizes[v], lives[v]))
    tried = []
    for order, turns in ((by_birth, True), (by_birth, False), (by_size, False)):
        places: dict[int, int] = {}
        for number, value in enumerate(order):
            born, dead = lives[value]
            alive = [v for v in places if lives[v][0] <= dead and born <= lives[v][1]]
            there = [(places[v], places[v] + sizes[v]) for v in alive]
            spots = sorted({0, *(end for _, end in there)})
            if turns and number % 2:
                tops = {least, *(begin for begin, _ in there)}
                spots = [top - sizes[value] for top in sorted(tops, reverse=True)] + spots
            places[value] = next(
                spot for spot in spots
                if spot >= 0 and all(spot + sizes[value] <= a or b <= spot for a, b in there)
            )  # fmt: skip
        tried.append((max((places[v] + sizes[v] for v in places), default=0), places))
    arena, places = min(tried, key=lambda one: one[0])
    return places, arena
