"""The page: one HTML document from a record, its metrics, its state and its configuration.

Takes     plain values read from a run's folder, of which any may be missing, and a `TiedState`.
Gives     a document without scripts and without anything to fetch.
Unaware   of files, and of how each figure is drawn.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reefknot import rates
from reefknot.report import figures
from reefknot.report.figures import Figure, Survey
from reefknot.report.markup import tag, text
from reefknot.report.style import SHEET
from reefknot.report.wording import (
    DASH,
    TIMES,
    count,
    duration,
    mapping,
    number,
    percent,
    plain,
    rate,
    share,
)
from reefknot.state import TiedState

STAGES = (
    ("dense_test_error", "Dense network", "test"),
    ("val_error_soft", "After soft tying", "validation"),
    ("val_error_hardened", "After hardening", "validation"),
    ("val_error", "Final", "validation"),
    ("test_error", "Final", "test"),
)


def render(
    record: dict[str, Any], metrics: list[dict[str, Any]], state: TiedState | None, config: str
) -> str:
    """A whole report as HTML.

    Nothing in `record` and `metrics` is relied on: what is missing, null or of another type is
    left out. Every name is escaped.

    Args:
        record: the object of `record.json`.
        metrics: the objects of `metrics.jsonl`, in the order they were written.
        state: what the run ended with, or None; without it, no tensors are shown.
        config: the text of `config.toml`.
    """
    facts = _completed(mapping(record), state)
    lines = figures.in_order(metrics)
    hard = any(line.get("phase") == "hard" for line in lines)
    survey = figures.survey(state) if state is not None else None
    main = [
        _header(facts),
        _result(facts),
        _gallery(
            "Training",
            "Curves over training steps" + ("; the shaded stretch is hard tying." if hard else "."),
            figures.training(lines, number(facts.get("file_bytes"))),
        ),
        _gallery(
            "Shared values",
            "Negative values are blue, positive ones orange, zero is grey.",
            [*figures.centers(lines), *figures.histograms(state, lines)],
        ),
        _tensors(survey, facts, state),
        _skipped(facts),
        _made(facts, config),
    ]
    title = " · ".join(str(facts[key]) for key in ("network", "method") if facts.get(key))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", text(f"{title or 'A run'} · reefknot")),
        tag("style", SHEET),
    )
    body = tag("body", tag("main", *(part for part in main if part)), _footer(facts))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _completed(record: Mapping[str, Any], state: TiedState | None) -> dict[str, Any]:
    """The record, with what can be computed from the state where the record does not tell."""
    facts = {key: value for key, value in record.items() if value is not None}
    if state is not None:
        facts.setdefault("density", state.density)
        facts.setdefault("original_bytes", state.original_bytes)
        if state.codebooks:
            facts.setdefault("num_clusters", state.num_clusters)
            for key, compute in (
                ("rate_fixed", rates.rate_fixed),
                ("rate_paper", rates.rate_paper),
            ):
                if key not in facts:
                    facts[key] = compute(state)
    before, after = number(facts.get("original_bytes")), number(facts.get("file_bytes"))
    if before and after:
        facts.setdefault("rate_file", before / after)
    return facts


# -- the parts, from top to bottom ----------------------------------------------------------------


def _header(facts: Mapping[str, Any]) -> str:
    network, data = facts.get("network"), facts.get("data")
    title = f"{network or 'A network'}" + (f" on {data}" if data else "")
    method = [str(facts["method"])] if facts.get("method") else []
    if number(facts.get("num_clusters")):
        method.append(f"{count(facts['num_clusters'])} shared values")
    if number(facts.get("seed")) is not None:
        method.append(f"seed {facts['seed']}")
    return tag(
        "header",
        tag("p", text("reefknot run report"), class_="mark"),
        tag("h1", text(title)),
        tag("p", text(" · ".join(method)), class_="method") if method else "",
        _headline(facts),
    )


def _headline(facts: Mapping[str, Any]) -> str:
    """Bytes before and after, the rate and the error, with two bars drawn to scale."""
    before, after = number(facts.get("original_bytes")), number(facts.get("file_bytes"))
    parts = []
    if before is not None and after is not None:
        sizes = tag("span", text(f"{count(before)} bytes → ")) + tag(
            "span", tag("b", text(f"{count(after)} bytes"))
        )
        parts.append(sizes)
    elif after is not None or before is not None:
        parts.append(tag("span", text(f"{count(after if before is None else before)} bytes")))
    if number(facts.get("rate_file")) is not None:
        parts.append(tag("span", text(rate(facts["rate_file"])), class_="rate"))
    if number(facts.get("test_error")) is not None:
        parts.append(tag("span", text(f"test error {percent(facts['test_error'])}")))
    elif number(facts.get("val_error")) is not None:
        parts.append(tag("span", text(f"validation error {percent(facts['val_error'])}")))
    if not parts:
        return ""
    scale = ""
    if before and after and before > 0 and after > 0:
        longest = max(before, after)
        scale = tag(
            "div",
            tag("div", class_="before", style=f"width:{100 * before / longest:.3f}%"),
            tag("div", style=f"width:{100 * after / longest:.3f}%"),
            class_="weights",
            role="img",
            aria_label="Size before and after, drawn to scale",
        )
    return tag("p", ", ".join(parts), class_="headline") + scale


def _result(facts: Mapping[str, Any]) -> str:
    known = [(stage, on, number(facts.get(key))) for key, stage, on in STAGES]
    known = [row for row in known if row[2] is not None]
    worst = max((error or 0.0 for _, _, error in known), default=0.0)
    rows = []
    for stage, measured_on, error in known:
        width = 100 * (error or 0.0) / worst if worst > 0 else 0.0
        kind = "held" if measured_on == "validation" else None
        meter = tag("div", class_=kind, style=f"width:{width:.1f}%")
        rows.append(
            tag("th", text(stage), scope="row")
            + tag("td", text(measured_on), class_="soft")
            + tag("td", text(percent(error)), class_="num")
            + tag("td", meter, class_="meter", aria_hidden="true")
        )
    heads = (("Stage", ""), ("Measured on", ""), ("Error", "num"), ("", ""))
    table = _table(heads, rows, label="Errors at each stage") if rows else ""
    dl = _facts(facts)
    return tag("section", tag("h2", "Result"), dl, table) if dl or table else ""


def _facts(facts: Mapping[str, Any]) -> str:
    """The figures of a run, each with what it counts."""
    shown = (
        ("rate_file", "Rate of the file", rate, "bytes before over bytes of the file, all counted"),
        ("rate_paper", "Rate as papers count", rate, "Huffman accounting; not a size on a disk"),
        ("rate_fixed", "Rate at fixed width", rate, "log2 K bits for every weight, zeros too"),
        ("density", "Density", share, "of trainable parameters are not zero"),
        ("num_clusters", "Shared values", count, "zero is one of them, if there are zeros"),
        ("seconds", "Time", duration, "from start to finish"),
    )
    found = []
    for key, name, worded, note in shown:
        if number(facts.get(key)) is None or (key == "num_clusters" and not facts[key]):
            continue
        threads = number(facts.get("threads"))
        if key == "seconds" and threads is not None:
            note = f"on {count(threads)} thread{'' if threads == 1 else 's'}"
        found.append(
            tag(
                "div",
                tag("dt", text(name)),
                tag("dd", text(worded(facts[key])), class_="big"),
                tag("dd", text(note), class_="note"),
            )
        )
    return tag("dl", *found, class_="facts") if found else ""


def _figure(figure: Figure) -> str:
    note = tag("p", text(figure.note)) if figure.note else ""
    caption = tag("figcaption", tag("h3", text(figure.title)), note)
    return tag("figure", caption, figure.body, class_=figure.shape or None)


def _gallery(title: str, lead: str, shown: Sequence[Figure]) -> str:
    if not shown:
        return ""
    return tag(
        "section",
        tag("h2", text(title)),
        tag("p", text(lead), class_="lead"),
        tag("div", *map(_figure, shown), class_="figures"),
    )


def _tensors(survey: Survey | None, facts: Mapping[str, Any], state: TiedState | None) -> str:
    if survey is None or state is None or not survey.tensors:
        return ""
    parts = [tag("h2", "Tensors"), _tensor_table(survey, facts)]
    if state.aliases:
        same = ", ".join(f"{alias} = {name}" for alias, name in state.aliases.items())
        parts.append(tag("p", text(f"Stored once and shared: {same}."), class_="lead"))
    if survey.masks:
        swatches = (("alive", "not zero"), ("empty", "zero"), ("", "dead row or column"))
        keys = [
            tag("span", tag("i", class_=f"swatch {kind}".strip()), text(words), class_="ramp")
            for kind, words in swatches
        ]
        drawn = list(survey.masks)
        if survey.heat:
            drawn.insert(1, survey.heat)  # beside the first layer, whose inputs it shows
        parts.append(tag("p", *keys, class_="legend"))
        parts.append(tag("div", *map(_figure, drawn), class_="pictures"))
    if survey.hidden:
        words = f"{count(survey.hidden)} more matrices are not drawn."
        parts.append(tag("p", text(words), class_="lead"))
    return tag("section", *parts)


def _tensor_table(survey: Survey, facts: Mapping[str, Any]) -> str:
    """One row a tensor; with a column of bytes if the record tells them, as `inspect` does."""
    told = facts.get("tensors")
    tensors = [mapping(item) for item in told] if isinstance(told, list) else []
    known = {str(item.get("name")): number(item.get("bytes")) for item in tensors}
    with_bytes = any(known.get(found.name) is not None for found in survey.tensors)
    rows = []
    for found in survey.tensors:
        dead = [DASH, DASH]
        if found.is_matrix:
            rows_columns = (found.dead_rows.size, found.dead_columns.size)
            dead = [
                f"{count(d)} of {count(n)}"
                for d, n in zip(found.num_dead, rows_columns, strict=True)
            ]
        kind = found.kind if found.is_tied else f"{found.kind}, kept exactly"
        shape = f" {TIMES} ".join(map(str, found.shape)) or "scalar"
        cells = [shape, count(found.elements), count(found.nonzeros), share(found.density), *dead]
        if with_bytes:
            cells.append(count(known.get(found.name)))
        rows.append(
            tag("th", text(found.name), scope="row")
            + tag("td", text(kind), class_="soft")
            + "".join(tag("td", text(cell), class_="num") for cell in cells)
        )
    elements = sum(found.elements for found in survey.tensors)
    nonzeros = sum(found.nonzeros for found in survey.tensors)
    total = ["", count(elements), count(nonzeros), share(nonzeros / elements if elements else 0.0)]
    total += ["", "", *([count(sum(v or 0.0 for v in known.values()))] if with_bytes else [])]
    foot = tag("th", "All", scope="row") + tag("td")
    foot += "".join(tag("td", text(cell), class_="num") for cell in total)
    names = ["Shape", "Elements", "Non-zeros", "Density", "Dead rows", "Dead columns"]
    names += ["Bytes"] if with_bytes else []
    heads = [("Tensor", ""), ("Type", ""), *((name, "num") for name in names)]
    return _table(heads, rows, foot=foot, label="Tensors")


def _skipped(facts: Mapping[str, Any]) -> str:
    skipped = mapping(facts.get("skipped"))
    if not skipped:
        return ""
    rows = [
        tag("th", text(name), scope="row") + tag("td", text(reason))
        for name, reason in skipped.items()
    ]
    lead = "These parameters were not tied; they are stored exactly."
    return tag(
        "section",
        tag("h2", "Skipped"),
        tag("p", text(lead), class_="lead"),
        _table((("Parameter", ""), ("Why", "")), rows, label="Skipped parameters"),
    )


def _made(facts: Mapping[str, Any], config: str) -> str:
    """Settings, environment and configuration: what somebody needs to do it again."""
    environment = {**mapping(facts.get("versions"))}
    if facts.get("threads") is not None:
        environment["threads"] = facts["threads"]
    tables = [
        _table(
            ((title, ""), ("Value", "value")),
            [
                tag("th", text(name), scope="row")
                + tag("td", text(_setting(value)), class_="value")
                for name, value in rows.items()
            ],
            label=title,
        )
        for title, rows in (
            ("Settings", mapping(facts.get("settings"))),
            ("Environment", environment),
        )
        if rows
    ]
    parts = [tag("div", *tables, class_="pair")] if tables else []
    if config.strip():
        code = tag("pre", tag("code", text(config.rstrip())))
        parts.append(tag("details", tag("summary", "Configuration"), code))
    return tag("section", tag("h2", "How it was made"), *parts) if parts else ""


def _setting(value: object) -> str:
    known = number(value)
    if known is not None:
        return plain(known, 6)
    return DASH if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _footer(facts: Mapping[str, Any]) -> str:
    version = mapping(facts.get("versions")).get("reefknot")
    words = f"Made by reefknot {version}." if version else "Made by reefknot."
    return tag("footer", text(f"{words} This page holds everything it shows and fetches nothing."))


def _table(
    heads: Iterable[tuple[str, str]], rows: Iterable[str], *, label: str, foot: str = ""
) -> str:
    """A table that scrolls sideways by itself on a narrow screen, by finger or by keyboard."""
    cells = [
        tag("th", text(name), class_=kind or None, scope="col") if name else tag("td")
        for name, kind in heads
    ]
    parts = [tag("thead", tag("tr", *cells)), tag("tbody", *(tag("tr", row) for row in rows))]
    if foot:
        parts.append(tag("tfoot", tag("tr", foot)))
    table = tag("table", *parts)
    return tag("div", table, class_="scroll", role="region", aria_label=label, tabindex=0)
