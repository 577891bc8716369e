"""Shows what a command is doing, on standard error: a bar on a terminal, lines elsewhere."""

import sys
from typing import Any

import click

from reefknot.cli.printing import plain
from reefknot.progress import Moment, until_next

SOON, OFTEN = 1.0, 0.2  # seconds until the bar appears, and until it is drawn again


class Display:
    """A listener of `reefknot.progress`. What it needs is imported when a call takes long."""

    def __init__(self) -> None:
        self._live: Any = None

    def __call__(self, moment: Moment | None) -> float:
        """Draw the bar or write a line; without a moment remove the bar."""
        if self._live is None and not sys.stderr.isatty():
            if moment is not None:
                click.echo(plain(f"reefknot: {moment}"), err=True)
            return until_next(moment)
        if moment is None:
            if self._live is not None:
                self._live.stop()
                self._live = None
            return SOON
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                console=Console(stderr=True), auto_refresh=False, transient=True,
                redirect_stdout=sys.stdout.isatty(),
            )  # fmt: skip
            self._live.start()
        self._live.update(_drawn(moment), refresh=True)
        return OFTEN


def _drawn(moment: Moment) -> Any:
    """The bar of the items, and what is being done, a line for each stage."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    count, done = moment.items.count or None, max(len(moment.items.begun) - 1, 0)
    bar = ProgressBar(total=count, completed=done, width=24, pulse=count is None)
    head = Table.grid(padding=(0, 1))
    head.add_row(moment.stages[0].what, bar, f"{moment.seconds:,.0f} s", moment.left)
    lines = [plain(stage) for stage in moment.stages[1:]]
    return Group(head, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))
