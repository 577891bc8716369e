"""Workers of a search: each takes trials and runs them, until there are none left to take.

Takes     a `Job`: the recipe, the folder, where trials are kept and how many are wanted.
Gives     a run's folder for each trial in trials/, and every result to the study. Several workers
          at a time are processes of one thread.
Unaware   of what is done with the results.
"""

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from reefknot.errors import ConfigError, DivergedError, ReefknotError, TyingError
from reefknot.lab.runs.config import Config
from reefknot.lab.runs.folder import clear, config_text
from reefknot.lab.runs.run import InterruptedRunError, on_stop_signal, run
from reefknot.lab.searching.space import space_of, trial_config
from reefknot.lab.searching.study import Study, Trial
from reefknot.progress import doing

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
            clear(place)
            with suppress(OSError):
                place.rmdir()
        return replace(trial, state="failed", reason=str(error))
    val_error, size = record["val_error"], record["file_bytes"]
    return replace(trial, state="finished", val_error=val_error, file_bytes=size)


# -- several at a time ----------------------------------------------------------------------


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
