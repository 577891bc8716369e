"""Downloads against a real server on this machine that misbehaves on demand."""

import errno
import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reefknot.errors import DataError
from reefknot.lab.zoo import sources
from reefknot.lab.zoo.sources import download, gunzipped

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files`; `answers`, used up one by one, tell what goes wrong first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/file": CONTENT}
        self.answers: list[int | str] = []
        self.asked: list[str] = []
        self.pair = threading.Barrier(2, timeout=60)
        self.halfway, self.go_on = threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """An answer is an HTTP status, "drop" (half of the body), "stall" (half of it, and the rest
    when told) or "together" (wait for another request that is answered so)."""

    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        answer = self.server.answers.pop(0) if self.server.answers else "good"
        content = self.server.files.get(self.path)
        if isinstance(answer, int) or content is None:
            self.send_error(answer if isinstance(answer, int) else 404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        half = len(content) // 2
        self.wfile.write(content[:half])
        if answer == "drop":
            return
        if answer == "together":
            self.server.pair.wait()
        if answer == "stall":
            self.server.halfway.set()
            self.server.go_on.wait(60)
            return
        self.wfile.write(content[half:])

    def log_message(self, format: str, *args: Any) -> None:
        """Stay quiet."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("pooch.core.time", SimpleNamespace(sleep=lambda seconds: None))
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.go_on.set()
        server.shutdown()
        thread.join()


def fetch(server: Server, target: Path, *paths: str) -> None:
    download([server.url + path for path in paths or ("/file",)], target, SHA256)


def fetch_elsewhere(server: Server, target: Path) -> "subprocess.Popen[bytes]":
    """The same in a process of its own."""
    statement = (
        "from pathlib import Path; from reefknot.lab.zoo.sources import download; "
        f"download([{server.url + '/file'!r}], Path({str(target)!r}), {SHA256!r})"
    )
    return subprocess.Popen([sys.executable, "-c", statement], stderr=subprocess.DEVNULL)


def test_a_plain_download(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "file"
    fetch(server, target)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    fetch(server, target)
    assert len(server.asked) == 1  # it was there


def test_a_damaged_file_is_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT[:-1])
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("answer", ["drop", 503, 429])
def test_a_dropped_connection_or_a_busy_server_is_tried_again(
    server: Server, tmp_path: Path, answer: int | str
) -> None:
    server.answers = [answer, answer]
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(server.asked) == 3


def test_the_next_mirror_is_tried(server: Server, tmp_path: Path) -> None:
    fetch(server, tmp_path / "file", "/missing", "/file", "/never")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert list(dict.fromkeys(server.asked)) == ["/missing", "/file"]


def test_a_mirror_with_other_content_is_never_accepted(server: Server, tmp_path: Path) -> None:
    server.files["/other"] = b"something else"
    fetch(server, tmp_path / "file", "/other", "/file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    with pytest.raises(DataError, match=r"/other \(SHA256 hash .* expected \w+ but got \w+\)$"):
        fetch(server, tmp_path / "second", "/other")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_error_names_every_address_and_its_reason(server: Server, tmp_path: Path) -> None:
    server.answers = [404, 404, 404, 503, 503, 503, "drop", "drop", "drop"]
    urls = [f"{server.url}/a", f"{server.url}/b", f"{server.url}/file", "http://127.0.0.1:1"]
    with pytest.raises(DataError) as caught:
        download(urls, tmp_path / "file", SHA256)
    assert str(caught.value) == (
        f"cannot download file: tried {server.url}/a (404 Client Error: Not Found), "
        f"{server.url}/b (503 Server Error: Service Unavailable), "
        f"{server.url}/file (Connection broken: IncompleteRead(128000 bytes read, 128000 more "
        "expected)), http://127.0.0.1:1 (Failed to establish a new connection: "
        f"[Errno {errno.ECONNREFUSED}] Connection refused)"
    )
    assert not list(tmp_path.iterdir())


def test_a_host_without_an_address(tmp_path: Path, server: Server) -> None:
    with pytest.raises(DataError, match=r"http://nowhere\.invalid/file \(.*nowhere\.invalid"):
        download(["http://nowhere.invalid/file"], tmp_path / "file", SHA256)


def test_a_folder_that_cannot_be_made(server: Server, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    for folder in ("taken", "taken/within"):
        with pytest.raises(DataError, match=rf"cannot use the folder .*{folder}: \w"):
            fetch(server, tmp_path / folder / "file")
    assert not server.asked


def test_gzip_data_that_is_cut_short_is_tried_again(server: Server, tmp_path: Path) -> None:
    packed = gzip.compress(CONTENT)
    server.files |= {"/cut": packed[:-100], "/whole": packed}
    target = tmp_path / "file"
    with pytest.raises(DataError, match=r"/cut \(the gzip data is damaged or cut short") as caught:
        download([f"{server.url}/cut"], target, SHA256, gunzipped)
    assert str(tmp_path) not in str(caught.value)
    assert len(server.asked) == 3
    download([f"{server.url}/whole"], target, SHA256, gunzipped)
    assert target.read_bytes() == CONTENT


def test_a_killed_process_leaves_nothing_under_the_final_name(
    server: Server, tmp_path: Path
) -> None:
    server.answers = ["stall"]
    with fetch_elsewhere(server, tmp_path / "file") as process:
        assert server.halfway.wait(60)
        process.kill()
    assert not (tmp_path / "file").exists()
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.slow
def test_two_processes_that_fetch_the_same_file_at_once(server: Server, tmp_path: Path) -> None:
    server.answers = ["together", "together"]
    with (
        fetch_elsewhere(server, tmp_path / "file") as first,
        fetch_elsewhere(server, tmp_path / "file") as second,
    ):
        assert (first.wait(60), second.wait(60)) == (0, 0)
    assert len(server.asked) == 2
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


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
    assert cached == sorted(small_mnist)
    server.files.clear()
    assert sources.mnist_contents() == small_mnist


def test_mnist_that_no_mirror_has(
    server: Server, small_mnist: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MNIST_MIRRORS", (f"{server.url}/a/", f"{server.url}/b/"))
    with pytest.raises(DataError, match=r"not on this machine.*/a/.*404.*/b/.*set REEFKNOT_DATA"):
        sources.mnist_contents()


def write_archive(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def test_cifar10_is_downloaded_checked_and_unpacked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tuple(sources.CIFAR10_SHA256)
    sums = {name: hashlib.sha256(name.encode()).hexdigest() for name in names}
    monkeypatch.setattr(sources, "CIFAR10_SHA256", sums)
    archive = tmp_path / "source.tar.gz"
    write_archive(archive, {f"cifar-10-batches-bin/{name}": name.encode() for name in names})
    server.files["/cifar"] = archive.read_bytes()
    server.answers = ["drop"]
    monkeypatch.setattr(sources, "CIFAR10_URLS", (f"{server.url}/cifar",))
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(sources, "CIFAR10_HASH", f"md5:{md5}")
    monkeypatch.delenv("REEFKNOT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    incomplete = tmp_path / "cache/reefknot/cifar-10-batches-bin"
    incomplete.mkdir(parents=True)
    (incomplete / names[0]).write_bytes(b"half")
    expected = {name: name.encode() for name in names}
    assert sources.cifar10_contents() == expected
    assert {path.name: path.read_bytes() for path in incomplete.iterdir()} == expected
    assert [path.name for path in incomplete.parent.iterdir()] == [incomplete.name]
    server.files.clear()
    assert sources.cifar10_contents() == expected
