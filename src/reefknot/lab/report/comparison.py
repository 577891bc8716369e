"""Runs side by side: error against bytes, their curves, and a table.

Takes     what is known of each run, of which much may be missing.
Gives     a document, and the Pareto front of some points.
Unaware   of files, of how runs are made, and of searches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reefknot.lab.report.document import (
    MAX_POINTS,
    Figure,
    document,
    gallery,
    header,
    section,
    table,
    tag,
    text,
)  # fmt: skip
from reefknot.lab.report.svg import Chart, is_log, padded
from reefknot.lab.report.wording import count, number, percent, plain

MAX_CURVES = 64  # more cannot be told apart


@dataclass(frozen=True)
class Compared:
    """One run: its name, its result, and the entries in which it differs from the others."""

    name: str
    state: str = "finished"
    file_bytes: float | None = None
    val_error: float | None = None
    test_error: float | None = None
    curve: Sequence[tuple[float, float]] = ()  # share of the steps, validation error in percent
    values: Mapping[str, Any] = field(default_factory=dict)


def front_of(points: Sequence[tuple[float, float]]) -> list[int]:
    """The Pareto front: points that no other point beats in one value and equals in the other.

    Of equal points it has the first.

    >>> front_of([(800, 2.0), (400, 3.0), (600, 3.0), (400, 3.0), (900, 2.5)])
    [1, 0]
    """
    found: list[int] = []
    for place in sorted(range(len(points)), key=lambda place: (points[place], place)):
        if not found or points[place][1] < points[found[-1]][1]:
            found.append(place)
    return found


def render_comparison(title: str, lead: str, runs: Sequence[Compared]) -> str:
    """A page about several runs; those on the front come first, the smallest on top."""
    measured = [(one, point) for one in runs if (point := _point(one))]
    front = [measured[place][0] for place in front_of([point for _, point in measured])]
    others = [one for one in runs if all(one is not other for other in front)]
    note = "On the front, in colour, is what no other run beats in both bytes and validation error."
    drawn = [*_error_and_bytes(front, others), *_curves(front, others)]
    head = header("comparison of runs", title, words=lead)
    listed = _table(front, others) or tag("p", text("There are none."), class_="lead")
    return document(title, [head, gallery("Error and bytes", note, drawn), section("Runs", listed)])


def _point(one: Compared) -> tuple[float, float] | None:
    """Bytes and error, if both are known."""
    size, error = number(one.file_bytes), number(one.val_error)
    return (size, error) if size is not None and size > 0 and error is not None else None


def _dot(chart: Chart, one: Compared, kind: str) -> None:
    if (point := _point(one)) is not None:
        told = f"{one.name}: {count(one.file_bytes)} bytes, {percent(one.val_error)}"
        chart.dot(*point, kind=kind, title=told)


def _error_and_bytes(front: Sequence[Compared], others: Sequence[Compared]) -> list[Figure]:
    if not front:
        return []
    line = [point for one in front if (point := _point(one))]
    sizes, errors = zip(*line, *filter(None, map(_point, others)), strict=True)
    log = is_log(errors)
    label = f"Validation error against bytes of {len(sizes)} runs, {len(front)} on the front."
    ranges = (padded(sizes, log=True), padded(errors, log=log))
    chart = Chart(*ranges, label, log=log, x_label="bytes", log_x=True)
    for one in others:
        _dot(chart, one, "dot zero")
    chart.line(line)
    for one in front:
        _dot(chart, one, "dot a")
    return [Figure("Validation error against bytes", "percent; sizes by ratio", chart.render())]


def _curves(front: Sequence[Compared], others: Sequence[Compared]) -> list[Figure]:
    shown = [one for one in [*front, *others] if len(one.curve) > 1][:MAX_CURVES]
    errors = [error for one in shown for _, error in one.curve]
    if not errors:
        return []
    log = is_log(errors)
    label = f"Validation error over training of {len(shown)} runs."
    chart = Chart((0.0, 1.0), padded(errors, log=log), label, log=log, x_label="share")
    for one in reversed(shown):  # those on the front above the others
        kind = "a" if any(one is other for other in front) else "zero"
        step = -(-len(one.curve) // MAX_POINTS)
        points = [*one.curve[:-1:step], one.curve[-1]]
        chart.line(points, kind=kind, title=f"{one.name}, {one.state}")
    note = "over the share of the steps that are done"
    return [Figure("Validation error", f"percent, {note}", chart.render())]


def _table(front: Sequence[Compared], others: Sequence[Compared]) -> str:
    numbers = ("Bytes", "Validation error", "Test error")
    heads = [("Run", ""), ("State", "soft"), *((name, "num") for name in numbers), ("Values", "")]
    rows = []
    for one in [*front, *others]:
        state = "on the front" if any(one is other for other in front) else one.state
        values = ", ".join(f"{key} = {_value(value)}" for key, value in one.values.items())
        errors = (percent(one.val_error), percent(one.test_error))
        rows.append([one.name, state, count(one.file_bytes), *errors, values])
    return table(heads, rows, label="Runs", wide=True)


def _value(value: object) -> str:
    known = number(value)
    return str(value) if known is None else plain(known)
