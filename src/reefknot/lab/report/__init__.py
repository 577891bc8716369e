"""Report: a run's folder, or several side by side, as one HTML page that opens anywhere, offline.

Takes     `record.json`, `metrics.jsonl`, `config.toml` and `model.reef` of a run, and its
          `TiedState`.
Gives     `report.html` beside them: drawings made here, no script, nothing to fetch.
Unaware   of methods, of torch, and of how runs are made.
"""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reefknot.errors import ReefknotError
from reefknot.files import write_atomically
from reefknot.inspection import inspect
from reefknot.lab.report.comparison import Compared, front_of, render_comparison
from reefknot.lab.report.curves import in_order
from reefknot.lab.report.page import render
from reefknot.lab.report.wording import mapping, number
from reefknot.state import TiedState

__all__ = ["Compared", "compared", "front_of", "render", "write_comparison", "write_report"]


def write_report(folder: Path, state: TiedState | None = None) -> Path:
    """Write `report.html` into a run's folder, and return its path.

    An unfinished run has no record yet and is shown by its metrics; a truncated last line is left
    out. The page is written atomically.
    """
    folder = Path(folder)
    record = _read_record(folder / "record.json")
    metrics = _read_metrics(folder / "metrics.jsonl")
    if record is None and metrics is None:
        raise ReefknotError(
            f"{folder} has neither record.json nor metrics.jsonl; expected the folder of a run"
        )
    config = _read(folder / "config.toml") or ""
    file = folder / "model.reef"
    sizes = inspect(file) if file.exists() else None
    path = folder / "report.html"
    write_atomically(path, render(record or {}, metrics or [], state, config, sizes).encode())
    return path


def write_comparison(path: Path, title: str, lead: str, runs: Sequence[Compared]) -> Path:
    """Write a page about several runs, and return its path."""
    write_atomically(path, render_comparison(title, lead, runs).encode())
    return path


def compared(folder: Path, name: str) -> Compared:
    """What a comparison shows of a run's folder."""
    folder = Path(folder)
    record = _read_record(folder / "record.json") or {}
    lines = in_order(_read_metrics(folder / "metrics.jsonl") or [])
    rows = [(line["step"], number(line.get("val_error"))) for line in lines]
    return Compared(
        name,
        "finished" if record else "unfinished",
        number(record.get("file_bytes")),
        number(record.get("val_error")),
        number(record.get("test_error")),
        [(step / rows[-1][0], error) for step, error in rows if error is not None and rows[-1][0]],
        mapping(record.get("settings")),
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _read_record(path: Path) -> dict[str, Any] | None:
    if (content := _read(path)) is None:
        return None
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ReefknotError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(record, dict):
        raise ReefknotError(f"{path} holds a {type(record).__name__}; an object was expected")
    return record


def _read_metrics(path: Path) -> list[dict[str, Any]] | None:
    if (content := _read(path)) is None:
        return None
    metrics = []
    for line in content.split("\n"):
        # A killed run may leave half a line, after which a resumed run goes on writing.
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, dict):
                metrics.append(found)
    return metrics
