"""A document: the frame of every page, and the markup of figures in it.

Takes     parts of a page as markup, and figures.
Gives     HTML without scripts and without anything to fetch.
Unaware   of what is shown.
"""

from collections.abc import Sequence

from reefknot.lab.report import tables
from reefknot.lab.report.figure import Figure
from reefknot.lab.report.markup import tag, text
from reefknot.lab.report.style import SHEET


def document(title: str, parts: Sequence[str], *, version: object = None) -> str:
    """A whole page; parts that are empty are left out."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", text(f"{title} · reefknot")),
        tag("style", SHEET),
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
    return tag("figure", caption, shown.body, numbers, class_=shown.shape or None)


def gallery(title: str, lead: str, shown: Sequence[Figure]) -> str:
    """A section of drawings, if there are any."""
    if not shown:
        return ""
    return tag(
        "section",
        tag("h2", text(title)),
        tag("p", text(lead), class_="lead"),
        tag("div", *map(figure, shown), class_="figures"),
    )
