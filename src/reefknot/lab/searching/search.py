"""A search from beginning to end.

Takes     a recipe with a `[search]` table or a size, a folder, and the number of trials.
Gives     the folder: search.toml, study.db (unless trials are kept elsewhere), trials/, and what
          follows from them: front/ with a file for each size, front.json, report.html.
Unaware   of Optuna, of how trials are run, and of how results are shown.

Selection is on validation data. Test data is read once no trial is left, for the files on the
front alone.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from reefknot.errors import CheckError, ConfigError, ReefknotError
from reefknot.files import read_bytes, write_atomically
from reefknot.lab.report import compared, front_of, write_comparison
from reefknot.lab.runs.config import Config
from reefknot.lab.runs.folder import config_text, names_in, remove
from reefknot.lab.runs.parts import network_and_data
from reefknot.lab.runs.run import errors_on_test
from reefknot.lab.searching.locks import mutex
from reefknot.lab.searching.space import space_of, trial_config
from reefknot.lab.searching.study import Trial
from reefknot.lab.searching.worker import Job, Tell, work, work_together
from reefknot.progress import doing

RECIPE = "search.toml"


@dataclass(frozen=True)
class Found:
    """A trial on the front; `file` is None if its run is not here but on another machine."""

    trial: int
    file_bytes: int
    val_error: float
    test_error: float | None
    values: Mapping[str, Any]
    file: str | None


@dataclass(frozen=True)
class Result:
    """What a search has found so far; `running` are trials of other commands."""

    front: list[Found]
    running: int


@doing("searching")
def search(
    config: Config,
    folder: Path,
    *,
    trials: int,
    jobs: int = 1,
    storage: str | None = None,
    tell: Tell = lambda _: None,
) -> Result:
    """Run trials until there are `trials` of them, those of earlier and other commands included.

    Args:
        config: the recipe; its `search` says what is searched.
        folder: a new one, or that of a search with this recipe, which continues.
        trials: how many trials in all.
        jobs: how many processes of one thread run them.
        storage: None for SQLite in the folder, a URL of a database, or a journal file.
        tell: called with every result of this command.
    """
    space_of(config)
    network_and_data(trial_config(config, {}))  # wrong names make no folder
    _claim(folder, config)
    job = Job(config, folder, storage, trials)
    study = job.open()
    killed = 0
    if jobs == 1:
        work(job, tell)
    else:
        killed = work_together(job, jobs, tell)
    found = study.trials()
    running = [trial.number for trial in found if trial.state == "running"]
    with mutex(folder):
        front = _conclude(job, found, test=not running)
    if killed and (running or not front):
        where = f" in trial {running[0]}" if running else ""
        raise CheckError(f"a worker was killed{where}; the same command continues")
    reasons = [trial.reason for trial in found if trial.reason]
    if not front and not running:
        raise CheckError(f"no trial has a result; the last one: {reasons[-1] if reasons else '-'}")
    return Result(front, len(running))


def _claim(folder: Path, config: Config) -> None:
    """Make the folder this search's own, or say why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ConfigError(f"{folder} is a file; --out names a folder") from error
    except OSError as error:
        raise ReefknotError(f"{folder} could not be made: {error.strerror}") from error
    names = {name for name in names_in(folder) if not name.startswith((".", "turn"))}
    if names and RECIPE not in names:
        raise ConfigError(
            f"{folder} exists already and holds no search; choose another --out, or delete it"
        )
    text = config_text(folder, config).encode()
    with mutex(folder):
        if not (folder / RECIPE).exists():
            write_atomically(folder / RECIPE, text)
        elif read_bytes(folder / RECIPE) != text:
            raise ConfigError(
                f"{folder} was started with another configuration; continue with that one, or "
                "choose another --out"
            )


# -- the front ------------------------------------------------------------------------------


def _conclude(job: Job, trials: Sequence[Trial], *, test: bool) -> list[Found]:
    """Write the results of a search; gives the front, the smallest file first.

    With `test` the files on the front are measured on test data. Nothing else ever is.
    """
    done = [one for one in trials if one.file_bytes is not None and one.val_error is not None]
    front = [done[n] for n in front_of([(t.file_bytes or 0, t.val_error or 0.0) for t in done])]
    files = _copied(job, front)
    known = [file for file in files if file is not None]
    errors = dict(zip(known, errors_on_test(job.config, known), strict=True)) if test else {}
    found = [
        Found(
            trial=one.number,
            file_bytes=one.file_bytes or 0,
            val_error=one.val_error or 0.0,
            test_error=None if file is None else errors.get(file),
            values=one.values,
            file=None if file is None else str(file.relative_to(job.folder)),
        )
        for one, file in zip(front, files, strict=True)
    ]
    rows = json.dumps([asdict(one) for one in found], indent=2)
    write_atomically(job.folder / "front.json", f"{rows}\n".encode())
    _write_page(job, trials, found)
    return found


def _copied(job: Job, front: Sequence[Trial]) -> list[Path | None]:
    """Copy the files on the front, named by their sizes, and delete others."""
    target = job.folder / "front"
    try:
        target.mkdir(exist_ok=True)
        before = {path.name for path in target.glob("*.reef")}
    except OSError as error:
        raise ReefknotError(f"{target} could not be made: {error.strerror}") from error
    files: list[Path | None] = []
    for one in front:
        file = job.place(one.number) / "model.reef"
        files.append(target / f"{one.file_bytes}.reef" if file.exists() else None)
        if file.exists():
            write_atomically(target / f"{one.file_bytes}.reef", read_bytes(file))
    remove(target, before - {file.name for file in files if file is not None})
    return files


def _write_page(job: Job, trials: Sequence[Trial], front: Sequence[Found]) -> None:
    tested = {one.trial: one.test_error for one in front}
    runs = [
        replace(
            compared(job.place(one.number), f"trial {one.number}"),
            state=one.state if not one.reason else f"{one.state}: {one.reason}",
            file_bytes=one.file_bytes,
            val_error=one.val_error,
            test_error=tested.get(one.number),
            values=one.values,
        )
        for one in trials
    ]
    counts = Counter(one.state for one in trials)
    lead = ", ".join(f"{number} {state}" for state, number in counts.items())
    title = f"{job.config.model} on {job.config.data}: {len(front)} on the front"
    page = job.folder / "report.html"
    write_comparison(page, title, f"{job.config.method}; trials: {lead}", runs)
