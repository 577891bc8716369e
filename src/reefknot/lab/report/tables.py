"""Tables: errors by stage, bytes by part, tensors, settings; and the scrolling box around a table.

Takes     a record's facts, an `Inspection`, a `TiedState`.
Gives     markup; an empty string if there is nothing to show.
Paper     appendix: rows and columns without weights.
Unaware   of the page around them, and of drawings.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from reefknot.dtypes import is_zero
from reefknot.inspection import Inspection
from reefknot.lab.report.markup import tag, text
from reefknot.lab.report.wording import DASH, TIMES, count, mapping, number, percent, plain, share
from reefknot.state import KeptTensor, TiedState, TiedTensor

DENSE = "Dense network"
STAGES = (
    ("dense_val_error", DENSE, "validation"),
    ("dense_test_error", DENSE, "test"),
    ("val_error_soft", "Before tied values", "validation"),
    ("val_error_hardened", "Clusters frozen", "validation"),
    ("val_error", "Final", "validation"),
    ("test_error", "Final", "test"),
)
TYING = ("val_error_soft", "val_error_hardened")  # stages that a run without tying does not have


Meter = Sequence[tuple[float, str | None]]  # bars end to end: percent of the cell, and class


class Numbers(NamedTuple):
    """The numbers that a drawing shows on hover, as a table for keyboards and screen readers."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def table(
    heads: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[str | Meter]],
    *,
    label: str,
    foot: Sequence[str | Meter] = (),
    wide: bool = False,
) -> str:
    """A table in a box that scrolls by itself, by finger or by keyboard; nothing without rows.

    Args:
        heads: for each column its name and its class; a first one without a class names its row.
        rows: the cells of each, plain text or the bars of a `Meter`.
        label: what screen readers call the box.
        foot: the cells of a last row, which sums up.
        wide: it has more columns than a phone can show, and says so there.
    """
    kinds = [kind for _, kind in heads]
    body = [_row(kinds, cells) for cells in rows]
    if not body:
        return ""
    cells = [
        tag("th", text(name), class_=kind or None, scope="col") if name else tag("td", class_=kind)
        for name, kind in heads
    ]
    parts = [tag("thead", tag("tr", *cells)), tag("tbody", *body)]
    if foot:
        parts.append(tag("tfoot", _row(kinds, foot)))
    kind = "scroll wide" if wide else "scroll"
    box = tag("div", tag("table", *parts), class_=kind, role="region", aria_label=label, tabindex=0)
    return (tag("p", text("Scrolls sideways: more columns →"), class_="hint") if wide else "") + box


def _row(kinds: Sequence[str], cells: Sequence[str | Meter]) -> str:
    found = []
    for place, (kind, cell) in enumerate(zip(kinds, cells, strict=True)):
        if not isinstance(cell, str):
            bars = (tag("div", class_=bar, style=f"width:{width:.1f}%") for width, bar in cell)
            shown = tag("div", *bars, class_="bars") if cell else ""
            found.append(tag("td", shown, class_=kind, aria_hidden="true"))
        elif place == 0 and not kind:
            found.append(tag("th", text(cell), scope="row"))
        else:
            found.append(tag("td", text(cell), class_=kind or None))
    return tag("tr", *found)


def errors(facts: Mapping[str, Any], *, tied: bool) -> str:
    """The error at each stage of a run, with a bar to compare by."""
    known = [
        (stage, on, error)
        for key, stage, on in STAGES
        if (tied or key not in TYING) and (error := number(facts.get(key))) is not None
    ]
    worst = max((error for _, _, error in known), default=0.0)
    rows: list[Sequence[str | Meter]] = []
    for stage, measured_on, error in known:
        if stage == DENSE and facts.get("start_is_tied"):
            stage = "Tied network, before"
        width = 100 * error / worst if worst > 0 else 0.0
        bar = (width, "held" if measured_on == "validation" else None)
        rows.append([stage, measured_on, percent(error), [bar]])
    heads = (("Stage", ""), ("Measured on", "soft"), ("Error", "num"), ("", "meter"))
    return table(heads, rows, label="Errors at each stage")


