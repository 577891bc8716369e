"""A document: the frame of every page, and the figures in it, which every drawing comes as.

Takes     parts of a page as markup; drawings, and the words around them.
Gives     HTML without scripts and without anything to fetch.
Unaware   of what is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reefknot.lab.report import tables
from reefknot.lab.report.markup import tag, text
from reefknot.lab.report.tables import Numbers

STYLE = Path(__file__).with_name("style.css")

MAX_POINTS = 300  # along a curve: more cannot be told apart on a screen
MAX_GROUPS = 6  # codebooks with a figure of their own

Metrics = Sequence[Mapping[str, Any]]


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
    numbers = tables.numbers(shown.title, shown.numbers) if shown.numbers else ""
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
