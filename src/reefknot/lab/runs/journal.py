"""What a run writes down: metrics.jsonl while it trains, record.json at its end.

Takes     losses, what was measured at a step, and the results as one flat table.
Gives     a row for each measurement, appended to the file and kept for the checkpoint; the record
          of a finished run, and the versions of the software involved.
Unaware   of what is measured.
"""

import json
import math
import platform
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reefknot import __version__
from reefknot.errors import ReefknotError
from reefknot.files import write_atomically

Record = dict[str, Any]


class Journal:
    """metrics.jsonl and what else a run must remember across interruptions.

    A checkpoint holds the rows as well, so that a resumed run has each of them exactly once,
    whatever happened to the file meanwhile.
    """

    def __init__(self, folder: Path, saved: dict[str, Any] | None) -> None:
        self.folder = folder
        self.path = folder / "metrics.jsonl"
        self.notes: dict[str, float] = dict(saved["notes"]) if saved else {}
        self._loss: float = saved["loss"] if saved else 0.0
        self._step_seconds: float = saved["step_seconds"] if saved else 0.0
        self._count: int = saved["count"] if saved else 0
        self._seconds_before = saved["seconds"] if saved else 0.0
        self._began = time.monotonic()
        self._rows = bytearray(saved["rows"].numpy().tobytes() if saved else b"")
        self.errors = _errors(self._rows)
        write_atomically(self.path, bytes(self._rows))

    @staticmethod
    def mistakes(saved: dict[str, Any]) -> Iterator[str]:
        """What is wrong with a saved journal."""
        kinds = {"notes": dict, "loss": float, "step_seconds": float, "count": int}
        kinds |= {"seconds": float, "rows": Tensor}
        if {key: type(value) for key, value in saved.items()} != kinds:
            yield "its journal has other entries than a run saves"
            return
        if not all(type(value) is float for value in saved["notes"].values()):
            yield "the notes of its journal are no numbers"
        try:
            _errors(saved["rows"].numpy().tobytes())
        except (LookupError, TypeError, ValueError):
            yield "the rows of its journal are none that a run writes"
        if not all(0 <= saved[key] < math.inf for key in ("count", "seconds", "step_seconds")):
            yield "its journal has a negative or endless count"
        if not math.isfinite(saved["loss"]):
            yield "the loss of its journal is not finite"

    @property
    def seconds(self) -> float:
        """The time spent, including what was spent before interruptions."""
        return self._seconds_before + time.monotonic() - self._began

    def add_step(self, loss: float, seconds: float) -> None:
        """Add the data loss and the time of one step to the means."""
        self._loss, self._count = self._loss + loss, self._count + 1
        self._step_seconds += seconds

    def measure(self, step: int, *, lr: float, val_error: float, stats: dict[str, Any]) -> Record:
        """Write one row: means over the steps since the last row, and the current measurements."""
        row = {
            **stats,
            "step": step,
            "lr": lr,
            "loss": self._loss / max(self._count, 1),
            "val_error": val_error,
            "step_seconds": round(self._step_seconds / max(self._count, 1), 6),
            "seconds": round(self.seconds, 3),
        }
        self._loss, self._step_seconds, self._count = 0.0, 0.0, 0
        self.errors.append((step, val_error))
        text = (json.dumps(row) + "\n").encode()
        self._rows += text
        try:
            with self.path.open("ab") as file:
                file.write(text)
        except OSError as error:
            raise ReefknotError(f"{self.path} could not be written: {error.strerror}") from error
        return row

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint saves of the journal."""
        return {
            "notes": dict(self.notes),
            "loss": self._loss,
            "step_seconds": self._step_seconds,
            "count": self._count,
            "seconds": self.seconds,
            "rows": torch.from_numpy(np.array(self._rows, np.uint8)),
        }


def _errors(rows: bytes | bytearray) -> list[tuple[int, float]]:
    """After which steps there is a row, and the validation error in it."""
    parsed = (json.loads(row) for row in rows.splitlines())
    return [(int(row["step"]), float(row["val_error"])) for row in parsed]


def write_record(folder: Path, record: Record) -> None:
    """Write the record atomically."""
    write_atomically(folder / "record.json", (json.dumps(record, indent=2) + "\n").encode())


def versions() -> dict[str, str]:
    """The versions of Python, of this package, and of the libraries that results depend on."""
    others = {name: version(name) for name in ("torch", "numpy", "numba")}
    return {"python": platform.python_version(), "reefknot": __version__} | others
