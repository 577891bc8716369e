"""Files: atomic writing, so that a reader sees the old or the new one; regular files only."""

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from reefknot.errors import ReefknotError

_BINARY = getattr(os, "O_BINARY", 0)
_WRITE_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY  # do not block on a pipe


def write_atomically(path: Path | str, data: bytes) -> None:
    """Write these bytes to a file, atomically."""
    with writing_atomically(path) as file:
        file.write(data)


@contextlib.contextmanager
def writing_atomically(path: Path | str) -> Iterator[BinaryIO]:
    """A temporary file in the same folder, which is flushed to disk and renamed at the end.

    A symbolic link is followed, and the file gets the permissions that an ordinary new file would
    get. If anything goes wrong, the old file stays as it was.
    """
    check_target(path)
    target = Path(os.path.realpath(path))
    temporary = None
    try:
        mode = _rights_of(target)
        # Only part of the name, which may have the maximal length already.
        start = os.fsdecode(os.fsencode(target.name)[:200])
        name = target.with_name(f".{start}.{secrets.token_hex(4)}.tmp")
        # The system applies the umask to a new file; a process cannot read it safely.
        handle = os.open(name, _WRITE_NEW, 0o666 if mode is None else 0o600)
        temporary = name
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise ReefknotError(f"{path} could not be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _rights_of(target: Path) -> int | None:
    try:
        return target.stat().st_mode & 0o777
    except FileNotFoundError:
        return None


def check_target(path: Path | str) -> bool:
    """Whether the file exists; raises for a folder, device or pipe, which must not be replaced."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False  # it does not exist, or writing will say what is wrong
    if stat.S_ISDIR(mode):
        raise ReefknotError(f"{path} is a folder; name a file")
    if not stat.S_ISREG(mode):
        raise ReefknotError(f"{path} is a device, a pipe or a socket; name a file")
    return True


def check_place(path: Path | str) -> None:
    """Stop before work is done for a file that cannot be written where it is to be."""
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise ReefknotError(f"{path} could not be written: there is no folder {folder}")


def _sync_folder(folder: Path) -> None:
    """Flush the rename to disk; not every system allows opening a folder for that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def reading(path: Path | str) -> Iterator[io.BufferedReader]:
    """A file to read from, or a one-sentence error.

    Only regular files are read: a device may be endless, and a pipe may never deliver anything.
    """
    try:
        with os.fdopen(_open_regular(path), "rb") as file:
            yield file
    except OSError as error:
        raise ReefknotError(f"{path} could not be read: {error.strerror or error}") from error


def read_bytes(path: Path | str) -> bytes:
    """A file's bytes, or a one-sentence error."""
    with reading(path) as file:
        return file.read()


def _open_regular(path: Path | str) -> int:
    handle = os.open(path, _READ)  # checked after opening, so that it cannot be swapped
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise ReefknotError(f"{path} is a device, a pipe or a socket; name a file")
    except BaseException:
        os.close(handle)
        raise
    return handle
