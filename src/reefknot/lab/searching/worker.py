"""One process of a search: takes trials and runs them, until there are none left to take.

Takes     a `Job`: the recipe, the folder, where trials are kept and how many are wanted.
Gives     a run's folder for each trial in trials/, and every result to the study.
Unaware   of other workers, and of what is done with the results.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reefknot.errors import ConfigError, DivergedError, ReefknotError, TyingError
from reefknot.lab.runs.config import Config
from reefknot.lab.runs.folder import clear, config_text
from reefknot.lab.runs.journal import read_rows
from reefknot.lab.runs.run import InterruptedRunError, run
from reefknot.lab.runs.training import Progress
from reefknot.lab.searching.locks import alive
from reefknot.lab.searching.pruning import Curve, Finished, unpromising
from reefknot.lab.searching.space import space_of, trial_config
from reefknot.lab.searching.study import Study, Task, Trial
from reefknot.progress import doing


@dataclass(frozen=True)
class Job:
    """What a worker works on."""

    config: Config
    folder: Path
    storage: str | None
    trials: int
    examples: int  # for validation

    def open(self) -> Study:
        """Create or open the study."""
        recipe = config_text(self.folder, self.config)
        space, seed = space_of(self.config), self.config.seed
        return Study(self.folder, space, recipe, storage=self.storage, seed=seed)

    def place(self, number: int) -> Path:
        """The folder of a trial's run."""
        return self.folder / "trials" / f"{number:04d}"


class _PrunedError(ReefknotError):
    """The run is not worth its remaining steps."""


def work(job: Job, tell: Callable[[Trial], None]) -> None:
    """Run trials as long as there are any to take; `tell` is called with each result."""
    with alive(job.folder) as name:
        study = job.open()
        while (task := study.take(name, job.trials)) is not None:
            try:
                with doing(f"trial {task.number}, of {job.trials:,} in all"):
                    result = _run(task, job, study)
            except InterruptedRunError as error:
                study.release(task)
                raise InterruptedRunError("stopped; the same command continues") from error
            tell(result)


def _run(task: Task, job: Job, study: Study) -> Trial:
    """Run or resume a trial, and tell the study its result."""
    place = job.place(task.number)
    try:
        config = trial_config(job.config, task.values)
        watch = _Watch(config, place, study.finished(), job.examples)
        record = run(config, place, resume=place.exists(), display=watch)
    except _PrunedError:
        curve = watch.curve
        _discard(place)
        study.tell_pruned(task, curve)
        return Trial(task.number, "pruned", task.values, curve=curve)
    except (ConfigError, TyingError, DivergedError) as error:
        # A size that cannot be met, or settings that do not work together: others may.
        _discard(place)
        study.tell_failed(task, str(error))
        return Trial(task.number, "failed", task.values, reason=str(error))
    found = (record["val_error"], record["file_bytes"], watch.curve)
    study.tell_finished(task, *found)
    return Trial(task.number, "finished", task.values, *found)


def _discard(place: Path) -> None:
    """Delete what a run without a result has left."""
    if place.exists():
        clear(place)
        with suppress(OSError):
            place.rmdir()


class _Watch:
    """Looks at a run's measurements, and ends it if it is unpromising."""

    def __init__(
        self, config: Config, place: Path, finished: list[Finished], examples: int
    ) -> None:
        self._steps = config.plan.steps
        self._target = config.settings.get("target_bytes")
        self._place, self._finished, self._examples = place, finished, examples
        self.curve: Curve = ()

    def stepped(self, progress: Progress) -> None:
        """Nothing is decided at a step."""

    def measured(self, row: dict[str, Any]) -> None:
        """A row was written; the curve includes steps that earlier workers ran."""
        rows = read_rows(self._place)
        self.curve = [(found["step"] / self._steps, found["val_error"]) for found in rows]
        size = self._target or row.get("predicted_bytes")
        is_done = row["step"] >= self._steps
        if is_done or not size:
            return
        if unpromising(self.curve, size, self._finished, self._examples):
            raise _PrunedError
