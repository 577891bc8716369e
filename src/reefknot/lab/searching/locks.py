"""Locks that end with the process that holds them.

Takes     the folder of a search.
Gives     a mutex for all processes of the search, and a liveness lock for each worker.
Unaware   of what is done under the mutex.
"""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reefknot.errors import ReefknotError

try:
    import fcntl
except ImportError:  # there is none on Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def mutex(folder: Path) -> Iterator[None]:
    """Wait until no other process that sees this folder holds the mutex, and hold it."""
    handle = _open(folder / "turn.lock")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def alive(folder: Path) -> Iterator[str]:
    """A name for this worker, with a lock that is held until its process ends, however it ends.

    A worker that fails or is killed leaves its file behind, unlocked.
    """
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    path = folder / "workers" / name
    with mutex(folder):  # so that nobody sees the file unlocked
        handle = _open(path)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield name
        path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def is_dead(folder: Path, name: str) -> bool:
    """Whether a worker that started in this folder has failed or was killed.

    A worker that started in another folder (on another machine) is taken to be alive.
    """
    try:
        handle = os.open(folder / "workers" / name, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def forget_dead(folder: Path, keep: set[str]) -> None:
    """Delete the files of dead workers, except those in `keep`; the caller holds the mutex."""
    for path in (folder / "workers").iterdir():
        if path.name not in keep and is_dead(folder, path.name):
            path.unlink(missing_ok=True)


def _open(path: Path) -> int:
    if fcntl is None:
        raise ReefknotError("a search needs file locks, which this system does not have")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise ReefknotError(f"{path} could not be opened: {error.strerror}") from error
