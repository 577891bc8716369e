"""Locks that end with the process that holds them.

Takes     a file.
Gives     a mutex that waits, and a lock that tells whether another process holds it.
Unaware   of what is done under them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reefknot.errors import ReefknotError

try:
    import fcntl
except ImportError:  # there is none on Windows
    fcntl = None  # type: ignore[assignment]


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
