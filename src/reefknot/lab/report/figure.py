"""A figure: what every drawing of a report comes as.

Takes     a drawing's markup, and the words around it.
Gives     one value that a page can place.
Unaware   of what is drawn, and of the page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_POINTS = 300  # along a curve: more cannot be told apart on a screen
MAX_GROUPS = 6  # codebooks with a figure of their own

Metrics = Sequence[Mapping[str, Any]]


class Numbers(NamedTuple):
    """The numbers that a drawing shows on hover, as a table for keyboards and screen readers."""

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


def sign_kind(value: float) -> str:
    """The class that colors a value: negative, zero or positive."""
    return "zero" if value == 0 else "negative" if value < 0 else "positive"
