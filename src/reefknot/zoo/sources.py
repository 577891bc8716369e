"""Where the files of MNIST and CIFAR-10 are.

Takes     nothing but the machine: `REEFKNOT_DATA` (a folder the user names), then the user's cache
          (`$XDG_CACHE_HOME/reefknot` or `~/.cache/reefknot`), then the network.
Gives     the content of MNIST's files, the folder of CIFAR-10's.
Unaware   of tensors and splits.

A file in the user's own folder is theirs to choose: with another checksum it is used, and a warning
says so. What is downloaded must be the published data. MNIST is verified and kept unpacked, because
the same images travel in several gzip files.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Collection
from pathlib import Path

from reefknot.errors import DataError
from reefknot.zoo.download import download, gunzipped, untar
from reefknot.zoo.readers import read_content

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
CIFAR10_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR10_TEST = "test_batch.bin"
CIFAR10_URLS = ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)
CIFAR10_HASH = "md5:c32a1d4ab5d03f1284b67883e8d87530"


def mnist_contents() -> dict[str, bytes]:
    """The unpacked content of MNIST's four IDX files, by name."""
    own = named_folder()
    for place in (own, own / "mnist", own / "MNIST" / "raw") if own else ():
        paths = {name: path for name in MNIST_SHA256 if (path := _mnist_path(place, name))}
        if paths:
            _check_complete(place, MNIST_SHA256, paths)
            return {name: _own_mnist_content(path, name) for name, path in paths.items()}
    return {name: _cached_mnist_content(name) for name in MNIST_SHA256}


def cifar10_folder() -> Path:
    """A folder with the six binary files of CIFAR-10."""
    names = (*CIFAR10_TRAIN, CIFAR10_TEST)
    own = named_folder()
    if own and (own / CIFAR10_FOLDER).is_dir():
        place = own / CIFAR10_FOLDER
        _check_complete(place, names, [name for name in names if (place / name).is_file()])
        return place
    place = cache_folder() / CIFAR10_FOLDER
    if not all((place / name).is_file() for name in names):
        _fetch_cifar10(place, names)
    return place


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


def _fetch_cifar10(place: Path, names: tuple[str, ...]) -> None:
    """Download the archive, and move its six files into place, each of them whole."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as temporary:
            archive = Path(temporary) / "cifar-10-binary.tar.gz"
            download(CIFAR10_URLS, archive, CIFAR10_HASH)
            untar(archive)
            for name in names:
                (archive.parent / CIFAR10_FOLDER / name).replace(place / name)
    except DataError as error:
        raise DataError(
            f"CIFAR-10 is not on this machine: {error}. Put the folder {CIFAR10_FOLDER} (the "
            "binary version) in a folder and set REEFKNOT_DATA to that one"
        ) from None
    except OSError as error:
        raise DataError(f"cannot unpack CIFAR-10 to {place}: {error}") from None
