"""Who is alive, and whose turn it is: locks that go with the process that holds them.

Takes     the folder of a search.
Gives     a turn, which one process has at a time, and a sign of life for each worker.
Unaware   of what is done in a turn.
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
def turn(folder: Path) -> Iterator[None]:
    """Wait until no other process that sees this folder has its turn."""
    handle = _open(folder / "turn.lock")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def alive(folder: Path) -> Iterator[str]:
    """A name for this worker, and until its process ends, however it ends, a sign of life.

    What a failure leaves behind is a name without life, as a kill does.
    """
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    path = folder / "workers" / name
    with turn(folder):  # so that nobody sees it without life
        handle = _open(path)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield name
        path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def is_dead(folder: Path, name: str) -> bool:
    """Whether a worker that began in this folder has ended without saying so.

    Of one that began in another folder nothing can be said here; it is taken to be alive.
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


def bury(folder: Path, keep: set[str]) -> None:
    """In a turn: forget workers that are dead, but for those that something waits for."""
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