def sizes(found: Inspection) -> str:
    """Where every byte of the file went: the rows add up to its size."""
    parts = [("Header and checksum", found.header_bytes, {"other": found.header_bytes})]
    if found.codebook_bytes:
        parts.append(("Shared values", found.codebook_bytes, {"other": found.codebook_bytes}))
    for tensor in found.tensors:
        positions = min(tensor.position_bytes, tensor.bytes)
        split = {"places": positions, "values": tensor.bytes - positions}
        parts.append((tensor.name, tensor.bytes, split))
    largest = max(size for _, size, _ in parts)
    rows: list[Sequence[str | Meter]] = []
    for name, size, split in parts:
        cells = [_bytes(size), share(size / found.file_bytes)]
        cells += [_bytes(split.get("places")), _bytes(split.get("values"))]
        bars = [(100 * part / largest, kind) for kind, part in split.items() if part > 0]
        rows.append([name, *cells, bars])
    foot: list[str | Meter] = ["The file", count(found.file_bytes), share(1.0), "", "", ()]
    names = ("Bytes", "Share", "Positions", "Values")
    heads = [("Part", ""), *((name, "num") for name in names), ("", "meter")]
    return table(heads, rows, foot=foot, label="Bytes of the file", wide=True)


def _bytes(size: float | None) -> str:
    """Bytes to a tenth, as all weights of a bias may take less than one."""
    return f"{size:,.1f}" if size else DASH


def tensors(state: TiedState) -> str:
    """One row a tensor: what it is, and what is left of it."""
    rows, elements, nonzeros = [], 0, 0
    for tensor in state.tensors:
        alive = ~is_zero(state.values(tensor), state.dtype(tensor))
        left = int(np.count_nonzero(alive))
        elements, nonzeros = elements + alive.size, nonzeros + left
        kind = state.dtype(tensor).tag + (
            ", kept exactly" if isinstance(tensor, KeptTensor) else ""
        )
        shape = f" {TIMES} ".join(map(str, tensor.shape)) or "scalar"
        counts = [count(alive.size), count(left), share(left / max(1, alive.size))]
        rows.append([tensor.name, kind, shape, *counts, *_dead(tensor, alive)])
    density = share(nonzeros / max(1, elements))
    foot = ["All", "", "", count(elements), count(nonzeros), density, "", ""]
    names = ("Shape", "Elements", "Non-zeros", "Density", "Dead rows", "Dead columns")
    heads = [("Tensor", ""), ("Type", "soft"), *((name, "num") for name in names)]
    return table(heads, rows, foot=foot, label="Tensors", wide=True)


def _dead(tensor: TiedTensor | KeptTensor, alive: np.ndarray) -> list[str]:
    """How many rows and columns have no weight left; vectors and buffers have neither.

    A row is an output (a unit or a filter), a column an input (a unit or a channel), as in torch.
    """
    is_buffer = isinstance(tensor, KeptTensor) and not tensor.trainable
    if alive.ndim < 2 or not alive.size or is_buffer:
        return [DASH, DASH]
    others = (tuple(range(1, alive.ndim)), (0, *range(2, alive.ndim)))
    dead = [~alive.any(axis) for axis in others]
    return [f"{count(int(one.sum()))} of {count(one.size)}" for one in dead]


def numbers(title: str, told: Numbers) -> str:
    """The numbers of a drawing, folded away."""
    found = table([(head, "num") for head in told.heads], told.rows, label=f"Numbers of {title}")
    return tag("details", tag("summary", "Numbers"), found, class_="numbers") if found else ""


def skipped(facts: Mapping[str, Any]) -> str:
    """Parameters that were not tied, and why."""
    rows = [(name, str(reason)) for name, reason in mapping(facts.get("skipped")).items()]
    return table((("Parameter", ""), ("Why", "")), rows, label="Skipped parameters")


def settings(title: str, values: Mapping[str, Any]) -> str:
    """Names and their values."""
    rows = [(name, _setting(value)) for name, value in values.items()]
    return table(((title, ""), ("Value", "value")), rows, label=title)


def _setting(value: object) -> str:
    known = number(value)
    if known is not None:
        return plain(known, 6)
    return DASH if value is None else str(value).lower() if isinstance(value, bool) else str(value)
