"""Writing files so that a reader finds the old one or the new one, never half of either."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from reefknot.errors import ReefknotError


def write_atomically(path: Path | str, data: bytes) -> None:
    """Write a file of these bytes, whole or not at all."""
    with writing_atomically(path) as file:
        file.write(data)


@contextlib.contextmanager
def writing_atomically(path: Path | str) -> Iterator[BinaryIO]:
    """A temporary file in the same folder, which is flushed to disk and renamed at the end.

    A symbolic link is followed, and the file gets the rights that an ordinary new file would get.
    If anything goes wrong the old file stays as it was.
    """
    check_target(path)
    target = Path(os.path.realpath(path))
    temporary = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~umask)
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise ReefknotError(f"{path} could not be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_target(path: Path | str) -> bool:
    """Whether there is a file; a folder, a device or a pipe, which must not be replaced, raises."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False  # there is nothing yet, or the writing itself will say why not
    if stat.S_ISDIR(mode):
        raise ReefknotError(f"{path} is a folder; name a file")
    if not stat.S_ISREG(mode):
        raise ReefknotError(f"{path} is a device, a pipe or a socket; name a file")
    return True


def _sync_folder(folder: Path) -> None:
    """Make the rename itself last; not every system lets a folder be opened for that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_bytes(path: Path | str) -> bytes:
    """A file's bytes, or one sentence that says why not."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ReefknotError(f"{path} could not be read: {error.strerror or error}") from error
