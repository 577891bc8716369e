"""Downloads a file with `pooch`: checked, retried, and never half written.

Takes     addresses of the same file, and the hash that it must have.
Gives     the file under its final name, only once its hash is right.
Unaware   of what is in the file, and of any data set.

`pooch` downloads to a temporary file beside the target and renames it, so that processes that
fetch the same file at once do each other no harm.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reefknot.errors import DataError
from reefknot.lab.zoo.readers import read_content

_RETRIES = 2  # per address; pooch waits one second, then two


def download(
    urls: Sequence[str],
    target: Path,
    known_hash: str,
    downloader: Callable[[str, str, Any], None] | None = None,
) -> None:
    """Download `target` from the first of `urls` that works, unless it is there and right.

    Args:
        urls: addresses of the same content, the preferred one first.
        target: where the file goes; its folder is made.
        known_hash: SHA-256 of the file, or "algorithm:hash".
        downloader: one of pooch's downloaders; None for plain HTTP.

    Raises:
        DataError: naming each address and why it failed.
    """
    import pooch

    failures = []
    for url in urls:
        fetcher = pooch.create(
            path=target.parent,
            base_url="",
            registry={target.name: known_hash},
            urls={target.name: url},
            retry_if_failed=_RETRIES,
        )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fetcher.fetch(target.name, downloader=downloader)
            return
        except (FileExistsError, NotADirectoryError, PermissionError) as error:
            reason = error.strerror or "permission denied"
            raise DataError(f"cannot use the folder {target.parent}: {reason}") from None
        except (OSError, ValueError) as error:  # what requests raises is an OSError
            failures.append(f"{url} ({_reason(error)})")
    raise DataError(f"cannot download {target.name}: tried {', '.join(failures)}")


def gunzipped(url: str, output_file: str, pooch: Any) -> None:
    """A downloader that unpacks gzip data, so that pooch checks the content and keeps that."""
    from pooch import HTTPDownloader

    HTTPDownloader()(url, output_file, pooch)
    path = Path(output_file)
    try:
        path.write_bytes(read_content(path))
    except DataError as error:
        raise ValueError(str(error).removeprefix(f"{path}: ")) from None


def untar(archive: Path) -> None:
    """Unpack a tar file whose hash was checked into the folder it is in."""
    from pooch import Untar

    Untar(extract_dir=".")(str(archive), "download", None)


def _reason(error: Exception) -> str:
    """The first sentence of what went wrong, without the names of requests' and urllib3's layers.

    >>> _reason(OSError("404 Client Error: Not Found for url: http://here/file"))
    '404 Client Error: Not Found'
    """
    inner: Any = error
    while isinstance(inner, Exception):
        reason = getattr(inner, "reason", None) or getattr(inner, "strerror", None)
        inner = reason or (*inner.args, type(inner).__name__)[0]
    return str(inner).rpartition("): ")[2].partition(" for url: ")[0].partition(". ")[0]
