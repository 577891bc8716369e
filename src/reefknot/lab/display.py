"""What a terminal shows of a run: its progress, and the tables at its end."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from reefknot.lab.runs import training
from reefknot.progress import listening


@contextlib.contextmanager
def progress_bar(total: int, console: Console) -> Iterator["Shown"]:
    """Shows a run; if the output is not a terminal, one line per measurement instead."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    bar = _TwoLines(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    )
    with listening(None), bar:  # one bar at a time
        yield Shown(bar, total)


class Shown:
    """What is known of a run while it goes on."""

    def __init__(self, bar: Progress, total: int) -> None:
        self._facts: dict[str, Any] = {}
        self._loss: float | None = None
        self._phase = "training"
        self._shown = 0.0
        self._bar, self._console = bar, bar.console
        self._task = bar.add_task(self._phase, total=total, facts="")

    def stepped(self, progress: training.Progress) -> None:
        """A step is done; the bar itself is drawn a few times a second."""
        self._loss, self._phase = progress.loss, progress.phase or self._phase
        now = time.monotonic()
        if now - self._shown > 0.1 or progress.event != "step":
            self._shown = now
            self._bar.update(
                self._task,
                completed=progress.step,
                description=self._phase,
                facts=self._text(),
            )

    def measured(self, row: dict[str, Any]) -> None:
        """A measurement was written."""
        self._facts = row
        self._phase = row["phase"] or self._phase
        if not self._console.is_terminal:
            self._loss = row["loss"]
            # Rich takes a file or a pipe for 80 columns wide, and would break the line there.
            self._console.print(
                f"{self._phase} {row['step']:,} {self._text()}",
                highlight=False,
                soft_wrap=True,
            )

    def _text(self) -> str:
        parts = []
        if self._loss is not None:
            parts.append(f"loss {self._loss:.{'4f' if self._loss < 1000 else '3g'}}")
        if (error := self._facts.get("val_error")) is not None:
            parts.append(f"val {error:.2f} %")
        if (density := self._facts.get("density")) is not None:
            parts.append(f"density {density:.4f}")
        if (size := self._facts.get("predicted_bytes")) is not None:
            target = self._facts.get("target_bytes")
            parts.append(f"{size:,} {f'of {target:,} ' if target else ''}bytes")
        if clusters := self._facts.get("num_clusters"):
            parts.append(f"K {clusters}")
        return "  ".join(parts)


class _TwoLines(Progress):
    """The bar, and the figures below it: side by side they are too long for 80 columns."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        for task in self.tasks:
            yield Text(task.fields["facts"])


# -- the tables at the end ------------------------------------------------------------------

_ROWS = (
    ("validation error, dense", "dense_val_error", "{:.2f} %"),
    ("validation error, before tied values", "val_error_soft", "{:.2f} %"),
    ("validation error, clusters frozen", "val_error_hardened", "{:.2f} %"),
    ("validation error, final", "val_error", "{:.2f} %"),
    ("validation error, lost to compression", "lost_val_error", "{:+.2f} points"),
    ("test error, dense", "dense_test_error", "{:.2f} %"),
    ("test error, final", "test_error", "{:.2f} %"),
    ("test error, lost to compression", "lost_test_error", "{:+.2f} points"),
    ("density", "density", "{:.4f}"),
    ("clusters", "num_clusters", "{:,}"),
    ("original bytes", "original_bytes", "{:,}"),
    (".reef bytes", "file_bytes", "{:,}"),
    ("rate, the file", "rate_file", "{:.1f}x"),
    ("rate, the paper's accounting", "rate_paper", "{:.1f}x"),
    ("seconds", "seconds", "{:.0f}"),
)


def facts_table(rows: list[tuple[str, str]]) -> Table:
    """Two columns: what, and how much."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def record_table(record: dict[str, Any]) -> Table:
    """What a run's record says."""
    facts = record | _lost(record)
    known = [(title, facts.get(key), form) for title, key, form in _ROWS]
    if record.get("start_is_tied"):
        known = [(title.replace("dense", "before"), v, form) for title, v, form in known]
    return facts_table(
        [(title, form.format(v)) for title, v, form in known if isinstance(v, int | float)]
    )


def unknown_loss(record: dict[str, Any]) -> bool:
    """Whether something was tied, and there is no dense network to compare it with."""
    return bool(record.get("num_clusters")) and not _lost(record)


def _lost(record: dict[str, Any]) -> dict[str, float]:
    """The increase in error over the dense network, in points; on test data if it is known."""
    for part in ("test_error", "val_error"):
        before, after = record.get(f"dense_{part}"), record.get(part)
        if isinstance(before, int | float) and isinstance(after, int | float):
            return {f"lost_{part}": after - before}
    return {}
