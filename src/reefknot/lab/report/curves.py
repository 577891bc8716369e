"""Curves: what changes over the steps of a run.

Takes     its metrics, line by line as they were written.
Gives     figures of losses, error, time, size, assignments and the paths of the centers.
Paper     figure 2 (losses and errors), appendix (centers, assignments).
Unaware   of the state that the run ended with, and of the page.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from reefknot.lab.report.document import MAX_GROUPS, MAX_POINTS, Figure, Metrics, sign_kind
from reefknot.lab.report.svg import Chart, Point, is_log, padded
from reefknot.lab.report.tables import Numbers
from reefknot.lab.report.wording import count, mapping, number, numbers, percent, plain, share

MAX_CURVES = 64  # in one figure of centers


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


def _thinned(metrics: Metrics, most: int) -> Metrics:
    """Evenly chosen lines, first and last among them, and both sides of every change of phase."""
    if len(metrics) <= most:
        return metrics
    chosen = set(np.linspace(0, len(metrics) - 1, max(most, 2)).astype(int).tolist())
    for place in range(1, len(metrics)):
        if metrics[place].get("phase") != metrics[place - 1].get("phase"):
            chosen |= {place - 1, place}
    return [metrics[place] for place in sorted(chosen)]


def _chart(
    metrics: Metrics, values: Sequence[float], label: str, *, log: bool, zero: bool, height: float
) -> Chart:
    """An empty chart over the steps of a run, with its phases."""
    first, last = metrics[0]["step"], metrics[-1]["step"]
    chart = Chart(
        x_range=(0.0 if 0 < first < 0.1 * last else first, last),
        y_range=padded(values, log=log, zero=zero),
        label=label,
        log=log,
        height=height,
    )
    for place, phase in enumerate(phases(metrics)):
        if phase.name:
            start = phase.start if place else chart.x.low
            chart.phase(start, phase.end, phase.name, shaded=phase.is_last)
    return chart


def phases_told(metrics: Metrics) -> str:
    """The names of all phases in order; in a chart, a short one has no room for its name."""
    told = [p.name + (" (shaded)" if p.is_last else "") for p in phases(metrics) if p.name]
    return ", ".join(dict.fromkeys(told))


def _three(value: float) -> str:
    return plain(value, 3)


def _share(value: float) -> str:
    return share(value / 100)


def _bytes(value: float) -> str:
    return plain(value, 4) if value < 1e5 else f"{plain(value / 1e3, 3)}k"


class Quantity(NamedTuple):
    """What a curve shows: a key of the metrics, its title and unit, and words for its values."""

    key: str
    title: str
    note: str
    shown: Callable[[float], str]
    factor: float = 1.0


LOSSES = (
    Quantity("loss", "Data loss", "without penalties", _three),
    Quantity(
        "kmeans_penalty", "k-means penalty", "half the squared distance to the centers", _three
    ),
    Quantity("val_error", "Validation error", "percent", percent),
)
TYING = (
    Quantity("changed", "Changed assignments", "percent of weights, at each refit", _share, 100.0),
    Quantity("density", "Density", "percent not zero", _share, 100.0),
    Quantity("predicted_bytes", "Predicted size", "bytes, while training", _bytes),
)
TIME = (
    Quantity(
        "step_seconds",
        "Time of a step",
        "milliseconds, means since the last measurement",
        _three,
        1000.0,
    ),
)


class Level(NamedTuple):
    """A dashed line across a curve, and what the note says of it."""

    value: float
    words: str


def training(metrics: Metrics, file_bytes: float | None, *, tied: bool = True) -> list[Figure]:
    """The curves of a run: losses, error, time; where it tied, size and how assignments settle."""
    if not metrics:
        return []
    levels = {}
    if density := _last(metrics, "target_density"):
        levels["density"] = Level(100 * density, f"the target, {share(density)}")
    if target := _last(metrics, "target_bytes"):
        levels["predicted_bytes"] = Level(target, f"the target, {count(target)} bytes")
    elif file_bytes and file_bytes > 0:
        levels["predicted_bytes"] = Level(file_bytes, f"the file, {count(file_bytes)} bytes")
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
    for line in _thinned(metrics, MAX_POINTS):
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
    spread = [*(positive if log else values), *([level.value] if level else [])]
    chart = _chart(metrics, spread, label, log=log, zero=True, height=236.0)
    if level:
        chart.level(level.value)
    chart.line(points)
    told = [(plain(step), "" if value is None else shown(value)) for step, value in points]
    chart.touch(points, [f"step {step}: {words}" for step, words in told])
    shows_last = not (log and last <= 0)
    if shows_last:
        chart.end(points, shown(last))
    notes = [f"{note}; dashed: {level.words}" if level else note]
    if log:
        notes.append("log scale")
    if not shows_last:
        notes.append("zero at the end")
    listed = Numbers(("Step", title), [row for row in told if row[1]])
    return Figure(title, ", ".join(notes), chart.render(), numbers=listed)


def _last(metrics: Metrics, key: str) -> float | None:
    """The last positive number under a key."""
    told = (number(line.get(key)) for line in reversed(metrics))
    return next((value for value in told if value is not None and value > 0), None)


def centers(metrics: Metrics) -> list[Figure]:
    """The path of every shared value, shaded by one standard deviation of its weights."""
    groups: dict[str, int] = {}
    for line in metrics:
        for group, values in mapping(line.get("centers")).items():
            groups[group] = max(groups.get(group, 0), len(numbers(values)))
    several = len(groups) > 1
    found = (
        _centers(metrics, group, size, several=several) for group, size in groups.items() if size
    )
    return [figure for figure in found if figure][:MAX_GROUPS]


def _centers(metrics: Metrics, group: str, size: int, *, several: bool) -> Figure | None:
    curves = sorted(set(np.linspace(0, size - 1, min(size, MAX_CURVES)).astype(int).tolist()))
    drawn = _thinned(metrics, min(MAX_POINTS, max(40, 6000 // len(curves))))
    rows = [numbers(mapping(line.get("centers")).get(group)) for line in drawn]
    wide = [numbers(mapping(line.get("spreads")).get(group)) for line in drawn]
    steps = [float(line["step"]) for line in drawn]
    paths: dict[int, list[tuple[float, float | None, float]]] = {}
    for curve in curves:
        paths[curve] = [
            (
                step,
                row[curve] if curve < len(row) else None,
                (spreads[curve] or 0.0) if curve < len(spreads) else 0.0,
            )
            for step, row, spreads in zip(steps, rows, wide, strict=True)
        ]
    seen = [(c, s) for path in paths.values() for _, c, s in path if c is not None]
    if not seen:
        return None
    with_bands = size <= MAX_CURVES and any(spread > 0 for _, spread in seen)
    reach = [c + sign * (s if with_bands else 0.0) for c, s in seen for sign in (-1, 1)]
    title = f"Centers of {group}" if several else "Cluster centers"
    lasts = [
        next((c for _, c, _ in reversed(path) if c is not None), None) for path in paths.values()
    ]
    ends = [value for value in lasts if value is not None]
    label = (
        f"{title}: the paths of {count(len(curves))} of {count(size)} centers; "
        f"at the end they lie between {plain(min(ends))} and {plain(max(ends))}."
    )
    chart = _chart(metrics, reach, label, log=False, zero=False, height=380.0)
    for path, last in zip(paths.values(), lasts, strict=True):
        if last is None:
            continue
        kind = sign_kind(last)
        if with_bands:
            chart.band(
                [(x, *((None, None) if c is None else (c - s, c + s))) for x, c, s in path],
                kind=kind,
            )
        chart.line([(x, c) for x, c, _ in path], kind=kind, title=f"ends at {plain(last)}")
    notes = ["shaded by one standard deviation of the weights in each"] if with_bands else []
    if len(curves) < size:
        notes.append(f"{len(curves)} of {count(size)} drawn")
    listed = Numbers(("Center", "Ends at"), [(str(n + 1), plain(v)) for n, v in enumerate(ends)])
    return Figure(title, ", ".join(notes), chart.render(), numbers=listed)
