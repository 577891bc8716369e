"""Trials in Optuna's storage: locked by workers, and told their results.

Takes     a folder, where the storage is, and what is searched.
Gives     `Study`, from which workers on any machine take trials; a trial belongs to one worker.
Unaware   of how a trial is run.

A trial that a worker has taken is running, for Optuna, until its result is told, and locked until
then or until the worker dies. After that the next one that looks for work takes the same trial,
with the same values, and resumes it from its checkpoint.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from reefknot.errors import ConfigError, ReefknotError
from reefknot.lab.searching.space import Space, Value

try:
    import fcntl
except ImportError:  # there is none on Windows
    fcntl = None  # type: ignore[assignment]

MAX_DEATHS = 3  # of workers in one trial, which may be what kills them
_UNCLAIMED = timedelta(minutes=1)  # older trials without a worker: it was killed while taking them
_WORDS = {TrialState.COMPLETE: "finished", TrialState.FAIL: "failed"}


@dataclass(frozen=True)
class Trial:
    """A trial that a worker has taken, and what came of it."""

    number: int
    state: str = "running"  # or finished, failed
    values: Mapping[str, Value] = field(default_factory=dict)
    val_error: float = math.inf
    file_bytes: int = 0  # 0: none
    reason: str = ""  # why it failed


class Study:
    """The trials of one search, wherever they are kept.

    Args:
        folder: the folder of the search, which also holds the locks.
        space: what is searched.
        recipe: the text of the configuration; it must be that with which the study was started.
        storage: None for a SQLite file in the folder, a URL of a database, or a journal file.
        seed: of the values that are tried.
    """

    def __init__(
        self, folder: Path, space: Space, recipe: str, *, storage: str | None, seed: int
    ) -> None:
        self.folder, self.space, self.seed = folder, space, seed
        self._where = storage or str(folder / "study.db")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with mutex(folder), self._failures("could not be opened"):
            self._study = optuna.create_study(
                storage=_storage(storage, folder),
                study_name=folder.absolute().name,
                directions=["minimize", "minimize"],  # validation error, bytes
                load_if_exists=True,
            )
            before = self._study.user_attrs.get("recipe")
            if before is None:
                self._study.set_user_attr("recipe", recipe)
        if before not in (None, recipe):
            raise ConfigError(
                f"the study {self._study.study_name!r} in {_shown(self._where)} was started with "
                "another configuration; continue with that one, or choose another --out"
            )

    @contextmanager
    def take(self, most: int) -> Iterator[Trial | None]:
        """The next trial, which nobody else works on inside; None if there is nothing to do.

        It is one that was abandoned, or a new one up to `most`. It is locked in this folder: one
        that was begun in another (on another machine) has no lock here and is left alone.
        """
        with mutex(self.folder), self._failures("failed"):
            handle, trial = self._next(most)
        try:
            yield trial
        finally:
            if handle is not None:
                os.close(handle)

    def _next(self, most: int) -> tuple[int | None, Trial | None]:
        trials = self._study.get_trials(deepcopy=False)
        for found in trials:
            if found.state != TrialState.RUNNING:
                continue
            if "deaths" not in found.user_attrs:  # its worker was killed while taking it
                if datetime.now() - (found.datetime_start or datetime.min) > _UNCLAIMED:
                    self._study.tell(found.number, state=TrialState.FAIL)
            elif (handle := locked(self._lock(found.number))) is not None:
                deaths = found.user_attrs["deaths"] + 1
                taken = self._handle(found.number)
                taken.set_user_attr("deaths", deaths)
                if deaths < MAX_DEATHS:
                    return handle, _plain(found)
                taken.set_user_attr("reason", f"its worker was killed {MAX_DEATHS} times")
                self._study.tell(found.number, state=TrialState.FAIL)
                self._lock(found.number).unlink()
                os.close(handle)
        if sum("deaths" in found.user_attrs for found in trials) >= most:
            return None, None
        # The seed differs from that of earlier trials, and is the same after a restart.
        seed = (self.seed * 1_000_003 + len(trials)) % 2**32
        self._study.sampler = optuna.samplers.TPESampler(seed=seed)
        trial = self._study.ask(dict(self.space))
        handle = locked(self._lock(trial.number), make=True)
        trial.set_user_attr("deaths", 0)
        return handle, Trial(trial.number, values=trial.params)

    def release(self, trial: Trial) -> None:
        """Give a trial back for another worker, because this one was asked to stop."""
        with self._failures("failed"):
            handle = self._handle(trial.number)
            handle.set_user_attr("deaths", handle.user_attrs["deaths"] - 1)  # as it will be counted

    def tell(self, trial: Trial) -> None:
        """What came of a trial that this worker has taken."""
        with self._failures("failed"):
            self._handle(trial.number).set_user_attr("reason", trial.reason)
            if trial.file_bytes:
                self._study.tell(trial.number, [trial.val_error, trial.file_bytes])
            else:
                self._study.tell(trial.number, state=TrialState.FAIL)
        with mutex(self.folder):  # whoever looks at the lock has read what it belongs to
            self._lock(trial.number).unlink(missing_ok=True)

    def trials(self) -> list[Trial]:
        """All that workers have taken so far, in order."""
        with self._failures("failed"):
            trials = self._study.get_trials(deepcopy=False)
        return [_plain(trial) for trial in trials if "deaths" in trial.user_attrs]

    def _lock(self, number: int) -> Path:
        return self.folder / "workers" / f"{number:04d}"

    def _handle(self, number: int) -> optuna.Trial:
        """A trial that can be changed; one that another process took must be looked up first."""
        trial_id = self._study.get_trials(deepcopy=False)[number]._trial_id
        return optuna.Trial(self._study, trial_id)

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        """Turn the many errors of a database, its driver or a disk into one sentence."""
        try:
            yield
        except (ReefknotError, KeyboardInterrupt):
            raise
        except Exception as error:
            reason = " ".join(str(error).split("\n")[0].split())
            raise ReefknotError(
                f"the storage {_shown(self._where)} {what}: {type(error).__name__}: {reason}"
            ) from error


def _storage(where: str | None, folder: Path) -> Any:
    if where is None:
        url = f"sqlite:///{(folder / 'study.db').absolute()}"
        # Other workers may be writing.
        return optuna.storages.RDBStorage(url, {"connect_args": {"timeout": 60}})
    if "://" in where:
        return optuna.storages.RDBStorage(where)
    return optuna.storages.JournalStorage(JournalFileBackend(where))


def _shown(where: str) -> str:
    """A URL without the password in it."""
    return re.sub(r"//[^/]*@", "//…@", where)


def _plain(trial: FrozenTrial) -> Trial:
    error, size = trial.values if trial.state == TrialState.COMPLETE else (math.inf, 0)
    state, reason = _WORDS.get(trial.state, "running"), trial.user_attrs.get("reason", "")
    return Trial(trial.number, state, dict(trial.params), error, int(size), reason)


# -- locks, which end with the process that holds them --------------------------------------


@contextmanager
def mutex(folder: Path) -> Iterator[None]:
    """Wait until no other process that sees this folder holds the mutex, and hold it."""
    handle = _open(folder / "turn.lock", os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def locked(path: Path, *, make: bool = False) -> int | None:
    """A handle that holds the lock until it is closed; None if another one does.

    Without `make` also None if the file is not there.
    """
    if not make and not path.exists():
        return None
    handle = _open(path, os.O_CREAT if make else 0)
    with suppress(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    os.close(handle)
    return None


def _open(path: Path, flags: int) -> int:
    if fcntl is None:
        raise ReefknotError("a search needs file locks, which this system does not have")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | flags, 0o666)
    except OSError as error:
        raise ReefknotError(f"{path} could not be opened: {error.strerror}") from error
