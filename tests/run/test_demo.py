"""The demo: what it leaves behind, what it says, and that it takes nothing away."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import reefknot
from reefknot.cli import main
from reefknot.lab import demo
from reefknot.lab.demo import what_it_means

FILES = {"config.toml", "metrics.jsonl", "model.reef", "record.json", "report.html"}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The demo with few steps, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for name, steps in (
        ("DENSE", {"soft_steps": 40}),
        ("TIED", {"steps": 60}),
    ):
        table: dict[str, Any] = getattr(demo, name)
        monkeypatch.setattr(demo, name, table | {"training": table["training"] | steps})


def command(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["demo", *map(str, args)])


def test_the_file_and_the_report_stay_and_the_commands_that_open_them_work(
    short: None, tmp_path: Path
) -> None:
    done = command()
    assert done.exit_code == 0, done.output
    folder = tmp_path / "reefknot-demo"
    assert {path.name for path in folder.iterdir()} == {"dense", "tied"}
    assert {path.name for path in (folder / "tied").iterdir()} == FILES
    assert set(reefknot.load(folder / "tied" / "model.reef")) >= {"fc1.weight", "fc3.bias"}
    assert "Dense network" in (folder / "tied" / "report.html").read_text(encoding="utf-8")
    printed = [line.strip() for line in done.stdout.partition("Look at it:")[2].splitlines()]
    commands = [line for line in printed if line and not line.startswith("#")]
    page = (folder / "tied" / "report.html").as_uri()
    assert f"-m webbrowser {page}" in commands[0]
    for line in commands[1:]:
        subprocess.run(shlex.split(line), check=True, capture_output=True)
    assert (tmp_path / "digits.safetensors").exists()
    [said] = re.findall(r"Of 359 test images the dense network gets .*", done.stdout)
    assert re.search(r"gets \d+ wrong and the tied one \d+: \w+", said)


def test_the_next_demo_replaces_the_last_one_and_nothing_else(short: None, tmp_path: Path) -> None:
    tied = tmp_path / "reefknot-demo" / "tied"
    tied.mkdir(parents=True)
    (tied / "model.reef").write_text("old")
    (tmp_path / "reefknot-demo" / "notes").write_text("mine")
    assert command("--seed", "1").exit_code == 0
    assert {path.name for path in tied.iterdir()} == FILES
    assert (tmp_path / "reefknot-demo" / "notes").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"reefknot-demo"}


@pytest.mark.parametrize("taken", ["a file", "a folder with something in it"])
def test_what_is_there_already_is_left_alone(short: None, tmp_path: Path, taken: str) -> None:
    out = tmp_path / "out"
    mine = out
    if taken != "a file":
        out.mkdir()
        mine = out / "mine"
    mine.write_text("mine")
    done = command("--out", out)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"reefknot: {out} is ")
    assert mine.read_text() == "mine"


@pytest.mark.slow
def test_a_demo_that_is_stopped_is_replaced_by_the_next(short: None, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "reefknot.cli", "demo"],
        cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        while "training 500" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().splitlines()
    assert process.returncode == 130
    assert said[-1] == "reefknot: stopped"
    assert command().exit_code == 0
    assert {path.name for path in (tmp_path / "reefknot-demo" / "dense").iterdir()} >= FILES


@pytest.mark.parametrize(
    ("dense", "tied", "verdict"),
    [
        (1.0, 1.0, "10 wrong and the tied one 10: within chance."),
        (1.0, 1.8, "10 wrong and the tied one 18: within chance."),
        (1.0, 3.0, "10 wrong and the tied one 30: tying costs 20."),
        (3.0, 1.0, "30 wrong and the tied one 10: tying saves 20."),
        (0.0, 0.0, "0 wrong and the tied one 0: within chance."),
    ],
)
def test_errors_are_told_as_images(dense: float, tied: float, verdict: str) -> None:
    said = what_it_means(dense, tied, 1_000)
    assert said == f"Of 1000 test images the dense network gets {verdict}"


@pytest.mark.slow
def test_the_whole_demo_is_two_hundred_times_smaller(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reefknot.cli", "demo"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    [rate] = re.findall(r"rate, fp32 / .reef +(\d+)x", done.stdout)
    assert int(rate) > 200
    assert ": within chance." in done.stdout
