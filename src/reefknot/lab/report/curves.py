"""Curves: what changes over the steps of a run.

Takes     its metrics, line by line as they were written.
Gives     figures of losses, error, time, size and assignments.
Paper     figure 2 (losses and errors), appendix (assignments).
Unaware   of the state that the run ended with, and of the page.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from reefknot.lab.report.document import MAX_POINTS, Figure, Metrics, Numbers
from reefknot.lab.report.svg import Chart, Point, is_log, padded
from reefknot.lab.report.wording import count, mapping, number, percent, plain, share


class Phase(NamedTuple):
    """A stretch of steps that belong together."""

    start: float
    end: float
    name: str
    is_last: bool = False  # no weight changes its cluster


def in_order(metrics: Sequence[object]) -> list[dict[str, Any]]:
    """The rows that have a step, without those that a resumed run has written again.

    A killed run resumes from its last checkpoint: its steps jump back, and rows after that
    checkpoint are written a second time.
    """
    kept: list[dict[str, Any]] = []
    for line in metrics:
        step = number(mapping(line).get("step"))
        if step is None:
            continue
        while kept and kept[-1]["step"] > step:
            kept.pop()
        kept.append({**mapping(line), "step": step})
    return kept


def phases(metrics: Metrics) -> list[Phase]:
    """The phases of a run; one begins where the phase before it was last seen."""
    found: list[Phase] = []
    for line in metrics:
        name = str(line.get("phase") or "")
        step = float(line["step"])
        if found and found[-1].name == name:
            found[-1] = found[-1]._replace(end=step)
        else:
            start = found[-1].end if found else step
            found.append(Phase(start, step, name, bool(line.get("is_last"))))
    return found


def spread_out(size: int, most: int) -> list[int]:
    """At most so many of the numbers below `size`, evenly chosen, first and last among them."""
    return sorted(set(np.linspace(0, size - 1, min(size, most)).astype(int).tolist()))


def thinned(metrics: Metrics, most: int) -> Metrics:
    """Evenly chosen lines, and both sides of every change of phase."""
    chosen = set(spread_out(len(metrics), most))
    for place in range(1, len(metrics)):
        if metrics[place].get("phase") != metrics[place - 1].get("phase"):
            chosen |= {place - 1, place}
    return [metrics[place] for place in sorted(chosen)]


def over_steps(
    metrics: Metrics,
    values: Sequence[float],
    label: str,
    *,
    log: bool = False,
    zero: bool = False,
    height: float = 236.0,
) -> Chart:
    """An empty chart over the steps of a run, with its phases."""
    first, last = metrics[0]["step"], metrics[-1]["step"]
    x_range = (0.0 if 0 < first < 0.1 * last else first, last)
    chart = Chart(x_range, padded(values, log=log, zero=zero), label, log=log, height=height)
    for place, phase in enumerate(phases(metrics)):
        if phase.name:
            start = phase.start if place else chart.x.low
            chart.phase(start, phase.end, phase.name, shaded=phase.is_last)
    return chart


def phases_told(metrics: Metrics) -> str:
    """The names of all phases in order; in a chart, a short one has no room for its name."""
    told = [p.name + (" (shaded)" if p.is_last else "") for p in phases(metrics) if p.name]
    return ", ".join(dict.fromkeys(told))


def _bytes(value: float) -> str:
    return plain(value, 4) if value < 1e5 else f"{plain(value / 1e3, 3)}k"


class Quantity(NamedTuple):
    """What a curve shows: a key of the metrics, its title and unit, and words for its values."""

    key: str
    title: str
    note: str
    shown: Callable[[float], str] = partial(plain, digits=3)
    factor: float = 1.0


_SHARE = (lambda value: share(value / 100), 100.0)
LOSSES = (
    Quantity("loss", "Data loss", "without penalties"),
    Quantity("kmeans_penalty", "k-means penalty", "half the squared distance to the centers"),
    Quantity("val_error", "Validation error", "percent", percent),
)
TYING = (
    Quantity("changed", "Changed assignments", "percent of weights, at each refit", *_SHARE),
    Quantity("density", "Density", "percent not zero", *_SHARE),
    Quantity("predicted_bytes", "Predicted size", "bytes, while training", _bytes),
)
_SECONDS = "milliseconds, means since the last measurement"
TIME = (Quantity("step_seconds", "Time of a step", _SECONDS, factor=1000.0),)


Level = tuple[float, str]  # a dashed line across a curve, and what the note says of it


def training(metrics: Metrics, file_bytes: float | None, *, tied: bool = True) -> list[Figure]:
    """The curves of a run: losses, error, time; where it tied, size and how assignments settle."""
    if not metrics:
        return []
    levels: dict[str, Level] = {}
    if density := _last(metrics, "target_density"):
        levels["density"] = (100 * density, f"the target, {share(density)}")
    if target := _last(metrics, "target_bytes"):
        levels["predicted_bytes"] = (target, f"the target, {count(target)} bytes")
    elif file_bytes and file_bytes > 0:
        levels["predicted_bytes"] = (file_bytes, f"the file, {count(file_bytes)} bytes")
    shown = [*LOSSES, *(TYING if tied else ()), *TIME]
    found = (_curve(metrics, quantity, levels.get(quantity.key)) for quantity in shown)
    return [figure for figure in found if figure]


def _curve(metrics: Metrics, quantity: Quantity, level: Level | None) -> Figure | None:
    """One quantity over steps; log scale when it covers more than a decade or so."""
    key, title, note, shown, factor = quantity
    lines = [line for line in metrics if number(line.get(key)) is not None]
    if not lines:
        return None
    points: list[Point] = []
    for line in thinned(metrics, MAX_POINTS):
        value = number(line.get(key))
        points.append((line["step"], None if value is None else factor * value))
    values = [value for _, value in points if value is not None]
    if not any(values):  # such as the penalty of a method that has none
        return None
    # Exact zeros (the penalty once weights are tied) have no place on a log scale; the rest may.
    positive = [value for value in values if value > 0]
    log = is_log(positive) and min(values) >= 0
    first, last = values[0], values[-1]
    label = (
        f"{title} over {len(lines)} measurements: {shown(first)} at first, "
        f"{shown(last)} at the end, {shown(min(values))} at its lowest."
    )
    spread = [*(positive if log else values), *([level[0]] if level else [])]
    chart = over_steps(metrics, spread, label, log=log, zero=True)
    if level:
        chart.level(level[0])
    chart.line(points)
    told = [(plain(step), "" if value is None else shown(value)) for step, value in points]
    chart.touch(points, [f"step {step}: {words}" for step, words in told])
    shows_last = not (log and last <= 0)
    if shows_last:
        chart.end(points, shown(last))
    notes = [f"{note}; dashed: {level[1]}" if level else note]
    if log:
        notes.append("log scale")
    if not shows_last:
        notes.append("zero at the end")
    listed = Numbers(("Step", title), [row for row in told if row[1]])
    return Figure(title, ", ".join(notes), chart.render(), listed)


def _last(metrics: Metrics, key: str) -> float | None:
    """The last positive number under a key."""
    told = (number(line.get(key)) for line in reversed(metrics))
    return next((value for value in told if value is not None and value > 0), None)
