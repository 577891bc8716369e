"""What is on the Pareto front: the files, a table of them, and a page about all trials.

Takes     the trials of a search, and the folders of their runs.
Gives     front/ with a file for each size, front.json, report.html.
Unaware   of Optuna, and of how trials are run.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reefknot.errors import ReefknotError
from reefknot.files import read_bytes, write_atomically
from reefknot.lab.report import Compared, front_of, write_comparison
from reefknot.lab.runs.config import Config
from reefknot.lab.runs.evaluation import errors_on_test
from reefknot.lab.runs.folder import remove
from reefknot.lab.searching.study import Trial


@dataclass(frozen=True)
class Found:
    """A trial on the front; `file` is None if its run is not here but on another machine."""

    trial: int
    file_bytes: int
    val_error: float
    test_error: float | None
    values: dict[str, Any]
    file: str | None


def conclude(
    config: Config,
    folder: Path,
    trials: Sequence[Trial],
    place: Callable[[int], Path],
    *,
    test: bool,
) -> list[Found]:
    """Write the results of a search; gives the front, the smallest file first.

    With `test` the files on the front are measured on test data. Nothing else ever is.
    """
    done = [one for one in trials if one.state == "finished"]
    points = [(float(one.file_bytes or 0), one.val_error or 0.0) for one in done]
    front = [done[number] for number in front_of(points)]
    files = _copied(folder, front, place)
    known = [file for file in files if file is not None]
    errors = dict(zip(known, errors_on_test(config, known), strict=True)) if test else {}
    found = [
        Found(
            trial=one.number,
            file_bytes=one.file_bytes or 0,
            val_error=one.val_error or 0.0,
            test_error=None if file is None else errors.get(file),
            values=one.values,
            file=None if file is None else str(file.relative_to(folder)),
        )
        for one, file in zip(front, files, strict=True)
    ]
    rows = [asdict(one) for one in found]
    write_atomically(folder / "front.json", (json.dumps(rows, indent=2) + "\n").encode())
    _write_page(config, folder, trials, found)
    return found


def _copied(
    folder: Path, front: Sequence[Trial], place: Callable[[int], Path]
) -> list[Path | None]:
    """Copy the files on the front, named by their sizes, and delete others."""
    target = folder / "front"
    try:
        target.mkdir(exist_ok=True)
        before = {path.name for path in target.glob("*.reef")}
    except OSError as error:
        raise ReefknotError(f"{target} could not be made: {error.strerror}") from error
    files: list[Path | None] = []
    for one in front:
        file = place(one.number) / "model.reef"
        if file.exists():
            files.append(target / f"{one.file_bytes}.reef")
            write_atomically(target / f"{one.file_bytes}.reef", read_bytes(file))
        else:
            files.append(None)
    remove(target, before - {file.name for file in files if file is not None})
    return files


def _write_page(
    config: Config, folder: Path, trials: Sequence[Trial], front: Sequence[Found]
) -> None:
    tested = {one.trial: one.test_error for one in front}
    runs = [
        Compared(
            f"trial {one.number}",
            one.state if not one.reason else f"{one.state}: {one.reason}",
            one.file_bytes,
            one.val_error,
            tested.get(one.number),
            one.curve,
            one.values,
        )
        for one in trials
    ]
    counts = {state: sum(one.state == state for one in trials) for state in _STATES}
    lead = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    title = f"{config.model} on {config.data}: {len(front)} on the front"
    write_comparison(folder / "report.html", title, f"{config.method}; trials: {lead}", runs)


_STATES = ("finished", "pruned", "failed", "running")
