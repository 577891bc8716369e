"""Shared values: the path of each center, and how many weights have each value in the end.

Takes     the metrics of a run, and its `TiedState`.
Gives     two figures a codebook.
Paper     appendix: centers.
Unaware   of tensors' shapes, and of the page.
"""

from collections.abc import Iterator

import numpy as np

from reefknot.dtypes import to_numbers
from reefknot.lab.report.curves import over_steps, spread_out, thinned
from reefknot.lab.report.document import MAX_GROUPS, MAX_POINTS, Figure, Metrics, Numbers
from reefknot.lab.report.svg import Chart
from reefknot.lab.report.wording import count, mapping, numbers, plain
from reefknot.state import TiedState, TiedTensor

MAX_CURVES = 64  # in one figure of centers

Counts = list[tuple[float, int]]  # each value, and its number of weights


def _sign(value: float) -> str:
    """The class that colors a value: negative, zero or positive."""
    return "zero" if value == 0 else "negative" if value < 0 else "positive"


def centers(metrics: Metrics) -> list[Figure]:
    """The path of every shared value."""
    groups: dict[str, int] = {}
    for line in metrics:
        for group, values in mapping(line.get("centers")).items():
            groups[group] = max(groups.get(group, 0), len(numbers(values)))
    several = len(groups) > 1
    found = (_paths(metrics, group, size, several=several) for group, size in groups.items())
    return [figure for figure in found if figure][:MAX_GROUPS]


def _paths(metrics: Metrics, group: str, size: int, *, several: bool) -> Figure | None:
    chosen = spread_out(size, MAX_CURVES)
    drawn = thinned(metrics, min(MAX_POINTS, max(40, 6000 // max(1, len(chosen)))))
    rows = [(line["step"], numbers(mapping(line.get("centers")).get(group))) for line in drawn]
    paths = [[(step, row[k] if k < len(row) else None) for step, row in rows] for k in chosen]
    seen = [[value for _, value in path if value is not None] for path in paths]
    ends = [values[-1] for values in seen if values]
    if not ends:
        return None
    title = f"Centers of {group}" if several else "Cluster centers"
    label = (
        f"{title}: the paths of {count(len(chosen))} of {count(size)} centers; "
        f"at the end they lie between {plain(min(ends))} and {plain(max(ends))}."
    )
    chart = over_steps(metrics, [value for values in seen for value in values], label, height=380.0)
    for path, values in zip(paths, seen, strict=True):
        if values:
            chart.line(path, kind=_sign(values[-1]), title=f"ends at {plain(values[-1])}")
    note = f"{len(chosen)} of {count(size)} drawn" if len(chosen) < size else ""
    listed = Numbers(("Center", "Ends at"), [(str(n + 1), plain(v)) for n, v in enumerate(ends)])
    return Figure(title, note, chart.render(), listed)


def histograms(state: TiedState) -> list[Figure]:
    """How many weights have each shared value, by codebook."""
    groups = list(_counts(state))[:MAX_GROUPS]
    return [_histogram(name, counts, several=len(groups) > 1) for name, counts in groups if counts]


def _counts(state: TiedState) -> Iterator[tuple[str, Counts]]:
    """For each codebook a name, and its values that are numbers, ascending."""
    for place, codebook in enumerate(state.codebooks):
        if codebook.dtype.is_raw and codebook.dtype.tag != "BF16":
            continue  # numpy cannot read them as numbers
        tied = [t for t in state.tensors if isinstance(t, TiedTensor) and t.codebook == place]
        weights = np.zeros(len(codebook), np.int64)
        for tensor in tied:
            weights += np.bincount(tensor.indices.ravel(), minlength=len(codebook))
        known = numbers(to_numbers(codebook.values, codebook.dtype).tolist())
        pairs = zip(known, weights.tolist(), strict=True)
        name = tied[0].name if len(tied) == 1 else f"codebook {place}"
        yield name, sorted((value, found) for value, found in pairs if value is not None)


def _histogram(name: str, counts: Counts, *, several: bool) -> Figure:
    """Stems over the values; of more than a few hundred, those with the most weights."""
    title = f"Weights per value of {name}" if several else "Weights per shared value"
    by_weights = sorted(counts, key=lambda pair: -pair[1])
    (most, weights), least = by_weights[0], by_weights[-1][1]
    label = (
        f"{title}: {count(len(counts))} values; {count(weights)} weights are {plain(most)}, "
        f"the smallest group has {count(least)}."
    )
    drawn = sorted(by_weights[: 2 * MAX_POINTS])
    room = 0.02 * (drawn[-1][0] - drawn[0][0])  # no stem hides the axis
    reach = (drawn[0][0] - room, drawn[-1][0] + room)
    chart = Chart(reach, (0.5, 1.3 * max(weights, 1)), label, log=True, x_label="value")
    told = [(plain(value), count(found)) for value, found in drawn]
    for (value, found), words in zip(drawn, told, strict=True):
        if found > 0:
            chart.stem(value, found, kind=_sign(value), title=f"{words[0]}: {words[1]} weights")
    hidden = len(counts) - len(drawn)
    more = f", {count(hidden)} rarer values not drawn" if hidden else ""
    listed = Numbers(("Value", "Weights"), told)
    return Figure(title, f"number of weights, log scale{more}", chart.render(), listed)
