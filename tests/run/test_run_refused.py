"""What `reefknot run` refuses, and how it fails: one sentence, and nothing lost."""

import contextlib
import ctypes
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from digits_runs import (
    command,
    contents,
    digits_config,
    finished,
    refused,
)

from reefknot.checkpoint import read_checkpoint
from reefknot.lab.runs.config import read_config
from reefknot.lab.runs.folder import config_text


def test_a_folder_that_is_there_is_refused_and_left_alone(tied: Path) -> None:
    before = {path.name: path.read_bytes() for path in tied.iterdir()}
    refused(command("run", tied / "config.toml", "--out", tied), "already exists; add --resume")
    assert {path.name: path.read_bytes() for path in tied.iterdir()} == before


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    config = digits_config(tmp_path)
    refused(command("run", config, "--out", config), "is a file; --out names a folder")
    refused(command("run", config, "--out", config, "--resume"), "is a file; --out names a folder")
    refused(command("run", config, "--out", config / "deeper"), "could not be made")
    assert config.is_file()


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    finished(digits_config(tmp_path, "dense"), tmp_path / "out", "--set", "training.soft_steps=1")


@pytest.mark.parametrize(
    "slip", ["model=digits-mpl", "data=digit", "start=no.safetensors", "settings.include=fc9*"]
)
def test_a_mistake_found_before_training_leaves_nothing_in_the_way(
    tmp_path: Path, slip: str
) -> None:
    # A user who fixes the mistake and runs again must not be told that the folder already exists.
    config, out = digits_config(tmp_path), tmp_path / "out"
    assert command("run", config, "--out", out, "--set", slip).exit_code == 2
    assert not out.exists() or not list(out.iterdir())


def test_a_run_that_fails_with_nothing_worth_keeping_leaves_nothing_in_the_way(
    tmp_path: Path,
) -> None:
    config, out = digits_config(tmp_path), tmp_path / "out"
    assert command("run", config, "--out", out, *EXPLODING).exit_code == 1
    assert not out.exists()
    (tmp_path / "there").mkdir()
    assert command("run", config, "--out", tmp_path / "there", *EXPLODING).exit_code == 1
    assert list((tmp_path / "there").iterdir()) == []
    finished(config, out)


def test_a_failed_run_with_a_checkpoint_is_kept_until_force(tmp_path: Path) -> None:
    config, out = digits_config(tmp_path), tmp_path / "out"
    unsteady = ("--set", "optimizer.name=sgd", "--set", "optimizer.lr=1e4")
    done = command("run", config, "--out", out, *unsteady, "--set", "training.checkpoint_every=1")
    assert done.exit_code == 1
    kept = contents(out)
    assert "checkpoint.safetensors" in kept
    refused(command("run", config, "--out", out), "--resume to continue in it, --force to delete")
    refused(command("run", config, "--out", out, "--resume"), "add --force to start over")
    # What is wrong with the new run is found before anything of the old one is deleted.
    refused(command("run", config, "--out", out, "--force", "--set", "data=digit"), "data set")
    assert contents(out) == kept
    finished(config, out, "--force")
    whole = finished(config, tmp_path / "whole")
    assert sorted(contents(out)) == sorted(contents(whole))
    assert contents(out)["model.reef"] == contents(whole)["model.reef"]


def test_force_deletes_nothing_that_no_run_has_written(tied: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tied, tmp_path / "out"))
    (folder / "notes.txt").write_text("mine")
    before = contents(folder)
    refused(command("run", folder / "config.toml", "--out", folder, "--force"), "'notes.txt'")
    assert contents(folder) == before


def test_force_and_resume_exclude_each_other(tmp_path: Path) -> None:
    done = command("run", digits_config(tmp_path), "--force", "--resume")
    assert done.exit_code == 2
    assert "choose one of them" in done.stderr


def test_a_name_that_is_too_long_is_refused_in_one_sentence(tmp_path: Path) -> None:
    config, long = digits_config(tmp_path), tmp_path / ("x" * 300)
    refused(command("run", config, "--out", long), "could not be made: File name too long")
    for more in (["--out", long, "--resume"], ["--set", f"start={long}"]):
        refused(command("run", config, "--out", tmp_path / "out", *more), "File name too long")
    refused(command("run", long), "File name too long")


