"""Tables and names, safe to print to a terminal, a file or a pipe."""

import sys
from typing import Any

DEBUG = "reefknot.debug"  # in the metadata of a context: whether tracebacks are wanted
MOST_SIGNS = 400  # of a name in a table


def table_of(*titles: str, text: int = 1) -> Any:
    """A table whose first `text` columns are words, and the others numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, title in enumerate(titles):
        justify: Any = "left" if number < text else "right"
        table.add_column(title, justify=justify, overflow="fold")
    return table


def plain(text: object) -> str:
    """A name or a path that is safe to print: unprintable characters are escaped."""
    signs = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return "".join(signs).encode(encoding, "backslashreplace").decode(encoding)


def in_a_row(name: object) -> str:
    """A name for a table, whose rows are all as wide as the longest: its middle may be left out."""
    text = plain(name)
    half = MOST_SIGNS // 2
    return text if len(text) <= MOST_SIGNS else f"{text[:half]}...{text[-half:]}"


def print_table(table: Any) -> None:
    """Print a table; in a file or a pipe no line is broken, however long a name is."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 1 << 16).print(table)
