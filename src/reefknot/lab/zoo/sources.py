"""Where the files of MNIST and CIFAR-10 are, and their download.

Takes     nothing but the machine: `REEFKNOT_DATA` (a folder the user names), then the user's cache
          (on Linux `$XDG_CACHE_HOME/reefknot` or `~/.cache/reefknot`), then the network.
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
CIFAR10_TRAIN = tuple(name for name in CIFAR10_SHA256 if name != CIFAR10_TEST)
CIFAR10_URLS = ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)
CIFAR10_HASH = "md5:c32a1d4ab5d03f1284b67883e8d87530"

_RETRIES = 2  # per address; pooch waits one second, then two


def mnist_contents() -> dict[str, bytes]:
    """The unpacked content of MNIST's four IDX files, by name."""
    places = ("", "mnist", "MNIST/raw")
    return _contents("MNIST", MNIST_SHA256, places, "mnist", _fetch_mnist)


def cifar10_contents() -> dict[str, bytes]:
    """The content of the six binary files of CIFAR-10, by name."""
    places = (CIFAR10_FOLDER,)
    return _contents("CIFAR-10", CIFAR10_SHA256, places, CIFAR10_FOLDER, _fetch_cifar10)


def _contents(
    what: str,
    sums: Mapping[str, str],
    places: Sequence[str],
    cached: str,
    fetch: Callable[[Path], None],
) -> dict[str, bytes]:
    """Files from one of these places in the user's own folder, or from the cache.

    The cache is filled first if a file in it is missing or damaged.
    """
    own = named_folder()
    for place in (own / name for name in places) if own else ():
        if found := _read(place, sums):
            _check_own(what, place, found, sums)
            return found
    place = cache_folder() / cached
    found = _read(place, sums)
    if len(found) == len(sums) and not _unpublished(found, sums):
        return found
    try:
        fetch(place)
    except DataError as error:
        raise DataError(
            f"{what} is not on this machine: {error}. Put the files {', '.join(sums)} in a folder "
            f"{cached} and set REEFKNOT_DATA to the one that this is in"
        ) from None
    return _read(place, sums)


def _read(place: Path, names: Collection[str]) -> dict[str, bytes]:
    """The content of those files that are there, gzipped or not."""
    paths = {name: (place / name, place / f"{name}.gz") for name in names}
    found = {name: next(filter(Path.is_file, pair), None) for name, pair in paths.items()}
    return {name: read_content(path) for name, path in found.items() if path}


def _unpublished(contents: Mapping[str, bytes], sums: Mapping[str, str]) -> dict[str, str]:
    """The SHA-256 of each file whose content is not the published one."""
    found = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    return {name: digest for name, digest in found.items() if digest != sums[name]}


def _check_own(what: str, place: Path, found: Mapping[str, bytes], sums: Mapping[str, str]) -> None:
    """Refuse a folder with only some of the files, and say if they are not the published ones."""
    missing = [name for name in sums if name not in found]
    if missing:
        raise DataError(
            f"{place} (REEFKNOT_DATA) holds {len(found)} of the {len(sums)} files, "
            f"it lacks {', '.join(missing)}"
        )
    if wrong := _unpublished(found, sums):
        name, digest = next(iter(wrong.items()))
        log.warning(
            "%s is not the published %s: %d of its %d files differ (SHA-256 of %s is %s..., "
            "expected %s...); they are used as they are, but errors do not compare with those on "
            "the published images",
            *(place, what, len(wrong), len(sums), name, digest[:12], sums[name][:12]),
        )


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
    import pooch

    return Path(pooch.os_cache("reefknot"))


# -- downloads ------------------------------------------------------------------------------


def _fetch_mnist(place: Path) -> None:
    for name, digest in MNIST_SHA256.items():
        urls = [f"{mirror}{name}.gz" for mirror in MNIST_MIRRORS]
        download(urls, place / name, digest, gunzipped)


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
    except OSError as error:
        raise DataError(f"cannot unpack CIFAR-10 to {place}: {error}") from None


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