@contextlib.contextmanager
def rights_matter() -> Iterator[None]:
    """Root without what lets it ignore the rights of files; others are as they are."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this thread
    before = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; two words of each
    assert libc.capget(header, before) == 0, os.strerror(ctypes.get_errno())
    fewer = (ctypes.c_uint32 * 6)(*before)
    fewer[0] &= ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, fewer) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0, os.strerror(ctypes.get_errno())


@pytest.mark.parametrize("rights", [0o000, 0o600])
def test_a_folder_without_search_rights_is_refused_in_one_sentence(
    tmp_path: Path, rights: int
) -> None:
    config, locked = digits_config(tmp_path), tmp_path / "locked"
    (locked / "inside").mkdir(parents=True)
    with rights_matter():
        locked.chmod(rights)
        for out in (locked, locked / "inside", locked / "new"):
            refused(command("run", config, "--out", out, "--resume"), "")
            refused(command("run", config, "--out", out), "")
        locked.chmod(0o700)


def test_a_kept_configuration_that_is_not_utf8_is_refused_in_one_sentence(
    tied: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tied, tmp_path / "out"))
    (folder / "config.toml").write_bytes(b'model = "\xff"\n')
    done = command("run", tied / "config.toml", "--out", folder, "--resume")
    refused(done, "position 9: invalid start byte); add --force to start over")


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_damaged_record_is_refused_in_one_sentence(
    tied: Path, tmp_path: Path, content: bytes
) -> None:
    folder = Path(shutil.copytree(tied, tmp_path / "out"))
    (folder / "record.json").write_bytes(content)
    done = command("run", tied / "config.toml", "--out", folder, "--resume")
    refused(done, "record.json ")


@pytest.mark.parametrize("more", [[], ["--baseline"]])
def test_a_finished_run_whose_file_is_gone_is_refused_and_left_alone(
    tmp_path: Path, more: list[str]
) -> None:
    config, folder = digits_config(tmp_path), tmp_path / "out"
    folder.mkdir()
    (folder / "config.toml").write_text(config_text(folder, read_config(config)))
    for name in ("record.json", "report.html"):
        (folder / name).write_text("{}")
    before = contents(folder)
    done = command("run", config, "--out", folder, "--resume", *more)
    refused(done, "not its model.reef, and no checkpoint to write it from; put the file back, or")
    assert "wrote" not in done.stdout
    assert contents(folder) == before
    assert not (folder / "baseline").exists()


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        refused(command("run", digits_config(tmp_path), "--out", folder), "another process")
    finally:
        os.close(handle)


def test_wrong_names_of_model_and_data_are_told_together(tmp_path: Path) -> None:
    config = digits_config(tmp_path)
    done = command("run", config, "--out", tmp_path / "out", "--set", "model=lenet-300",
                   "--set", "data=mnst")  # fmt: skip
    assert "lenet-300-100" in done.stderr
    assert "mnist" in done.stderr
    assert done.exit_code == 2


def test_too_many_threads_are_a_mistake_and_not_a_crash(tmp_path: Path) -> None:
    done = command("run", digits_config(tmp_path), "--set", "training.threads=100000")
    refused(done, "training.threads must be at most")


# -- divergence -----------------------------------------------------------------------------

EXPLODING = (
    "--set",
    "optimizer.name=sgd",
    "--set",
    "optimizer.lr=3e38",
    "--set",
    "optimizer.options.weight_decay=100.0",
)


def test_a_run_that_diverges_says_at_which_step_and_what_to_try(tmp_path: Path) -> None:
    config, out = digits_config(tmp_path), tmp_path / "out"
    unsteady = ("--set", "optimizer.name=sgd", "--set", "optimizer.lr=1e4")
    done = command("run", config, "--out", out, *unsteady, "--set", "training.checkpoint_every=1")
    refused(done, "Try a lower optimizer.lr", exit_code=1)
    assert not (out / "record.json").exists()
    saved = read_checkpoint(out / "checkpoint.safetensors")["step"]
    assert f"at step {saved + 1}" in done.stderr
    assert f"last good checkpoint: step {saved} in {out}" in done.stderr


def test_a_run_that_diverges_before_any_checkpoint_says_there_is_none(tmp_path: Path) -> None:
    config = digits_config(tmp_path, "dense")
    done = command("run", config, "--out", tmp_path / "out", *EXPLODING)
    refused(done, "the loss is nan at step 2; last good checkpoint: none", exit_code=1)


def test_weights_that_become_infinite_while_the_loss_is_finite_stop_with_the_step(
    tmp_path: Path,
) -> None:
    # Step 1 has a finite loss and leaves infinite weights, which the next one finds.
    done = command("run", digits_config(tmp_path), "--out", tmp_path / "out", *EXPLODING)
    refused(done, "at step 2", exit_code=1)
    assert "Try a lower optimizer.lr" in done.stderr


def test_the_last_good_checkpoint_is_good(tmp_path: Path) -> None:
    # The loss of step 1 was finite, but the weights that it left are not: no checkpoint to keep.
    config, out = digits_config(tmp_path, "dense"), tmp_path / "out"
    every = ("--set", "training.checkpoint_every=1")
    refused(command("run", config, "--out", out, *EXPLODING, *every), "Try a lower", exit_code=1)
    path = out / "checkpoint.safetensors"
    if path.exists():
        assert all(bool(w.isfinite().all()) for w in read_checkpoint(path)["model"].values())
