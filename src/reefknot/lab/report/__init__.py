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

from reefknot.errors import FormatError
from reefknot.files import read_bytes, write_atomically
from reefknot.inspection import inspect
from reefknot.lab.report.comparison import Compared, front_of, render_comparison
from reefknot.lab.report.curves import in_order
from reefknot.lab.report.page import render
from reefknot.lab.report.wording import mapping, number
from reefknot.state import TiedState

__all__ = [
    "Compared", "compared", "front_of", "read_record", "render", "write_comparison", "write_report",
]  # fmt: skip


def write_report(folder: Path, state: TiedState) -> Path:
    """Write `report.html` into the folder of a finished run, atomically, and return its path."""
    record, metrics = read_record(folder), _read_metrics(folder)
    config = (_read(folder / "config.toml") or b"").decode(errors="replace")
    page = render(record, metrics, state, config, inspect(folder / "model.reef"))
    write_atomically(folder / "report.html", page.encode())
    return folder / "report.html"


def write_comparison(path: Path, title: str, lead: str, runs: Sequence[Compared]) -> Path:
    """Write a page about several runs, and return its path."""
    write_atomically(path, render_comparison(title, lead, runs).encode())
    return path


def compared(folder: Path, name: str) -> Compared:
    """What a comparison shows of a run's folder."""
    record = read_record(folder) if (folder / "record.json").exists() else {}
    lines = in_order(_read_metrics(folder))
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


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a finished run."""
    path = folder / "record.json"
    try:
        record = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(record, dict):
        raise FormatError(f"{path} holds a {type(record).__name__}; a record was expected")
    return record


def _read_metrics(folder: Path) -> list[Any]:
    metrics = []
    for line in (_read(folder / "metrics.jsonl") or b"").splitlines():
        # A killed run may leave half a line, after which a resumed run goes on writing.
        with contextlib.suppress(ValueError, RecursionError):
            metrics.append(json.loads(line))
    return metrics


def _read(path: Path) -> bytes | None:
    return read_bytes(path) if path.exists() else None
