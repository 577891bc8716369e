"""A search from beginning to end.

Takes     a recipe with a `[search]` table or a size, a folder, and the number of trials.
Gives     the folder: search.toml, study.db (unless trials are kept elsewhere), trials/, and what
          follows from them: front/ with a file for each size, front.json, report.html.
Unaware   of Optuna, and of how results are shown.

Selection is on validation data. Test data is read once no trial is left, for the files on the
front alone.
"""

import json
import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from reefknot.errors import CheckError, ConfigError, DivergedError, ReefknotError, TyingError
from reefknot.files import read_bytes, write_atomically
from reefknot.lab.report import compared, front_of, write_comparison
from reefknot.lab.runs.config import Config
from reefknot.lab.runs.folder import config_text, discard, make_folder, names_in, remove
from reefknot.lab.runs.parts import network_and_data
from reefknot.lab.runs.run import InterruptedRunError, errors_on_test, on_stop_signal, run
from reefknot.lab.searching.space import space_of, trial_config
from reefknot.lab.searching.study import Study, Trial, mutex
from reefknot.progress import doing

RECIPE = "search.toml"
Tell = Callable[[Trial], None]


@dataclass(frozen=True)
class Job:
    """What a worker works on."""

    config: Config
    folder: Path
    storage: str | None
    trials: int

    def open(self) -> Study:
        """Create or open the study."""
        recipe = config_text(self.folder, self.config)
        space, seed = space_of(self.config), self.config.seed
        return Study(self.folder, space, recipe, storage=self.storage, seed=seed)

    def place(self, number: int) -> Path:
        """The folder of a trial's run."""
        return self.folder / "trials" / f"{number:04d}"


class Found(NamedTuple):
    """A trial on the front; `file` is None if its run is not here but on another machine."""

    trial: int
    file_bytes: int
    val_error: float
    test_error: float | None
    values: Mapping[str, Any]
    file: str | None


@doing("searching")
def search(
    config: Config,
    folder: Path,
    *,
    trials: int,
    jobs: int = 1,
    storage: str | None = None,
    tell: Tell = lambda _: None,
) -> tuple[list[Found], int]:
    """Run trials until there are `trials` of them, those of earlier and other commands included.

    Gives the front so far, and the number of trials that other commands are running.

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
    if not front and not running:
        raise CheckError(f"no trial has a result; the last one: {found[-1].reason}")
    return front, len(running)


def _claim(folder: Path, config: Config) -> None:
    """Make the folder this search's own, or say why not."""
    make_folder(folder)
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


# -- workers: each takes trials and runs them, until there are none left ----------------------


def work(job: Job, tell: Tell) -> None:
    """Run trials as long as there are any to take; `tell` is called with each result."""
    study = job.open()
    while True:
        with study.take(job.trials) as trial:
            if trial is None:
                return
            try:
                with doing(f"trial {trial.number}, of {job.trials:,} in all"):
                    result = _run(trial, job)
            except InterruptedRunError as error:
                study.release(trial)
                raise InterruptedRunError("stopped; the same command continues") from error
            study.tell(result)
            tell(result)


def _run(trial: Trial, job: Job) -> Trial:
    """Run or resume a trial; gives what came of it."""
    place = job.place(trial.number)
    try:
        record = run(trial_config(job.config, trial.values), place, resume=place.exists())
    except (ConfigError, TyingError, DivergedError) as error:
        # A size that cannot be met, or settings that do not work together: others may.
        if place.exists():
            discard(place)
        return replace(trial, state="failed", reason=str(error))
    val_error, size = record["val_error"], record["file_bytes"]
    return replace(trial, state="finished", val_error=val_error, file_bytes=size)


def work_together(job: Job, jobs: int, tell: Tell) -> int:
    """Run trials in `jobs` processes until there are none left; gives how many were killed.

    Another worker takes over the trial of a killed one. After an error, Ctrl-C or SIGTERM all
    others stop, too, and write a checkpoint first.
    """
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, BaseProcess] = {}
    errors: list[ReefknotError] = []
    killed = 0

    def stop(error: ReefknotError) -> None:
        errors.append(error)
        for process in workers.values():
            process.terminate()

    with on_stop_signal(lambda: stop(InterruptedRunError("stopped; the same command continues"))):
        for _ in range(jobs):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_worker, args=(job, there))
            process.start()
            there.close()
            workers[here] = process
        while workers:
            for ready in wait(list(workers)):
                assert isinstance(ready, Connection)
                try:
                    said = ready.recv()
                except EOFError:  # it has ended
                    ended = workers.pop(ready)
                    ended.join()
                    killed += ended.exitcode != 0
                    continue
                if isinstance(said, Trial):
                    tell(said)
                else:
                    stop(said)
    if errors:
        raise errors[0]
    return killed


def _worker(job: Job, to_parent: Connection) -> None:
    """The body of a worker's process; it handles Ctrl-C during a run, the parent otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        work(job, to_parent.send)
    except BrokenPipeError:
        pass  # the parent has ended
    except ReefknotError as error:
        with suppress(OSError):
            to_parent.send(error)


# -- the front ------------------------------------------------------------------------------


def _conclude(job: Job, trials: Sequence[Trial], *, test: bool) -> list[Found]:
    """Write the results of a search; gives the front, the smallest file first.

    With `test` the files on the front are measured on test data. Nothing else ever is.
    """
    done = [one for one in trials if one.file_bytes]
    front = [done[place] for place in front_of([(one.file_bytes, one.val_error) for one in done])]
    files = _copied(job, front)
    errors = errors_on_test(job.config, files if test else [None] * len(files))
    found = []
    for one, file, error in zip(front, files, errors, strict=True):
        name = None if file is None else f"front/{file.name}"
        found.append(Found(one.number, one.file_bytes, one.val_error, error, one.values, name))
    rows = json.dumps([one._asdict() for one in found], indent=2)
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
            file_bytes=one.file_bytes or None,
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
