"""The page: one HTML document from a record, its metrics, its state and its configuration.

Takes     plain values read from a run's folder, of which any may be missing, a `TiedState`, and
          what `inspect` found in the file.
Gives     a document without scripts and without anything to fetch.
Unaware   of files, and of how each figure is drawn.
"""

from collections.abc import Mapping
from typing import Any

from reefknot import rates
from reefknot.inspection import Inspection
from reefknot.lab.report import curves, tables, values
from reefknot.lab.report.document import document, gallery, header, section
from reefknot.lab.report.markup import tag, text
from reefknot.lab.report.wording import count, duration, mapping, number, percent, rate, share
from reefknot.state import TiedState

OF_TYING = ("rate_paper", "rate_fixed", "num_clusters")  # they count shared values


def render(
    record: dict[str, Any],
    metrics: list[dict[str, Any]],
    state: TiedState | None,
    config: str,
    sizes: Inspection | None = None,
) -> str:
    """A whole report as HTML.

    Nothing in `record` and `metrics` is relied on: what is missing, null or of another type is
    left out. Every name is escaped.

    Args:
        record: the object of `record.json`.
        metrics: the objects of `metrics.jsonl`, in the order they were written.
        state: what the run ended with, or None; without it, no tensors are shown.
        config: the text of `config.toml`.
        sizes: what `inspect` says of the file, or None; without it, no bytes are shown.
    """
    facts = _completed(mapping(record), state)
    tied = bool(state.codebooks) if state is not None else number(facts.get("num_clusters")) != 0
    lines = curves.in_order(metrics)
    if not tied:  # whatever phase the method was in, it tied nothing
        lines = [{**line, "phase": None} for line in lines]
    phases = curves.phases_told(lines)
    main = [
        _header(facts),
        section("Result", _facts(facts, tied=tied), tables.errors(facts, tied=tied)),
        gallery(
            "Training",
            "Curves over training steps" + (f"; phases: {phases}." if phases else "."),
            curves.training(lines, number(facts.get("file_bytes")), tied=tied),
        ),
        gallery(
            "Shared values",
            "Negative values are blue, positive ones orange, zero is grey.",
            [*values.centers(lines), *values.histograms(state, lines)],
        ),
        _sizes(sizes),
        _tensors(state),
        section(
            "Skipped",
            tables.skipped(facts),
            lead="These parameters were not tied; they are stored exactly.",
        ),
        _made(facts, config),
    ]
    title = " · ".join([_title(facts), *([str(facts["method"])] if facts.get("method") else [])])
    return document(title, main, version=mapping(facts.get("versions")).get("reefknot"))


def _completed(record: Mapping[str, Any], state: TiedState | None) -> dict[str, Any]:
    """The record, with missing entries computed from the state."""
    facts = {key: value for key, value in record.items() if value is not None}
    if state is not None:
        facts.setdefault("density", state.density)
        facts.setdefault("original_bytes", state.original_bytes)
        if state.codebooks:
            facts.setdefault("num_clusters", state.num_clusters)
            for key in ("rate_fixed", "rate_paper"):
                facts[key] = facts.get(key) or getattr(rates, key)(state)
    before, after = number(facts.get("original_bytes")), number(facts.get("file_bytes"))
    if before and after:
        facts.setdefault("rate_file", before / after)
    return facts


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
    """Bytes before and after, the rate and the error, with two bars drawn to scale."""
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
    scale = ""
    if before and after and before > 0 and after > 0:
        widths = [100 * size / max(before, after) for size in (before, after)]
        bars = [tag("div", style=f"width:{width:.3f}%") for width in widths]
        told = "Size before and after, drawn to scale"
        scale = tag("div", *bars, class_="weights", role="img", aria_label=told)
    return tag("p", ", ".join(parts), class_="headline") + scale if parts else ""


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
        threads = number(facts.get("threads"))
        if key == "seconds" and threads is not None:
            note = f"on {count(threads)} thread{'' if threads == 1 else 's'}"
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
    lead = f"The same values take {', '.join(ways)}."
    kinds = {
        "places": "positions of the weights that are not the most frequent value",
        "values": "values of these weights",
        "other": "the rest",
    }
    keys = (
        tag("span", tag("i", class_=f"swatch {kind}"), text(words), class_="ramp")
        for kind, words in kinds.items()
    )
    legend = tag("p", *keys, class_="legend")
    return section("Where every byte went", tables.sizes(sizes), legend, lead=lead)


def _tensors(state: TiedState | None) -> str:
    if state is None or not state.tensors:
        return ""
    same = ", ".join(f"{alias} = {name}" for alias, name in state.aliases.items())
    shared = tag("p", text(f"Stored once and shared: {same}."), class_="lead") if same else ""
    return section("Tensors", tables.tensors(state), shared)


def _made(facts: Mapping[str, Any], config: str) -> str:
    """Settings, environment and configuration: what is needed to reproduce the run."""
    environment = {**mapping(facts.get("versions"))}
    if facts.get("threads") is not None:
        environment["threads"] = facts["threads"]
    settings = tables.settings("Settings", mapping(facts.get("settings")))
    found = settings + tables.settings("Environment", environment)
    parts = [tag("div", found, class_="pair")] if found else []
    if config.strip():
        code = tag("pre", tag("code", text(config.rstrip())))
        parts.append(tag("details", tag("summary", "Configuration"), code))
    return section("How it was made", *parts)
