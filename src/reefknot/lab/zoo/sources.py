"""Where the files of MNIST and CIFAR-10 are, and their download.

Takes     nothing but the machine: `REEFKNOT_DATA` (a folder the user names), then the user's cache
          (`$XDG_CACHE_HOME/reefknot` or `~/.cache/reefknot`), then the network.
Gives     the content of the files of MNIST, and of CIFAR-10.
Unaware   of tensors and splits.

A file in the user's own folder is theirs to choose: with another checksum it is used, and a warning
says so. What is downloaded must be the published data. The checksums are those of unpacked files:
the same images of MNIST travel in several gzip files, and CIFAR-10 travels re-encoded. `pooch`
downloads to a temporary file beside the target and renames it once its hash is right, so that
processes that fetch the same file at once do each other no harm.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from reefknot.errors import DataError
from reefknot.lab.zoo.readers import read_content

log = logging.getLogger(__name__)

MNIST_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)

CIFAR10_FOLDER = "cifar-10-batches-bin"
CIFAR10_TEST = "test_batch.bin"
CIFAR10_SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    CIFAR10_TEST: "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
CIFAR10_BYTES = 30_730_000  # of each file
CIFAR10_TRAIN = tuple(name for name in CIFAR10_SHA256 if name != CIFAR10_TEST)
CIFAR10_URLS = ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)
CIFAR10_HASH = "md5:c32a1d4ab5d03f1284b67883e8d87530"

_RETRIES = 2  # per address; pooch waits one second, then two


def mnist_contents() -> dict[str, bytes]:
    """The unpacked content of MNIST's four IDX files, by name."""
    own = named_folder()
    for place in (own, own / "mnist", own / "MNIST" / "raw") if own else ():
        paths = {name: path for name in MNIST_SHA256 if (path := _mnist_path(place, name))}
        if paths:
            _check_complete(place, MNIST_SHA256, paths)
            return {name: _own_mnist_content(path, name) for name, path in paths.items()}
    return {name: _cached_mnist_content(name) for name in MNIST_SHA256}


def cifar10_contents() -> dict[str, bytes]:
    """The content of the six binary files of CIFAR-10, by name."""
    own = named_folder()
    if own and (own / CIFAR10_FOLDER).is_dir():
        return _own_cifar10_contents(own / CIFAR10_FOLDER)
    place = cache_folder() / CIFAR10_FOLDER
    if all((place / name).is_file() for name in CIFAR10_SHA256):
        contents = {name: read_content(place / name) for name in CIFAR10_SHA256}
        if not _unpublished(contents):
            return contents
    _fetch_cifar10(place)
    return {name: read_content(place / name) for name in CIFAR10_SHA256}


def named_folder() -> Path | None:
    """The folder in `REEFKNOT_DATA`, if the user names one."""
    name = os.environ.get("REEFKNOT_DATA")
    if not name:
        return None
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise DataError(f"REEFKNOT_DATA names {name!r}, which is not a folder; correct or unset it")
    return folder


def cache_folder() -> Path:
    """Where downloads are kept for the next run."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        raise DataError(
            "no home folder to keep downloads in; set XDG_CACHE_HOME, or REEFKNOT_DATA to a "
            "folder with the data"
        ) from None
    return Path(base) / "reefknot"


def _check_complete(place: Path, expected: Collection[str], found: Collection[str]) -> None:
    """Refuse a user's folder with only some of the files, instead of mixing in downloads."""
    missing = [name for name in expected if name not in found]
    if missing:
        raise DataError(
            f"{place} (REEFKNOT_DATA) holds {len(found)} of the {len(expected)} files, "
            f"it lacks {', '.join(missing)}"
        )


def _mnist_path(place: Path, name: str) -> Path | None:
    candidates = (place / name, place / f"{name}.gz")
    return next((path for path in candidates if path.is_file()), None)


def _own_mnist_content(path: Path, name: str) -> bytes:
    content = read_content(path)
    found, expected = hashlib.sha256(content).hexdigest(), MNIST_SHA256[name]
    if found != expected:
        log.warning(
            "%s is not the published file (SHA-256 of the content is %s..., expected %s...); "
            "it is used as it is",
            *(path, found[:12], expected[:12]),
        )
    return content


def _cached_mnist_content(name: str) -> bytes:
    """From the cache, filling it first if the file is missing or damaged."""
    path = cache_folder() / "mnist" / name
    urls = [f"{mirror}{name}.gz" for mirror in MNIST_MIRRORS]
    try:
        download(urls, path, MNIST_SHA256[name], gunzipped)
    except DataError as error:
        raise DataError(
            f"MNIST is not on this machine: {error}. Put the four files "
            f"{', '.join(f'{name}[.gz]' for name in MNIST_SHA256)} in a folder and set "
            "REEFKNOT_DATA to it"
        ) from None
    return read_content(path)


def _own_cifar10_contents(place: Path) -> dict[str, bytes]:
    found = [name for name in CIFAR10_SHA256 if (place / name).is_file()]
    _check_complete(place, CIFAR10_SHA256, found)
    contents = {name: read_content(place / name) for name in found}
    for name, content in contents.items():
        if len(content) != CIFAR10_BYTES:
            raise DataError(
                f"{place / name}: expected {CIFAR10_BYTES:,} bytes, found {len(content):,}; get "
                f"the file again from {CIFAR10_URLS[0]}"
            )
    if wrong := _unpublished(contents):
        name, digest = next(iter(wrong.items()))
        log.warning(
            "%s is not the published CIFAR-10: %d of its 6 files differ (SHA-256 of %s is %s..., "
            "expected %s...); they are used as they are, but errors do not compare with those on "
            "the published images, which are at %s",
            *(place, len(wrong), name, digest[:12], CIFAR10_SHA256[name][:12], CIFAR10_URLS[0]),
        )
    return contents


def _unpublished(contents: Mapping[str, bytes]) -> dict[str, str]:
    """The SHA-256 of each file of CIFAR-10 whose content is not the published one."""
    found = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    return {name: digest for name, digest in found.items() if digest != CIFAR10_SHA256[name]}


def _fetch_cifar10(place: Path) -> None:
    """Download the archive, and move its six files into place, each of them whole."""
    import pooch

    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as temporary:
            archive = Path(temporary) / "cifar-10-binary.tar.gz"
            download(CIFAR10_URLS, archive, CIFAR10_HASH)
            pooch.Untar(extract_dir=".")(str(archive), "download", None)
            for name in CIFAR10_SHA256:
                (archive.parent / CIFAR10_FOLDER / name).replace(place / name)
    except DataError as error:
        raise DataError(
            f"CIFAR-10 is not on this machine: {error}. Put the folder {CIFAR10_FOLDER} (the "
            "binary version) in a folder and set REEFKNOT_DATA to that one"
        ) from None
    except OSError as error:
        raise DataError(f"cannot unpack CIFAR-10 to {place}: {error}") from None


# -- downloads ------------------------------------------------------------------------------


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
