"""The folder of a run, which is locked before anything in it is read or changed.

Takes     a folder and a configuration.
Gives     a claim: the folder belongs to this run, new or resumed; or an error that says why not.
Unaware   of what the files hold, except for config.toml, which says whose folder it is.
"""

import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from reefknot.errors import ConfigError, FormatError, ReefknotError
from reefknot.files import read_bytes, write_atomically
from reefknot.lab.runs.config import Config, to_toml

try:
    import fcntl
except ImportError:  # there is none on Windows
    fcntl = None  # type: ignore[assignment]

_FILES = (
    "config.toml",
    "metrics.jsonl",
    "checkpoint.safetensors",
    "model.reef",
    "model.safetensors",
    "record.json",
    "report.html",
)


class Claim:
    """A locked folder of this run, or a new one; `names` are the files that it resumes from."""

    def __init__(self, folder: Path, config: Config, *, resume: bool, force: bool) -> None:
        self.folder = folder
        self._text = config_text(folder, config)
        self.began = False  # True for a new run, False for a resumed one
        found = names_in(folder)
        self.names = found
        if force:
            _check_only_ours(folder)
            self.names = set()
        elif resume and "config.toml" in found:
            _check_same(folder, self._text)
        elif found and not (resume and found == _litter(found)):
            raise ConfigError(
                f"{folder} already exists; add --resume to continue in it, --force to delete what "
                "a run has written there, or choose another --out"
            )

    def take(self) -> None:
        """Make the folder this run's own: delete the files that it does not resume from."""
        found = names_in(self.folder)
        remove(self.folder, _litter(found))  # left by a kill inside a write
        if "config.toml" not in self.names:
            clear(self.folder)
            self.began = True
            write_atomically(self.folder / "config.toml", self._text.encode())

    def drop(self) -> None:
        """After a failure: delete the files of a new run, unless it has something worth keeping."""
        names = names_in(self.folder)
        if self.began and names - _litter(names) <= {"config.toml", "metrics.jsonl"}:
            remove(self.folder, names)


@contextmanager
def claimed(folder: Path, config: Config, *, resume: bool, force: bool) -> Iterator[Claim]:
    """The folder, locked before anything in it is read or changed.

    If the run fails before it has anything worth keeping, what it has written is deleted.
    """
    with locked(folder, make=not resume) as made:
        claim = None
        try:
            claim = Claim(folder, config, resume=resume, force=force)
            yield claim
        except BaseException:
            with suppress(ReefknotError, OSError):
                if claim:
                    claim.drop()
                if made:
                    folder.rmdir()  # fails if anything is left in it
            raise


@contextmanager
def locked(folder: Path, *, make: bool) -> Iterator[bool]:
    """Lock the folder against other runs; the lock ends with the process.

    Gives whether the folder was created here. Without `make` it must exist.
    """
    for _ in range(100):
        made = make and make_folder(folder)
        handle = _lock(folder)
        if handle is not None:
            break
        if not make:
            raise ConfigError(
                f"{folder} does not exist, so there is nothing to resume; start without --resume"
            )
    else:
        raise ReefknotError(f"{folder} could not be made")
    try:
        yield made
    finally:
        if handle >= 0:
            os.close(handle)


def make_folder(folder: Path) -> bool:
    """Whether it was not there before."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise ReefknotError(f"{folder} could not be made: {error.strerror}") from error
    return True


def _lock(folder: Path) -> int | None:
    """A handle that holds the lock, or None if the folder does not exist.

    A run that failed in it may have removed it in the meantime.
    """
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise ConfigError(f"{folder} is a file; --out names a folder")
        if fcntl is None:
            return -1
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReefknotError(f"{folder} could not be opened: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), folder.stat()):
            return handle
    except FileNotFoundError:
        pass
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise ReefknotError(f"another process is running in {folder}; wait for it") from error
        raise ReefknotError(f"{folder} could not be locked: {error.strerror}") from error
    os.close(handle)
    return None


def _check_only_ours(folder: Path) -> None:
    """Refuse to clear a folder that contains files that no run has written."""
    names = names_in(folder)
    strangers = names - _litter(names) - {*_FILES, "baseline"}
    if strangers:
        raise ConfigError(
            f"{folder} holds {min(strangers)!r}, which no run has written; choose another --out"
        )
    if "baseline" in names:
        _check_only_ours(folder / "baseline")


def clear(folder: Path) -> None:
    """Delete what a run has written, and its baseline."""
    names = names_in(folder)
    if "baseline" in names:
        discard(folder / "baseline")
    remove(folder, names & {*_FILES})


def discard(folder: Path) -> None:
    """Delete a run, and its folder if that had nothing else in it."""
    clear(folder)
    with suppress(OSError):
        folder.rmdir()


def names_in(folder: Path) -> set[str]:
    """What lies in a folder."""
    try:
        return set(os.listdir(folder))
    except OSError as error:
        raise ReefknotError(f"{folder} could not be read: {error.strerror}") from error


def _litter(names: set[str]) -> set[str]:
    """Temporary files of writes that were killed."""
    return {
        n for n in names if n.endswith(".tmp") and n.startswith(tuple(f".{f}." for f in _FILES))
    }


def remove(folder: Path, names: Iterable[str]) -> None:
    """Delete these files if they exist."""
    for name in names:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise ReefknotError(
                f"{folder / name} could not be deleted: {error.strerror}"
            ) from error


def _check_same(folder: Path, text: str) -> None:
    kept = folder / "config.toml"
    try:
        before = _entries(tomllib.loads(read_bytes(kept).decode()))
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{kept} is damaged: it is not valid TOML ({error}); add --force to start over"
        ) from error
    changed = sorted(before ^ _entries(tomllib.loads(text)))
    if changed:
        raise ConfigError(
            f"{folder} was started with another configuration (differing: {'; '.join(changed)}); "
            "resume with the same one, add --force to start over, or choose another --out"
        )


def _entries(table: Mapping[str, Any], prefix: str = "") -> set[str]:
    """All entries of a configuration, one line each: "optimizer.lr = 0.5"."""
    found = set()
    for key, value in table.items():
        inner = isinstance(value, Mapping)
        found |= _entries(value, f"{prefix}{key}.") if inner else {f"{prefix}{key} = {value!r}"}
    return found


def config_text(folder: Path, config: Config) -> str:
    """The configuration as stored in a folder: paths are relative, so that it can be moved."""
    start = None if config.start is None else os.path.relpath(config.start, folder)
    teachers = [os.path.relpath(path, folder) for path in config.distillation.teachers]
    distillation = replace(config.distillation, teachers=teachers)
    return to_toml(replace(config, start=start, distillation=distillation))
