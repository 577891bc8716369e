"""Figures: what each drawing of a report shows.

Takes     a run's metrics, line by line as they were written, and its `TiedState`.
Gives     `Figure` values: a title, a note and the drawing; None where there is nothing to show.
Paper     figure 2 (losses and errors), appendix (centers, assignments, first layer).
Unaware   of the page they stand on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from reefknot.report import structure
from reefknot.report.markup import tag, text
from reefknot.report.png import picture
from reefknot.report.svg import Bar, Chart, Point, bars, is_log, padded
from reefknot.report.wording import TIMES, count, mapping, number, numbers, percent, plain, share
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor

MAX_POINTS = 300  # along a curve: more cannot be told apart on a screen
MAX_CURVES = 64  # in one figure of centers
MAX_GROUPS = 6  # codebooks with a figure of their own
MAX_BARS = 33  # shared values drawn as a bar each; more become stems over their value
MAX_MASKS = 12

PHASES = {"soft": "soft tying", "hard": "hard tying", "train": "training"}

Metrics = Sequence[Mapping[str, Any]]


class Numbers(NamedTuple):
    """What a pointer over a drawing would be told, for those who have none."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Figure:
    """A drawing with its title and a note; `body` is markup, the words are plain text."""

    title: str
    note: str
    body: str
    shape: str = ""  # "wide" for both columns of the page
    numbers: Numbers | None = None


class Phase(NamedTuple):
    """A stretch of steps that belong together."""

    start: float
    end: float
    name: str


# -- over steps -----------------------------------------------------------------------------------


