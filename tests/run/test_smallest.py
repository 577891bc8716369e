"""`run --max-error-increase`: the smallest file that keeps the error."""

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import reefknot
from reefknot.cli import main
from reefknot.lab.runs import smallest as module
from reefknot.lab.runs.config import read_config
from reefknot.lab.runs.run import InterruptedRunError
from reefknot.lab.runs.smallest import smallest

MODULE = """
import torch
from torch import nn

def data():
    inputs = torch.randn(800, 6, generator=torch.Generator().manual_seed(5))
    labels = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()
    return inputs[:600], labels[:600], inputs[600:], labels[600:]

def mlp():
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
"""
RECIPE = """
model = "tried:mlp"
data = "tried:data"
method = "sparse_apt"
settings.target_bytes = 500
training = { steps = 40, batch_size = 30, evaluate_every = 20, threads = 1 }
optimizer = { name = "adam", lr = 0.02 }
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tried")
    (folder / "tried.py").write_text(MODULE)
    (folder / "a.toml").write_text(RECIPE)
    return folder


@pytest.fixture(autouse=True)
def _here(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield
    sys.modules.pop("tried", None)


def command(*args):
    return CliRunner().invoke(main, ["run", "a.toml", *(str(arg) for arg in args)])


def refused(done, words, exit_code=2):
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == exit_code, done.output
    assert words in done.stderr


def state_of(folder):
    return json.loads((Path(folder) / "smallest.json").read_text())


def record_of(folder):
    return json.loads((Path(folder) / "record.json").read_text())


def files_of(folder):
    return {name: (Path(folder) / name).read_bytes() for name in ("model.reef", "config.toml")}


@pytest.fixture(scope="module")
def found(place):
    """Ten points above the dense network, which is trained on the way."""
    before = Path.cwd()
    os.chdir(place)
    sys.path.insert(0, str(place))
    try:
        done = command("--max-error-increase", 10, "--out", "found")
        assert done.exit_code == 0, done.output
    finally:
        os.chdir(before)
        sys.path.remove(str(place))
    return place / "found", done


def test_the_smallest_file_within_the_error_is_chosen(found):
    folder, done = found
    state, record = state_of(folder), record_of(folder)
    dense = record_of(folder / "baseline")
    assert dense["method"] == "dense"
    assert state["reference_error"] == dense["val_error"] == record["dense_val_error"]
    tries = state["tries"]
    assert 2 < len(tries) <= module.TRIES
    allowed = dense["val_error"] + 10
    kept = [t for t in tries if t["val_error"] is not None and t["val_error"] <= allowed]
    assert kept == [t for t in tries if t["keeps"]]
    assert record["file_bytes"] == min(t["file_bytes"] for t in kept)
    assert record["file_bytes"] == (folder / "model.reef").stat().st_size
    lines = [line for line in done.stdout.splitlines() if line.startswith("target ")]
    assert len(lines) == len(tries)
    for line, one in zip(lines, tries, strict=True):
        assert line.startswith(f"target {one['target_bytes']:,}: ")
        assert line.endswith(": kept") == one["keeps"]


def test_nothing_but_the_chosen_one_meets_test_data(found):
    folder, _ = found
    for place in (folder / "baseline", *(folder / "tries").glob("[0-9]*")):
        assert record_of(place)["test_error"] is None
    record = record_of(folder)
    assert record["test_error"] is not None
    assert record["dense_test_error"] is not None


def test_the_folder_is_that_of_the_chosen_run(found):
    folder, _ = found
    config = read_config(folder / "config.toml")
    chosen = folder / "tries" / str(config.settings["target_bytes"])
    assert config.evaluate_test
    assert (chosen / "model.reef").read_bytes() == (folder / "model.reef").read_bytes()
    assert reefknot.verify(folder / "model.reef")
    again = CliRunner().invoke(
        main, ["run", str(folder / "config.toml"), "--out", str(folder), "--resume"]
    )
    assert again.exit_code == 0, again.output


class _Stop:
    """Interrupts at a measurement, as Ctrl-C would."""

    def __init__(self, after):
        self.left = after

    def stepped(self, progress):
        pass

    def measured(self, row):
        self.left -= 1
        if not self.left:
            raise InterruptedRunError("stopped")


def test_it_goes_on_try_by_try(found, monkeypatch):
    folder, _ = found
    config = read_config(Path("a.toml"))
    options = {"max_error_increase": 10.0}
    with pytest.raises(InterruptedRunError):
        smallest(config, Path("cut"), display=_Stop(7), **options)
    begun = {path.name for path in Path("cut/tries").glob("*/record.json")}
    assert len(begun) == 1
    refused(command("--max-error-increase", 10, "--out", "cut"), "is not empty; add --resume")
    other = ("--set", "seed=3", "--resume")
    refused(command("--max-error-increase", 10, "--out", "cut", *other), "another configuration")
    times = {path: path.stat().st_mtime_ns for path in Path("cut/tries").glob("*/model.reef")}
    done = command("--max-error-increase", 10, "--out", "cut", "--resume")
    assert done.exit_code == 0, done.output
    assert files_of("cut") == files_of(folder)
    assert state_of("cut")["tries"] == state_of(folder)["tries"]
    assert {path: path.stat().st_mtime_ns for path in times} == times  # not trained again


def test_a_reference_may_be_given_and_too_much_may_be_asked(found):
    small = ("--set", "settings.target_bytes=200")
    done = command("--max-error-increase", 0, "--reference-error", 0, "--out", "none", *small)
    refused(done, "sizes keeps the validation error within 0 points of 0.00 %", exit_code=1)
    assert not Path("none/baseline").exists()
    assert not Path("none/model.reef").exists()
    tries = [one["target_bytes"] for one in state_of("none")["tries"]]
    assert tries == [200, 400, 4 * (6 * 12 + 12 + 12 * 3 + 3)]  # the size of the network


def test_the_parent_is_the_reference_of_a_recipe_that_starts_from_one(found, monkeypatch):
    monkeypatch.setattr(module, "TRIES", 2)
    parent = found[0] / "baseline"
    start = ("--set", f"start={parent / 'model.safetensors'}")
    done = command("--max-error-increase", 90, "--out", "trained", *start)
    assert done.exit_code == 0, done.output
    assert state_of("trained")["reference_error"] == record_of(parent)["val_error"]
    assert not Path("trained/baseline").exists()
    dense = record_of(found[0])["dense_test_error"]
    assert record_of("trained")["dense_test_error"] == dense
    assert state_of("trained")["tries"][0]["target_bytes"] == 500


def test_wrong_usage_is_one_sentence(found):
    done = command("--reference-error", 3)
    assert "--reference-error goes with --max-error-increase" in done.stderr
    done = command("--baseline", "--max-error-increase", 1)
    assert "has a reference of its own" in done.stderr
    done = command("--force", "--max-error-increase", 1)
    assert "needs a new folder or --resume" in done.stderr
    without = ("--set", "method=dense", "--set", "settings={}")
    refused(command("--max-error-increase", 1, *without), "needs settings.target_bytes")
    Path("other").mkdir()
    Path("other/notes.txt").write_text("mine")
    done = command("--max-error-increase", 1, "--out", "other")
    refused(done, "other is not empty")
    assert os.listdir("other") == ["notes.txt"]
