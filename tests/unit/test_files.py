"""Atomic writes: the old file or the new one, on a full disk and after a kill too."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reefknot.errors import ReefknotError
from reefknot.files import read_bytes, write_atomically

# A process that may write files of at most 1,000 bytes: to `write` that is a disk that is full.
_FULL_DISK = """
import resource, sys
from reefknot.errors import ReefknotError
from reefknot.files import write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomically(sys.argv[1], b"new" * 1000)
except ReefknotError as error:
    sys.exit(f"refused: {error}")
"""

# Writes 3,000,000 times the same letter, then the next letter, until it is killed.
_WRITE_FOREVER = """
import itertools, sys
from reefknot.files import write_atomically
for letter in itertools.cycle(b"abcdefgh"):
    write_atomically(sys.argv[1], bytes([letter]) * 3_000_000)
"""


def test_a_new_file_holds_the_bytes_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"one")
    write_atomically(str(tmp_path / "a"), b"two")
    assert read_bytes(tmp_path / "a") == b"two"
    assert os.listdir(tmp_path) == ["a"]


def test_a_new_file_gets_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a", b"")
        assert os.umask(0o027) == 0o027  # and the umask is as it was
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_the_umask_of_the_process_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It belongs to all threads: another one would make its files with the wrong rights.
    def changed(mask: int) -> int:
        raise AssertionError(f"the umask was set to {mask:o}")

    monkeypatch.setattr(os, "umask", changed)
    for data in (b"old", b"new"):
        write_atomically(tmp_path / "a", data)
    assert read_bytes(tmp_path / "a") == b"new"


def test_a_replaced_file_keeps_its_rights(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "a").chmod(0o604)
    write_atomically(tmp_path / "a", b"new")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o604


def test_a_symbolic_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a").write_bytes(b"old")
    (tmp_path / "link").symlink_to("there/a")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "a").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["link", "there"]
    assert os.listdir(tmp_path / "there") == ["a"]


def test_a_link_to_a_file_that_is_not_there_yet_makes_that_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("a")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_folder_as_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReefknotError, match="is a folder; name a file"):
        write_atomically(tmp_path, b"")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes with names")
def test_a_pipe_as_target_is_refused_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for target in (tmp_path / "pipe", tmp_path / "link"):
        with pytest.raises(ReefknotError, match="is a device, a pipe or a socket; name a file"):
            write_atomically(target, b"new")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_a_missing_folder_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ReefknotError, match=r"no/a could not be written: No such file"):
        write_atomically(tmp_path / "no" / "a", b"")
    assert os.listdir(tmp_path) == []


def test_a_file_in_the_place_of_a_folder_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ReefknotError, match="could not be written: Not a directory"):
        write_atomically(tmp_path / "file" / "a", b"")


def test_reading_what_is_not_there_or_a_folder_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ReefknotError, match="could not be read: No such file or directory"):
        read_bytes(tmp_path / "a")
    with pytest.raises(ReefknotError, match="could not be read: Is a directory"):
        read_bytes(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes with names")
def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # which nobody writes to: opening it would wait for ever
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(ReefknotError, match=f"{path} is a device, a pipe or a socket"):
            read_bytes(path)


@pytest.mark.parametrize("length", [200, 255])
def test_a_name_as_long_as_the_system_allows_can_be_written(tmp_path: Path, length: int) -> None:
    write_atomically(tmp_path / ("n" * length), b"new")
    assert os.listdir(tmp_path) == ["n" * length]


def test_a_name_that_is_too_long_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ReefknotError, match="could not be written: File name too long"):
        write_atomically(tmp_path / ("n" * 300), b"new")
    with pytest.raises(ReefknotError, match="could not be read: File name too long"):
        read_bytes(tmp_path / ("n" * 300))
    assert os.listdir(tmp_path) == []


# Rights do not bind root, so the process becomes nobody first.
_WITHOUT_SEARCH_RIGHTS = """
import os, sys
from reefknot.errors import ReefknotError
from reefknot.files import check_target, read_bytes, write_atomically
if os.getuid() == 0:
    os.setuid(65534)
for work in (read_bytes, lambda path: write_atomically(path, b"new"), check_target):
    try:
        print(work(sys.argv[1]))
    except ReefknotError as error:
        print(str(error).rpartition("/")[2])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs rights of folders")
def test_a_folder_without_search_rights_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o600)
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_SEARCH_RIGHTS, tmp_path / "closed" / "a"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "a could not be read: Permission denied",
        "a could not be written: Permission denied",
        "False",
    ], done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
@pytest.mark.parametrize("old", [b"old", None])
def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, old: bytes | None) -> None:
    path = tmp_path / "a"
    if old is not None:
        path.write_bytes(old)
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, path], capture_output=True, text=True, check=False
    )
    assert re.fullmatch(r"refused: .*a could not be written: File too large\n", done.stderr)
    assert os.listdir(tmp_path) == ([] if old is None else ["a"])
    assert old is None or path.read_bytes() == old


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_writer_never_leaves_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for delay in (0.0, 0.003, 0.011, 0.027):
        path.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", _WRITE_FOREVER, path]) as writer:
            deadline = time.monotonic() + 30
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        content = path.read_bytes()
        assert len(content) == 3_000_000
        assert content == content[:1] * 3_000_000