def in_order(metrics: Sequence[object]) -> list[dict[str, Any]]:
    """The lines that have a step, without those that a resumed run has trained again.

    A run that was killed goes on from its last checkpoint: its steps jump back, and what was
    written after that checkpoint is told a second time.
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
            found.append(Phase(found[-1].end if found else step, step, name))
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
    found = phases(metrics)
    if len(found) > 1 or (found and found[0].name in ("soft", "hard")):
        for phase in found:
            name = PHASES.get(phase.name, phase.name)
            chart.phase(phase.start, phase.end, name, shaded=phase.name == "hard")
    return chart


def _curve(
    metrics: Metrics,
    key: str,
    title: str,
    note: str,
    *,
    shown: Callable[[float], str],
    factor: float = 1.0,
    zero: bool = True,
    level: float | None = None,
) -> Figure | None:
    """One quantity over steps; log scale when it covers more than a decade or so."""
    lines = [line for line in metrics if number(line.get(key)) is not None]
    if not lines:
        return None
    drawn = _thinned(metrics, MAX_POINTS)
    points: list[Point] = []
    for line in drawn:
        value = number(line.get(key))
        points.append((line["step"], None if value is None else factor * value))
    values = [value for _, value in points if value is not None]
    if not values:
        return None
    # Exact zeros (the penalty once weights are tied) have no place on a log scale; the rest may.
    positive = [value for value in values if value > 0]
    log = is_log(positive) and min(values) >= 0
    first, last = values[0], values[-1]
    lowest = min(values)
    label = (
        f"{title} over {len(lines)} records: {shown(first)} at first, "
        f"{shown(last)} at the end, {shown(lowest)} at its lowest."
    )
    spread = [*(positive if log else values), *([level] if level else [])]
    chart = _chart(metrics, spread, label, log=log, zero=zero, height=236.0)
    if level:
        chart.level(level)
    chart.line(points)
    told = [(plain(step), "" if v is None else shown(v)) for step, v in points]
    chart.touch(points, [f"step {step}: {value}" for step, value in told])
    shows_last = not (log and last <= 0)
    if shows_last:
        chart.end(points, shown(last))
    notes = [note] if note else []
    if log:
        notes.append("log scale")
    if not shows_last:
        notes.append("zero at the end")
    listed = Numbers(("Step", title), [row for row in told if row[1]])
    return Figure(title, ", ".join(notes), chart.render(), numbers=listed)


def _share(value: float) -> str:
    return share(value / 100)


def training(metrics: Metrics, file_bytes: float | None, *, tied: bool = True) -> list[Figure]:
    """The curves of a run: losses and error; where it tied, size and how assignments settle."""
    if not metrics:
        return []
    found = [
        _curve(metrics, "loss", "Data loss", "without penalties", shown=lambda v: plain(v, 3)),
        _curve(
            metrics,
            "kmeans_penalty",
            "k-means penalty",
            "half the squared distance to the centers",
            shown=lambda v: plain(v, 3),
        ),
        _curve(metrics, "val_error", "Validation error", "percent", shown=percent),
    ]
    if tied:
        found += _tying(metrics, file_bytes)
    return [figure for figure in found if figure]


def _tying(metrics: Metrics, file_bytes: float | None) -> list[Figure | None]:
    """How the assignments settle, and what that does to the size."""
    if file_bytes is not None and file_bytes <= 0:
        file_bytes = None
    told = f"; dashed: the file, {count(file_bytes)} bytes" if file_bytes else ""
    return [
        _curve(
            metrics,
            "changed",
            "Changed assignments",
            "percent of weights, at each refit",
            shown=_share,
            factor=100.0,
        ),
        _curve(metrics, "density", "Density", "percent not zero", shown=_share, factor=100.0),
        _curve(
            metrics,
            "predicted_bytes",
            "Predicted size",
            f"bytes, estimated while training{told}",
            shown=lambda v: plain(v, 4) if v < 1e5 else f"{plain(v / 1e3, 3)}k",
            level=file_bytes,
        ),
    ]


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
        kind = _sign(last)
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


def _sign(value: float) -> str:
    return "zero" if value == 0 else "negative" if value < 0 else "positive"


# -- shared values --------------------------------------------------------------------------------


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
    if codebook.dtype.tag == "BF16":  # the upper half of a float32
        values = (values.astype("<u4") << 16).view("<f4")
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
            Bar(s.label, s.weights, count(s.weights), _sign(1.0 if s.value is None else s.value))
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
            chart.stem(value, weights, kind=_sign(value), title=f"{words[0]}: {words[1]} weights")
    hidden = len(shared) - len(points)
    more = f", {count(hidden)} rarer values not drawn" if hidden else ""
    listed = Numbers(("Value", "Weights"), told)
    return Figure(title, note + more, chart.render(), numbers=listed)


# -- tensors --------------------------------------------------------------------------------------


class Survey(NamedTuple):
    """What a walk over all tensors of a state finds; each mask is made once, then dropped."""

    tensors: list[structure.Occupancy]
    heat: Figure | None
    masks: list[Figure]
    hidden: int  # matrices beyond those that are drawn
    full: int  # matrices without a zero, which are not drawn


def survey(state: TiedState) -> Survey:
    """Occupancy of every tensor, pictures of the matrices, and the inputs of the first layer."""
    found: list[structure.Occupancy] = []
    masks: list[Figure] = []
    heat: Figure | None = None
    matrices = full = 0
    for tensor in state.tensors:
        mask = structure.nonzero_mask(state, tensor)
        tensor_found = structure.occupancy(state, tensor, mask)
        found.append(tensor_found)
        if not tensor_found.is_matrix:
            continue
        if tensor_found.density == 1:  # a picture of one color tells nothing
            full += 1
            continue
        matrices += 1
        if matrices + full == 1:
            heat = _heat(tensor, mask)
        if len(masks) < MAX_MASKS:
            masks.append(_mask(tensor_found, mask))
    return Survey(found, heat, masks, matrices - len(masks), full)


def _mask(found: structure.Occupancy, mask: np.ndarray) -> Figure:
    pixels = structure.mask_pixels(mask, found)
    size = f" {TIMES} ".join(map(str, found.shape))
    rows, columns = found.num_dead
    dead = (
        f"{count(rows)} of {count(found.dead_rows.size)} rows and "
        f"{count(columns)} of {count(found.dead_columns.size)} columns are dead"
    )
    label = f"Non-zeros of {found.name}, {size}: {share(found.density)} of its elements; {dead}."
    width = found.elements // found.shape[0]
    tall, wide = structure.block_size((found.shape[0], width))
    notes = [size]
    if len(found.shape) > 2:
        notes.append("a filter in each row")
    if tall * wide > 1:
        notes.append(f"a pixel is {tall} {TIMES} {wide} weights")
    if pixels.shape[0] > 1.5 * pixels.shape[1]:
        pixels = np.ascontiguousarray(pixels.T)  # a tower would leave a hole beside it
        notes.append("drawn on its side: rows run from left to right")
    # Small matrices are enlarged, by a whole factor so that every pixel stays a square.
    zoom = max(1, min(8, 500 // pixels.shape[1], 200 // pixels.shape[0]))
    flat = -(-30 // (pixels.shape[0] * zoom))  # a few rows are drawn taller, or they are a hairline
    if flat > 1:
        pixels = np.repeat(pixels, flat, axis=0)
    body = picture(pixels, structure.PALETTES, zoom=zoom, label=label)
    shape = "wide" if pixels.shape[1] * zoom > 500 else ""
    return Figure(found.name, f"{', '.join(notes)}; {dead}", body, shape=shape)


def _heat(tensor: TiedTensor | KeptTensor, mask: np.ndarray) -> Figure | None:
    counts = structure.input_counts(mask)
    if counts is None:
        return None
    side, most = counts.shape[0], int(counts.max())
    dead = int(np.count_nonzero(counts == 0))
    label = (
        f"Non-zero connections that leave each of {counts.size} inputs, drawn as {side} by {side}: "
        f"at most {most}; {dead} inputs have none."
    )
    note = (
        f"{tensor.name}: the {counts.size} inputs as {side} {TIMES} {side}, "
        f"{count(dead)} without any connection"
    )
    drawn = picture(
        structure.count_pixels(counts), structure.PALETTES, zoom=max(1, 308 // side), label=label
    )
    ramp = np.arange(1, structure.LEVELS + 1, dtype=np.uint8)[None, :]
    scale = picture(ramp, structure.PALETTES, zoom=8, label="shades from few connections to many")
    legend = tag("span", "1 ", scale, text(f" {count(most)}"), class_="ramp")
    none = tag("span", tag("i", class_="swatch"), text("none"), class_="ramp")
    body = drawn + tag("p", legend, none, class_="legend")
    return Figure("Connections per input", note, body)
