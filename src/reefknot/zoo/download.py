"""Bring a file from the network: checked, resumed, tried again, and never half there.

Takes     addresses of the same file, and a function that says what is wrong with a copy.
Gives     the file under its final name, only once that function has nothing to say.
Unaware   of what is in the file, and of any data set.
"""

import contextlib
import http.client
import logging
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from reefknot.errors import DataError
from reefknot.zoo.readers import MAX_CONTENT_BYTES

log = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 16
_TIMEOUT_SECONDS = 30
# Client errors that waiting may cure: request timeout, too early, too many requests.
_PASSING_STATUS = (408, 425, 429)


def download(
    urls: Sequence[str],
    target: Path,
    problem: Callable[[Path], str | None],
    *,
    attempts: int = 4,
    back_off_seconds: float = 0.5,
) -> None:
    """Make `target` exist and be right, from the first of `urls` that works.

    What has arrived stays in `target` + ".part", where the next attempt, or the next run, goes on.

    Args:
        urls: addresses of the same content, the preferred one first.
        target: where the file goes; its folder is made.
        problem: looks at a complete file; gives None, or what is wrong with it.
        attempts: per address; a wrong or missing file is not asked for twice.
        back_off_seconds: wait before the second attempt, twice as long before each further one.

    Raises:
        DataError: naming each address and why it failed.
    """
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder {target.parent}: {error.strerror}") from None
    failures = []
    with _only_process_in(target.parent):
        if target.is_file() and problem(target) is None:
            return  # another process brought it while we waited
        for url in urls:
            log.info("downloading %s", url)
            failure = _try_url(url, part, problem, attempts, back_off_seconds)
            if failure is None:
                part.replace(target)
                return
            failures.append(f"{url} ({failure})")
    raise DataError(f"cannot download {target.name}: tried {', '.join(failures)}")


def _try_url(
    url: str,
    part: Path,
    problem: Callable[[Path], str | None],
    attempts: int,
    back_off_seconds: float,
) -> str | None:
    """Complete `part` from one address; None if it is right, else why it is not."""
    failure = "not tried"
    for attempt in range(attempts):
        if attempt:
            time.sleep(back_off_seconds * 2 ** (attempt - 1))
        try:
            resumed = _append(url, part)
        except urllib.error.HTTPError as error:
            error.close()
            failure = f"HTTP {error.code} {error.reason}"
            if 400 <= error.code < 500 and error.code not in _PASSING_STATUS:
                return failure
            continue
        except (OSError, http.client.HTTPException) as error:
            failure = str(getattr(error, "reason", error)) or type(error).__name__
            continue
        wrong = problem(part)
        if wrong is None:
            return None
        failure = wrong
        part.unlink()
        # A file whose start came from elsewhere deserves a fresh try; a whole one is just wrong.
        if not resumed:
            break
    return failure


def _append(url: str, part: Path) -> bool:
    """Fetch what `part` still lacks; True if it went on from bytes that were there before."""
    have_bytes = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "reefknot", "Accept-Encoding": "identity"}
    if have_bytes:
        headers["Range"] = f"bytes={have_bytes}-"
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_SECONDS
        )
    except urllib.error.HTTPError as error:
        if have_bytes and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            error.close()
            return True  # nothing comes after what we have: complete, or wrong
        raise
    with response:
        span = response.headers.get("Content-Range", "")
        resumed: bool = response.status == 206 and span.startswith(f"bytes {have_bytes}-")
        if response.status == 206 and not resumed:
            part.unlink(missing_ok=True)
            raise ConnectionError(f"asked for bytes from {have_bytes}, was offered {span!r}")
        length = response.headers.get("Content-Length")
        arrived_bytes = 0
        with part.open("ab" if resumed else "wb") as file:
            while block := response.read(_BLOCK_BYTES):
                file.write(block)
                arrived_bytes += len(block)
                if arrived_bytes > MAX_CONTENT_BYTES:
                    raise ConnectionError(f"sends more than {MAX_CONTENT_BYTES:,} bytes")
    # http.client ends a read in blocks quietly when the connection drops.
    if length is not None and arrived_bytes < int(length):
        raise ConnectionError(f"connection dropped after {arrived_bytes:,} of {length} bytes")
    return resumed


def extract(archive: Path, wanted: Mapping[str, Path]) -> None:
    """Copy members of a gzipped tar file to the paths given for them, and touch nothing else.

    Only regular files with exactly these names are read, and no name, link, owner or permission
    in the archive decides where anything is written.
    """
    missing = set(wanted)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.name not in wanted or not member.isreg():
                    continue
                if member.size > MAX_CONTENT_BYTES:
                    raise DataError(f"{archive.name}: {member.name} is too large ({member.size:,})")
                source = tar.extractfile(member)
                assert source is not None  # it is a regular file
                with source, wanted[member.name].open("wb") as file:
                    shutil.copyfileobj(source, file)
                missing.discard(member.name)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{archive}: not a readable tar.gz file ({error})") from None
    if missing:
        raise DataError(f"{archive}: lacks {', '.join(sorted(missing))}")


@contextlib.contextmanager
def _only_process_in(folder: Path) -> Iterator[None]:
    """Let one process at a time download into a folder, where the system has such locks."""
    try:
        import fcntl
    except ImportError:  # Windows: two first runs at once may have to try again
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems have no locks; the checksum still guards the result.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
