"""SVG charts: scales, nice ticks, lines, dots and stems.

Takes     numbers and the few words of an axis.
Gives     one `<svg>` element, styled by the classes of the page, readable without it.
Unaware   of runs, metrics and tensors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reefknot.lab.report.document import tag, text
from reefknot.lab.report.wording import plain

WIDTH = 480.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 68.0, 24.0, 34.0

Point = tuple[float, float | None]  # None: a gap


def nice_step(span: float, count: int = 5) -> float:
    """The smallest of 1, 2, 5 times a power of ten that cuts `span` in at most `count` parts."""
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in (1, 2, 5):
        if factor * power >= raw * (1 - 1e-9):
            return factor * power
    return 10 * power


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round positions between `low` and `high`, both included where they are round.

    >>> nice_ticks(0, 70_000)
    [0.0, 20000.0, 40000.0, 60000.0]
    """
    if not high > low:
        return [low]
    step = nice_step(high - low, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Multiples of a power of ten below one are not exact: 3 * 0.1 must read 0.3.
    digits = max(0, -math.floor(math.log10(step)))
    return [round(n * step, digits) + 0.0 for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between `low` and `high`; with few of them, 2 and 5 times those as well.

    >>> log_ticks(0.004, 3)
    [0.01, 0.1, 1.0]
    >>> log_ticks(15, 300)
    [20.0, 50.0, 100.0, 200.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = range(first, last + 1)

    def inside(factors: tuple[int, ...], every: int = 1) -> list[float]:
        found = [f * 10.0**n if n >= 0 else f / 10.0**-n for n in decades[::every] for f in factors]
        return [tick for tick in found if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]

    if len(inside((1,))) >= 3:
        return inside((1,), every=-(-len(inside((1,))) // 6))
    fine = inside((1, 2, 5))
    return fine if len(fine) >= 2 else nice_ticks(low, high, 3)


def tick_labels(ticks: Sequence[float], *, log: bool = False) -> list[str]:
    """Short labels: plain, k (thousands) or M (millions); one unit for all on a linear scale.

    >>> tick_labels([0.0, 20000.0, 40000.0])
    ['0', '20k', '40k']
    """
    if log:
        return [label for tick in ticks for label in tick_labels([tick])]
    top = max((abs(tick) for tick in ticks), default=0.0)
    unit, suffix = (1e6, "M") if top >= 1e6 else (1e3, "k") if top >= 1e4 else (1.0, "")
    return [plain(t / unit) + (suffix if t else "") for t in ticks]


class Scale(NamedTuple):
    """Where a value falls between two positions, linearly or by its logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return self.start + (self.end - self.start) * ((value - low) / (high - low))

    def ticks(self, room: float) -> list[float]:
        """Round values on this scale, each with about `room` for itself."""
        if self.log:
            return log_ticks(self.low, self.high)
        return nice_ticks(self.low, self.high, max(2, round(abs(self.end - self.start) / room)))


def is_log(values: Sequence[float]) -> bool:
    """Whether to use a log scale: all positive, and the largest is ten times the smallest."""
    return bool(values) and min(values) > 0 and max(values) > 10 * min(values)


def padded(values: Sequence[float], *, log: bool, zero: bool = False) -> tuple[float, float]:
    """The range of an axis that shows `values`, never empty; `zero` keeps 0 on a linear one."""
    low, high = min(values), max(values)
    if log:
        room = (high / low) ** 0.06 if high > low else 2.0
        return low / room, high * room
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if not high > low:
        room = abs(low) / 2 or 0.5
        return (0.0, high + room) if zero and low >= 0 else (low - room, high + room)
    step = nice_step(high - low)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


@dataclass
class Chart:
    """A chart, mostly over steps, that grows by calls and ends in `render`.

    `label` is read by screen readers in place of the drawing, so it says what can be seen.
    """

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    label: str
    log: bool = False
    height: float = 236.0
    x_label: str = "step"
    log_x: bool = False
    _under: list[str] = field(default_factory=list)
    _over: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Lay out the two scales; steps that do not differ still get some width."""
        low, high = self.x_range
        if not high > low:
            low, high = low - 0.5, high + 0.5
        self.x = Scale(low, high, _LEFT, WIDTH - _RIGHT, self.log_x)
        self.y = Scale(*self.y_range, self.height - _BOTTOM, _TOP, self.log)

    def _runs(self, points: Sequence[Point]) -> list[list[tuple[float, float]]]:
        """Positions in unbroken runs: a gap, or a value that a log scale cannot show, ends one."""
        runs: list[list[tuple[float, float]]] = [[]]
        for step, value in points:
            if value is None or (self.log and value <= 0):
                runs.append([])
            else:
                runs[-1].append((self.x(step), self.y(value)))
        return [run for run in runs if run]

    def phase(self, start: float, end: float, name: str, *, shaded: bool) -> None:
        """A stretch of steps with a name above it; shaded, or with a line where it begins."""
        left, right = self.x(start), self.x(end)
        foot = _TOP + self._depth
        if shaded:
            self._under.append(
                tag("rect", class_="phase", x=left, y=_TOP, width=right - left, height=self._depth)
            )
        elif start > self.x.low:
            self._under.append(tag("line", class_="edge", x1=left, x2=left, y1=_TOP, y2=foot))
        room = right - left + (_RIGHT if end >= self.x.high else 0.0)  # the margin is empty there
        if room > 7 * len(name):
            # The name begins at the left edge of its stretch, so that names line up with stretches.
            self._under.append(tag("text", text(name), class_="name", x=left, y=_TOP - 9))

    @property
    def _depth(self) -> float:
        return self.height - _TOP - _BOTTOM

    def line(self, points: Sequence[Point], *, kind: str = "a", title: str = "") -> None:
        """A line through points; a point between two gaps becomes a dot."""
        runs = self._runs(points)
        told = (tag("title", text(title)),) if title else ()
        path = "".join(_path(run) for run in runs if len(run) > 1)
        if path:
            self._over.append(tag("path", *told, class_=f"line {kind}", d=path))
        for run in runs:
            if len(run) == 1:
                (x, y), *_ = run
                self._over.append(tag("circle", class_=f"dot {kind}", cx=x, cy=y, r=2.0))

    def end(self, points: Sequence[Point], words: str, *, kind: str = "a") -> None:
        """A dot and a few words at a line's last point."""
        if not (runs := self._runs(points)):
            return
        x, y = runs[-1][-1]
        self._over.append(tag("circle", class_=f"dot {kind}", cx=x, cy=y, r=3.0))
        self._over.append(tag("text", text(words), class_=f"end {kind}", x=x + 7, y=y + 4))

    def dot(self, x: float, y: float, *, kind: str, title: str, radius: float = 4.0) -> None:
        """One point with a tooltip."""
        place = {"cx": self.x(x), "cy": self.y(y), "r": radius}
        self._over.append(tag("circle", tag("title", text(title)), class_=kind, **place))

    def touch(self, points: Sequence[Point], words: Sequence[str]) -> None:
        """Invisible spots whose tooltips show values, without any script."""
        for (step, value), told in zip(points, words, strict=True):
            if value is not None and not (self.log and value <= 0):
                self.dot(step, value, kind="spot", title=told, radius=5.0)

    def level(self, value: float) -> None:
        """A dashed line across the chart at a value worth comparing with."""
        y = self.y(value)
        self._under.append(tag("line", class_="level", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y))

    def stem(self, x: float, y: float, *, kind: str, title: str) -> None:
        """A thin bar from the bottom up to `y`."""
        shape = _path([(self.x(x), self.y.start), (self.x(x), self.y(y))])
        self._over.append(tag("path", tag("title", text(title)), class_=f"stem {kind}", d=shape))

    def render(self) -> str:
        """The whole chart as one `<svg>`."""
        left, right, foot = self.x.start, self.x.end, self.y.start
        axes = []
        ticks = self.y.ticks(36.0)
        for tick, words in zip(ticks, tick_labels(ticks, log=self.log), strict=True):
            y = self.y(tick)
            axes.append(tag("line", class_="grid", x1=left, x2=right, y1=y, y2=y))
            axes.append(tag("text", text(words), class_="tick y", x=left - 8, y=y + 4))
        axes.append(tag("line", class_="axis", x1=left, x2=right, y1=foot, y2=foot))
        ticks = self.x.ticks(62.0)
        for tick, words in zip(ticks, tick_labels(ticks, log=self.log_x), strict=True):
            x = self.x(tick)
            axes.append(tag("line", class_="axis", x1=x, x2=x, y1=foot, y2=foot + 4))
            axes.append(tag("text", text(words), class_="tick x", x=x, y=foot + 18))
        axes.append(tag("text", text(self.x_label), class_="name", x=right + 28, y=foot + 18))
        box = f"0 0 {WIDTH:.0f} {self.height:.0f}"
        parts = [*axes, *self._under, *self._over]
        return tag("svg", *parts, class_="plot", viewBox=box, role="img", aria_label=self.label)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
