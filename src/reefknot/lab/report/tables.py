"""Tables: errors by stage, bytes by part, tensors, settings; and the scrolling box around a table.

Takes     a record's facts, an `Inspection`, what a survey found about each tensor.
Gives     markup; an empty string if there is nothing to show.
Unaware   of the page around them, and of drawings.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reefknot.inspection import Inspection
from reefknot.lab.report.figure import Numbers
from reefknot.lab.report.markup import tag, text
from reefknot.lab.report.structure import Occupancy
from reefknot.lab.report.wording import DASH, TIMES, count, mapping, number, percent, plain, share

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


def table(
    heads: Iterable[tuple[str, str]],
    rows: Iterable[str],
    *,
    label: str,
    foot: str = "",
    wide: bool = False,
) -> str:
    """A table in a box that scrolls by itself, by finger or by keyboard.

    Args:
        heads: for each column its name and its class.
        rows: for each row the markup of its cells.
        label: what screen readers call the box.
        foot: the cells of a last row, which sums up.
        wide: it has more columns than a phone can show, and says so there.
    """
    cells = [
        tag("th", text(name), class_=kind or None, scope="col") if name else tag("td", class_=kind)
        for name, kind in heads
    ]
    parts = [tag("thead", tag("tr", *cells)), tag("tbody", *(tag("tr", row) for row in rows))]
    if foot:
        parts.append(tag("tfoot", tag("tr", foot)))
    kind = "scroll wide" if wide else "scroll"
    box = tag("div", tag("table", *parts), class_=kind, role="region", aria_label=label, tabindex=0)
    return (tag("p", text("Scrolls sideways: more columns →"), class_="hint") if wide else "") + box


def errors(facts: Mapping[str, Any], *, tied: bool) -> str:
    """The error at each stage of a run, with a bar to compare by."""
    known = [
        (stage, on, number(facts.get(key))) for key, stage, on in STAGES if tied or key not in TYING
    ]
    known = [row for row in known if row[2] is not None]
    if not known:
        return ""
    worst = max(error or 0.0 for _, _, error in known)
    begins_tied = mapping(facts.get("settings")).get("begin") == "commit"
    rows = []
    for stage, measured_on, error in known:
        if stage == DENSE and begins_tied:
            stage = "Tied network, before"
        width = 100 * (error or 0.0) / worst if worst > 0 else 0.0
        kind = "held" if measured_on == "validation" else None
        rows.append(
            tag("th", text(stage), scope="row")
            + tag("td", text(measured_on), class_="soft")
            + tag("td", text(percent(error)), class_="num")
            + _meter((width, kind))
        )
    heads = (("Stage", ""), ("Measured on", ""), ("Error", "num"), ("", "meter"))
    return table(heads, rows, label="Errors at each stage")


def _meter(*shares: tuple[float, str | None]) -> str:
    """A cell with bars end to end, each as long as its percentage of the cell."""
    bars = (tag("div", class_=kind, style=f"width:{width:.1f}%") for width, kind in shares)
    return tag("td", tag("div", *bars, class_="bars"), class_="meter", aria_hidden="true")


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
    rows = []
    for name, size, split in parts:
        cells = [_bytes(size), share(size / found.file_bytes)]
        cells += [_bytes(split.get("places")), _bytes(split.get("values"))]
        bars = [(100 * part / largest, kind) for kind, part in split.items() if part > 0]
        rows.append(_row(name, cells) + _meter(*bars))
    foot = _row("The file", [count(found.file_bytes), share(1.0), "", ""])
    foot += tag("td", class_="meter")
    names = ("Bytes", "Share", "Positions", "Values")
    heads = [("Part", ""), *((name, "num") for name in names), ("", "meter")]
    return table(heads, rows, foot=foot, label="Bytes of the file", wide=True)


def _row(name: str, cells: Iterable[str], *, kind: str | None = None) -> str:
    """The cells of a row: its name, what kind it is if there are kinds, then numbers."""
    kinds = "" if kind is None else tag("td", text(kind), class_="soft")
    numbers = (tag("td", text(cell), class_="num") for cell in cells)
    return tag("th", text(name), scope="row") + kinds + "".join(numbers)


def _bytes(size: float | None) -> str:
    """Bytes to a tenth, as all weights of a bias may take less than one."""
    return f"{size:,.1f}" if size else DASH


def tensors(found: Sequence[Occupancy]) -> str:
    """One row a tensor: what it is, and what is left of it."""
    rows = []
    for one in found:
        dead = [DASH, DASH]
        if one.is_matrix:
            of = (one.dead_rows.size, one.dead_columns.size)
            dead = [f"{count(d)} of {count(n)}" for d, n in zip(one.num_dead, of, strict=True)]
        kind = one.kind if one.is_tied else f"{one.kind}, kept exactly"
        shape = f" {TIMES} ".join(map(str, one.shape)) or "scalar"
        cells = [shape, count(one.elements), count(one.nonzeros), share(one.density), *dead]
        rows.append(_row(one.name, cells, kind=kind))
    elements = sum(one.elements for one in found)
    nonzeros = sum(one.nonzeros for one in found)
    total = ["", count(elements), count(nonzeros), share(nonzeros / elements if elements else 0.0)]
    foot = _row("All", [*total, "", ""], kind="")
    names = ("Shape", "Elements", "Non-zeros", "Density", "Dead rows", "Dead columns")
    heads = [("Tensor", ""), ("Type", ""), *((name, "num") for name in names)]
    return table(heads, rows, foot=foot, label="Tensors", wide=True)


def numbers(title: str, told: Numbers) -> str:
    """The numbers of a drawing, folded away."""
    heads = [(head, "num") for head in told.heads]
    rows = ["".join(tag("td", text(cell), class_="num") for cell in row) for row in told.rows]
    found = table(heads, rows, label=f"Numbers of {title}")
    return tag("details", tag("summary", "Numbers"), found, class_="numbers")


def skipped(facts: Mapping[str, Any]) -> str:
    """Parameters that were not tied, and why."""
    rows = [
        tag("th", text(name), scope="row") + tag("td", text(reason))
        for name, reason in mapping(facts.get("skipped")).items()
    ]
    heads = (("Parameter", ""), ("Why", ""))
    return table(heads, rows, label="Skipped parameters") if rows else ""


def settings(title: str, values: Mapping[str, Any]) -> str:
    """Names and their values."""
    rows = [
        tag("th", text(name), scope="row") + tag("td", text(_setting(value)), class_="value")
        for name, value in values.items()
    ]
    return table(((title, ""), ("Value", "value")), rows, label=title) if rows else ""


def _setting(value: object) -> str:
    known = number(value)
    if known is not None:
        return plain(known, 6)
    return DASH if value is None else str(value).lower() if isinstance(value, bool) else str(value)
