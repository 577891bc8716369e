"""The page: one HTML document from a record, its metrics, its state and its configuration.

Takes     plain values read from a run's folder, of which any may be missing, a `TiedState`, and
          what `inspect` found in the file.
Gives     a document without scripts and without anything to fetch.
Unaware   of files, and of how each figure is drawn.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reefknot.dtypes import is_zero
from reefknot.inspection import Inspection
from reefknot.lab.report import curves, values
from reefknot.lab.report.document import document, gallery, header, section, table, tag, text
from reefknot.lab.report.wording import (
    DASH,
    TIMES,
    count,
    duration,
    mapping,
    number,
    percent,
    rate,
    share,
)  # fmt: skip
from reefknot.state import KeptTensor, TiedState, TiedTensor

OF_TYING = ("rate_paper", "rate_fixed", "num_clusters")  # they count shared values
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


def render(
    record: dict[str, Any],
    metrics: list[dict[str, Any]],
    state: TiedState,
    config: str,
    sizes: Inspection | None = None,
) -> str:
    """A whole report as HTML.

    Nothing in `record` and `metrics` is relied on: what is missing, null or of another type is
    left out. Every name is escaped.

    Args:
        record: the object of `record.json`.
        metrics: the objects of `metrics.jsonl`, in the order they were written.
        state: what the run ended with.
        config: the text of `config.toml`.
        sizes: what `inspect` says of the file, or None; without it, no bytes are shown.
    """
    facts = {key: value for key, value in record.items() if value is not None}
    tied = bool(state.codebooks)
    lines = curves.in_order(metrics)
    if not tied:  # whatever phase the method was in, it tied nothing
        lines = [{**line, "phase": None} for line in lines]
    phases = curves.phases_told(lines)
    main = [
        _header(facts),
        section("Result", _facts(facts, tied=tied), _errors(facts, tied=tied)),
        gallery(
            "Training",
            "Curves over training steps" + (f"; phases: {phases}." if phases else "."),
            curves.training(lines, number(facts.get("file_bytes")), tied=tied),
        ),
        gallery(
            "Shared values",
            "Negative values are blue, positive ones orange, zero is grey.",
            [*values.centers(lines), *values.histograms(state)],
        ),
        _sizes(sizes),
        _tensors(state),
        section(
            "Skipped",
            _skipped(facts),
            lead="These parameters were not tied; they are stored exactly.",
        ),
        _made(facts, config),
    ]
    title = " · ".join([_title(facts), *([str(facts["method"])] if facts.get("method") else [])])
    return document(title, main, version=mapping(facts.get("versions")).get("reefknot"))


# -- the parts, from top to bottom ----------------------------------------------------------------


def _title(facts: Mapping[str, Any]) -> str:
    network, data = facts.get("network"), facts.get("data_name") or facts.get("data")
    return f"{network or 'A network'}" + (f" on {data}" if data else "")


def _header(facts: Mapping[str, Any]) -> str:
    method = [str(facts["method"])] if facts.get("method") else []
    if number(facts.get("num_clusters")):
        method.append(f"{count(facts['num_clusters'])} shared values")
    if number(facts.get("seed")) is not None:
        method.append(f"seed {facts['seed']}")
    return header("run report", _title(facts), _headline(facts), words=" · ".join(method))


def _headline(facts: Mapping[str, Any]) -> str:
    """Bytes before and after, the rate and the error."""
    before, after = number(facts.get("original_bytes")), number(facts.get("file_bytes"))
    parts = []
    if before is not None and after is not None:
        smaller = tag("span", tag("b", text(f"{count(after)} bytes")))
        parts.append(f"{tag('span', text(f'{count(before)} bytes →'))} {smaller}")
    elif after is not None or before is not None:
        parts.append(tag("span", text(f"{count(after if before is None else before)} bytes")))
    if number(facts.get("rate_file")) is not None:
        parts.append(tag("span", text(rate(facts["rate_file"])), class_="rate"))
    for key, words in (("test_error", "test error"), ("val_error", "validation error")):
        if number(facts.get(key)) is not None:
            parts.append(tag("span", text(f"{words} {percent(facts[key])}")))
            break
    return tag("p", ", ".join(parts), class_="headline") if parts else ""


def _facts(facts: Mapping[str, Any], *, tied: bool) -> str:
    """The figures of a run, each with what it counts."""
    shown = (
        ("rate_file", "Rate of the file", rate, "bytes before over bytes of the whole file"),
        ("rate_paper", "Rate as in the paper", rate, "CSR and Huffman accounting; not on disk"),
        ("rate_fixed", "Rate at fixed width", rate, "log2 K bits for every weight, zeros too"),
        ("density", "Density", share, "of trainable parameters are not zero"),
        ("num_clusters", "Shared values", count, "zero is one of them, if there are zeros"),
        ("seconds", "Time", duration, "from start to finish"),
    )
    found = []
    for key, name, worded, note in shown:
        if number(facts.get(key)) is None or (key in OF_TYING and not tied):
            continue
        value = tag("dd", text(worded(facts[key])), class_="big")
        note = tag("dd", text(note), class_="note")
        found.append(tag("div", tag("dt", text(name)), value, note))
    return tag("dl", *found, class_="facts") if found else ""


def _sizes(sizes: Inspection | None) -> str:
    """Where every byte went, and the sizes of other formats."""
    if sizes is None:
        return ""
    others = (("gzip", sizes.gzip_bytes), ("xz", sizes.xz_bytes))
    ways = [f"{count(sizes.original_bytes)} bytes as they are"]
    ways += [f"{count(size)} after {name}" for name, size in others if size is not None]
    lead = (
        f"The same values take {', '.join(ways)}. Positions are those of the weights that are not "
        "the most frequent value."
    )
    return section("Where every byte went", _bytes_table(sizes), lead=lead)


def _tensors(state: TiedState) -> str:
    same = ", ".join(f"{alias} = {name}" for alias, name in state.aliases.items())
    shared = tag("p", text(f"Stored once and shared: {same}."), class_="lead") if same else ""
    return section("Tensors", _tensor_table(state), shared)


def _made(facts: Mapping[str, Any], config: str) -> str:
    """Environment and configuration: what is needed to reproduce the run."""
    environment = {**mapping(facts.get("versions"))}
    if facts.get("threads") is not None:
        environment["threads"] = facts["threads"]
    parts = [_settings("Environment", environment)]
    if config.strip():
        code = tag("pre", tag("code", text(config.rstrip())))
        parts.append(tag("details", tag("summary", "Configuration"), code))
    return section("How it was made", *parts)


# -- tables ---------------------------------------------------------------------------------


def _errors(facts: Mapping[str, Any], *, tied: bool) -> str:
    """The error at each stage of a run."""
    rows = []
    for key, stage, measured_on in STAGES:
        if (tied or key not in TYING) and number(facts.get(key)) is not None:
            if stage == DENSE and facts.get("start_is_tied"):
                stage = "Tied network, before"
            rows.append([stage, measured_on, percent(facts[key])])
    heads = (("Stage", ""), ("Measured on", "soft"), ("Error", "num"))
    return table(heads, rows, label="Errors at each stage")


def _bytes_table(found: Inspection) -> str:
    """Where every byte of the file went: the rows add up to its size."""
    parts: list[tuple[str, float, float | None]]  # name, bytes, those of them for positions
    parts = [("Header and checksum", found.header_bytes, None)]
    if found.codebook_bytes:
        parts.append(("Shared values", found.codebook_bytes, None))
    parts += [(one.name, one.bytes, min(one.position_bytes, one.bytes)) for one in found.tensors]
    rows = []
    for name, size, positions in parts:
        values = None if positions is None else size - positions
        shares = (share(size / found.file_bytes), _bytes(positions), _bytes(values))
        rows.append([name, _bytes(size), *shares])
    foot = ["The file", count(found.file_bytes), share(1.0), "", ""]
    names = ("Bytes", "Share", "Positions", "Values")
    heads = [("Part", ""), *((name, "num") for name in names)]
    return table(heads, rows, foot=foot, label="Bytes of the file", wide=True)


def _bytes(size: float | None) -> str:
    """Bytes to a tenth, as all weights of a bias may take less than one."""
    return f"{size:,.1f}" if size else DASH


def _tensor_table(state: TiedState) -> str:
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


def _skipped(facts: Mapping[str, Any]) -> str:
    """Parameters that were not tied, and why."""
    rows = [(name, str(reason)) for name, reason in mapping(facts.get("skipped")).items()]
    return table((("Parameter", ""), ("Why", "")), rows, label="Skipped parameters")


def _settings(title: str, values: Mapping[str, Any]) -> str:
    rows = [(name, str(value)) for name, value in values.items()]
    return table(((title, ""), ("Value", "value")), rows, label=title)
