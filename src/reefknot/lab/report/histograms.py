"""Histograms: how many weights have each shared value.

Takes     a `TiedState`, or the metrics of a run that has none yet.
Gives     one figure a codebook: bars, or stems where values are many.
Unaware   of tensors' shapes, and of the page.
"""

from typing import NamedTuple

import numpy as np

from reefknot.dtypes import to_numbers
from reefknot.lab.report.document import MAX_GROUPS, MAX_POINTS, Figure, Metrics, sign_kind
from reefknot.lab.report.svg import Bar, Chart, bars
from reefknot.lab.report.tables import Numbers
from reefknot.lab.report.wording import count, mapping, number, numbers, plain
from reefknot.state import Codebook, TiedState, TiedTensor

MAX_BARS = 33  # shared values drawn as a bar each; more become stems over their value


class Shared(NamedTuple):
    """A shared value and how many weights have it; `value` is None for types we cannot read."""

    label: str
    value: float | None
    weights: int


def shared_values(state: TiedState, place: int) -> list[Shared]:
    """The values of one codebook in ascending order, with the number of weights of each."""
    codebook = state.codebooks[place]
    counts = np.zeros(len(codebook), np.int64)
    for tensor in state.tensors:
        if isinstance(tensor, TiedTensor) and tensor.codebook == place:
            counts += np.bincount(tensor.indices.ravel(), minlength=len(codebook))
    found = [
        Shared(label, value, int(weights))
        for (label, value), weights in zip(_readable(codebook), counts, strict=True)
    ]
    return sorted(found, key=lambda item: (item.value is None, item.value or 0.0, item.label))


def _readable(codebook: Codebook) -> list[tuple[str, float | None]]:
    """Each value as text and as a number; bits in hexadecimal for types that numpy lacks."""
    values = codebook.values
    if codebook.dtype.tag == "BF16":
        values = to_numbers(values, codebook.dtype)
    elif codebook.dtype.is_raw or values.dtype.kind not in "fiu":
        bits = values.view(f"u{codebook.dtype.item_bytes}").tolist()
        return [(f"{bit:#0{2 + 2 * codebook.dtype.item_bytes}x}", None) for bit in bits]
    found = [(number(value), value) for value in values.tolist()]
    return [(str(value) if known is None else plain(known), known) for known, value in found]


def histograms(state: TiedState | None, metrics: Metrics) -> list[Figure]:
    """How many weights have each shared value, by codebook; by the metrics without a state."""
    groups: list[tuple[str, list[Shared]]] = []
    if state is not None:
        for place in range(min(len(state.codebooks), MAX_GROUPS)):
            names = [
                t.name for t in state.tensors if isinstance(t, TiedTensor) and t.codebook == place
            ]
            name = names[0] if len(names) == 1 else f"codebook {place}"
            groups.append((name, shared_values(state, place)))
    else:
        last = next((m for m in reversed(metrics) if mapping(m.get("counts"))), {})
        for name, counts in list(mapping(last.get("counts")).items())[:MAX_GROUPS]:
            values = numbers(mapping(last.get("centers")).get(name))
            groups.append((name, _told(values, numbers(counts))))
    several = len(groups) > 1
    found = (_histogram(name, shared, several=several) for name, shared in groups)
    return [figure for figure in found if figure]


def _told(values: list[float | None], counts: list[float | None]) -> list[Shared]:
    pairs = [
        (v, c) for v, c in zip(values, counts, strict=False) if v is not None and c is not None
    ]
    return [Shared(plain(value), value, int(weights)) for value, weights in sorted(pairs)]


def _histogram(name: str, shared: list[Shared], *, several: bool) -> Figure | None:
    if not shared:
        return None
    title = f"Weights per value of {name}" if several else "Weights per shared value"
    most = max(shared, key=lambda item: item.weights)
    label = (
        f"{title}: {count(len(shared))} values; {count(most.weights)} weights are {most.label}, "
        f"the smallest group has {count(min(item.weights for item in shared))}."
    )
    note = "number of weights, log scale"
    points = [(item.value, item.weights) for item in shared if item.value is not None]
    if len(shared) <= MAX_BARS or len(points) < 2:
        rows = [
            Bar(
                s.label, s.weights, count(s.weights), sign_kind(1.0 if s.value is None else s.value)
            )
            for s in shared[: 2 * MAX_BARS]
        ]
        hidden = len(shared) - len(rows)
        more = f", {count(hidden)} values not drawn" if hidden else ""
        return Figure(title, note + more, bars(rows, label=label, log=True))
    # More than a few hundred stems are narrower than a pixel: keep those with the most weights.
    points = sorted(sorted(points, key=lambda p: -p[1])[: 2 * MAX_POINTS])
    chart = Chart(
        x_range=(points[0][0], points[-1][0]),
        y_range=(0.5, 1.3 * max(most.weights, 1)),
        label=label,
        log=True,
        height=380.0,
        x_label="value",
    )
    told = [(plain(value), count(weights)) for value, weights in points]
    for (value, weights), words in zip(points, told, strict=True):
        if weights:
            chart.stem(
                value, weights, kind=sign_kind(value), title=f"{words[0]}: {words[1]} weights"
            )
    hidden = len(shared) - len(points)
    more = f", {count(hidden)} rarer values not drawn" if hidden else ""
    listed = Numbers(("Value", "Weights"), told)
    return Figure(title, note + more, chart.render(), numbers=listed)
