"""A document: markup that is safe whatever it shows; tables, figures, and the frame of every page.

Takes     names and numbers that come from files, and may be anything; drawings as markup.
Gives     HTML without scripts and without anything to fetch, which HTML and XML parsers read back
          as it was meant.
Unaware   of what is shown.
"""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

STYLE = Path(__file__).with_name("style.css")

MAX_POINTS = 300  # along a curve: more cannot be told apart on a screen
MAX_GROUPS = 6  # codebooks with a figure of their own

Metrics = Sequence[Mapping[str, Any]]

# Lone surrogates (a JSON escape can make one) cannot be written as UTF-8, and XML knows no control
# characters. Direction overrides would let a tensor's name rewrite the line that it is in.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_VOID = frozenset({"meta"})
_SHAPES = frozenset({"rect", "path", "line", "circle"})


def text(value: object) -> str:
    """A value as text between tags or inside an attribute.

    >>> text("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return html.escape(_UNPRINTABLE.sub("\ufffd", str(value)), quote=True)


def tag(name: str, /, *children: str, **attributes: object) -> str:
    """One element; `children` are markup already, attributes are escaped here.

    A trailing underscore is dropped and others become hyphens (`class_`, `aria_label`), an
    attribute that is None is left out, and floats are rounded to what a screen can show.

    >>> tag("rect", x=1.25, class_="bar", rx=None)
    '<rect x="1.2" class="bar"/>'
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None:
            continue
        shown = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else text(value)
        parts.append(f'{key.removesuffix("_").replace("_", "-")}="{shown}"')
    head = " ".join(parts)
    if children:
        return f"<{head}>{''.join(children)}</{name}>"
    end = "" if name in _VOID else "/" if name in _SHAPES else f"></{name}"
    return f"<{head}{end}>"


# -- tables ---------------------------------------------------------------------------------


class Numbers(NamedTuple):
    """The numbers that a drawing shows on hover, as a table for keyboards and screen readers."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def table(
    heads: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[str]],
    *,
    label: str,
    foot: Sequence[str] = (),
    wide: bool = False,
) -> str:
    """A table in a box that scrolls by itself, by finger or by keyboard; nothing without rows.

    Args:
        heads: for each column its name and its class; a first one without a class names its row.
        rows: the cells of each, plain text.
        label: what screen readers call the box.
        foot: the cells of a last row, which sums up.
        wide: it has more columns than a phone can show, and says so there.
    """
    kinds = [kind for _, kind in heads]
    body = [_row(kinds, cells) for cells in rows]
    if not body:
        return ""
    cells = [tag("th", text(name), class_=kind or None, scope="col") for name, kind in heads]
    parts = [tag("thead", tag("tr", *cells)), tag("tbody", *body)]
    if foot:
        parts.append(tag("tfoot", _row(kinds, foot)))
    kind = "scroll wide" if wide else "scroll"
    box = tag("div", tag("table", *parts), class_=kind, role="region", aria_label=label, tabindex=0)
    return (tag("p", text("Scrolls sideways: more columns →"), class_="hint") if wide else "") + box


def _row(kinds: Sequence[str], cells: Sequence[str]) -> str:
    found = []
    for place, (kind, cell) in enumerate(zip(kinds, cells, strict=True)):
        if place == 0 and not kind:
            found.append(tag("th", text(cell), scope="row"))
        else:
            found.append(tag("td", text(cell), class_=kind or None))
    return tag("tr", *found)


def _numbers(title: str, told: Numbers) -> str:
    """The numbers of a drawing, folded away."""
    found = table([(head, "num") for head in told.heads], told.rows, label=f"Numbers of {title}")
    return tag("details", tag("summary", "Numbers"), found, class_="numbers") if found else ""


# -- pages ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A drawing with its title and a note; `body` is markup, the words are plain text."""

    title: str
    note: str
    body: str
    numbers: Numbers | None = None


def document(title: str, parts: Sequence[str], *, version: object = None) -> str:
    """A whole page; parts that are empty are left out."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", text(f"{title} · reefknot")),
        tag("style", STYLE.read_text(encoding="utf-8")),
    )
    words = f"Made by reefknot {version}." if version else "Made by reefknot."
    words += " This page holds everything it shows and fetches nothing."
    body = tag("body", tag("main", *filter(None, parts)), tag("footer", text(words)))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def figure(shown: Figure) -> str:
    """A drawing between its title and its numbers."""
    note = tag("p", text(shown.note)) if shown.note else ""
    caption = tag("figcaption", tag("h3", text(shown.title)), note)
    numbers = _numbers(shown.title, shown.numbers) if shown.numbers else ""
    return tag("figure", caption, shown.body, numbers)


def header(kind: str, title: str, *parts: str, words: str = "") -> str:
    """The head of a page: what kind of page it is, its title, and words below it."""
    below = tag("p", text(words), class_="method") if words else ""
    mark = tag("p", text(f"reefknot {kind}"), class_="mark")
    return tag("header", mark, tag("h1", text(title)), below, *parts)


def section(title: str, *parts: str, lead: str = "") -> str:
    """A section, unless all of its parts are empty."""
    words = tag("p", text(lead), class_="lead") if lead else ""
    return tag("section", tag("h2", text(title)), words, *parts) if any(parts) else ""


def gallery(title: str, lead: str, shown: Sequence[Figure]) -> str:
    """A section of drawings, if there are any."""
    drawn = tag("div", *map(figure, shown), class_="figures") if shown else ""
    return section(title, drawn, lead=lead)
