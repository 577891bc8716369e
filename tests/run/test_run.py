"""`reefknot run` from a configuration to a folder, on the digits and on a user's own network."""

import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

import reefknot
from reefknot.cli import main
from reefknot.format import open_state
from reefknot.runs.checkpoint import read_checkpoint
from reefknot.runs.config import read_config
from reefknot.runs.parts import build
from reefknot.runs.run import InterruptedRunError, run
from reefknot.state import TiedState
from reefknot.zoo import DATASETS

DIGITS = """
model = "digits-mlp"
data = "digits"
method = "{method}"
{entries}
[settings]
{settings}
[training]
soft_steps = 60
hard_steps = {hard}
evaluate_every = 20
checkpoint_every = 25
threads = 1
[optimizer]
name = "adam"
lr = 2e-3
"""

# What DESIGN.md promises of a record and of a row of the metrics.
RECORD_KEYS = {
    "network",
    "data",
    "method",
    "seed",
    "val_error_soft",
    "val_error_hardened",
    "val_error",
    "test_error",
    "dense_test_error",
    "density",
    "num_clusters",
    "file_bytes",
    "rate_file",
    "rate_paper",
    "rate_strict",
    "seconds",
    "threads",
    "versions",
}
ROW_KEYS = {
    "phase",
    "step",
    "loss",
    "kmeans_penalty",
    "val_error",
    "density",
    "predicted_bytes",
    "centers",
    "counts",
    "spreads",
    "changed",
    "lr",
    "step_seconds",
    "seconds",
}


def command(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def digits_config(
    folder: Path, method: str = "sparse_apt", entries: str = "", settings: str = ""
) -> Path:
    path = folder / f"{method}.toml"
    hard = 0 if method == "dense" else 30
    path.write_text(DIGITS.format(method=method, entries=entries, settings=settings, hard=hard))
    return path


def finished(config: Path, out: Path, *more: str) -> Path:
    """Run, and be sure that it went well."""
    done = command("run", config, "--out", out, *more)
    assert done.exit_code == 0, done.stderr or done.exception
    return out


def record_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "record.json").read_text())


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def perceptron_error(state: TiedState, part: str) -> float:
    """The error of a digits network, worked in float64 with numpy alone."""
    values = {name: array.astype(np.float64) for name, _, array in state.arrays()}
    inputs, labels = getattr(DATASETS["digits"](), part)
    hidden = inputs.double().numpy().reshape(len(inputs), -1)
    for layer in ("fc1", "fc2", "fc3"):
        hidden = hidden @ values[f"{layer}.weight"].T + values[f"{layer}.bias"]
        if layer != "fc3":
            hidden = np.maximum(hidden, 0)
    return 100 * float(np.mean(hidden.argmax(1) != labels.numpy()))


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of sparse APT."""
    folder = tmp_path_factory.mktemp("tied")
    return finished(digits_config(folder), folder / "deep" / "out", "--set", "seed=3")


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that trains a parent."""
    folder = tmp_path_factory.mktemp("dense")
    return finished(digits_config(folder, "dense"), folder / "out")


# -- the folder -----------------------------------------------------------------------------


def test_a_method_of_a_run_knows_an_example_of_the_inputs(tmp_path):
    """Which it needs to find dead units."""
    parts = build(read_config(digits_config(tmp_path, method="dense")))
    assert torch.equal(parts.method.example_input, parts.data.train.inputs[:1])


def test_the_folder_holds_what_the_design_says_and_nothing_else(tied: Path) -> None:
    assert sorted(path.name for path in tied.iterdir()) == [
        "config.toml",
        "metrics.jsonl",
        "model.reef",
        "record.json",
        "report.html",
    ]


def test_the_record_has_what_the_design_says(tied: Path) -> None:
    record = record_of(tied)
    assert record.keys() >= RECORD_KEYS
    assert (record["network"], record["data"]) == ("digits-mlp", "digits")
    assert record["data_name"] == "digits"
    assert (record["method"], record["seed"], record["threads"]) == ("sparse_apt", 3, 1)
    assert record["dense_test_error"] is None
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["reefknot"] == reefknot.__version__


def test_the_record_measures_the_file_as_it_is_on_disk(tied: Path) -> None:
    record, state = record_of(tied), open_state(tied / "model.reef")
    assert record["file_bytes"] == (tied / "model.reef").stat().st_size
    assert record["original_bytes"] == 4 * 50_610
    assert record["rate_file"] == 4 * 50_610 / record["file_bytes"]
    values = np.concatenate([array.ravel() for _, _, array in state.arrays()])
    assert record["density"] == np.count_nonzero(values) / 50_610
    assert record["num_clusters"] == len(np.unique(values)) <= 17


def test_the_file_gives_the_errors_of_the_record(tied: Path) -> None:
    record, state = record_of(tied), open_state(tied / "model.reef")
    assert record["test_error"] == pytest.approx(perceptron_error(state, "test"))
    assert record["val_error"] == pytest.approx(perceptron_error(state, "validation"))
    assert 0 < record["test_error"] < 25  # it did learn


def test_the_metrics_have_a_row_for_each_measurement(tied: Path) -> None:
    rows, record = rows_of(tied), record_of(tied)
    assert [row["step"] for row in rows] == [20, 40, 60, 80, 90]
    assert [row["phase"] for row in rows] == ["sparsify"] * 3 + ["frozen"] * 2
    assert all(row.keys() >= ROW_KEYS for row in rows)
    assert [row["lr"] for row in rows] == [2e-3] * 5
    assert rows[2]["val_error"] == record["val_error_soft"]
    assert rows[-1]["val_error"] == record["val_error"]
    assert rows[-1]["density"] == record["density"]
    for row in rows:
        assert sum(row["counts"]["network"]) == 50_610
        assert len(row["centers"]["network"]) == len(row["spreads"]["network"]) == 17
    assert rows[0]["loss"] > rows[2]["loss"]
    # Hard: nothing is away from its center any more.
    assert rows[2]["kmeans_penalty"] > 0
    assert rows[3]["kmeans_penalty"] == rows[4]["kmeans_penalty"] == 0


def test_the_configuration_in_the_folder_is_the_one_that_ran(tied: Path) -> None:
    config = read_config(tied / "config.toml")
    assert config == read_config(tied.parents[1] / "sparse_apt.toml", ["seed=3"])
    assert tomllib.loads((tied / "config.toml").read_text())["seed"] == 3


def test_the_report_opens_offline(tied: Path) -> None:
    page = (tied / "report.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "digits-mlp" in page
    for fetched in ("<script", "<link", 'src="http', "@import", "url(http"):
        assert fetched not in page


def test_the_same_configuration_gives_the_same_bytes(tied: Path, tmp_path: Path) -> None:
    again = finished(tied / "config.toml", tmp_path / "again")
    assert (again / "model.reef").read_bytes() == (tied / "model.reef").read_bytes()
    other = finished(tied / "config.toml", tmp_path / "other", "--set", "seed=4")
    assert (other / "model.reef").read_bytes() != (tied / "model.reef").read_bytes()


def test_the_table_and_the_paths_are_printed(tmp_path: Path) -> None:
    done = command("run", digits_config(tmp_path, "dense"), "--out", tmp_path / "out")
    assert "test error, final" in done.stdout
    assert "tying" not in done.stdout
    assert f"wrote {tmp_path / 'out' / 'model.reef'}" in done.stdout
    assert done.stderr.count("training") == 3  # one line a measurement where there is no terminal


def test_without_out_the_folder_is_named_after_configuration_and_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = digits_config(tmp_path, "dense")
    assert (
        command("run", config, "--set", "training.soft_steps=1", "--set", "seed=5").exit_code == 0
    )
    assert (tmp_path / "runs" / "dense-seed5" / "record.json").exists()


# -- parents --------------------------------------------------------------------------------


def test_a_dense_run_writes_a_parent_that_other_tools_read(dense: Path) -> None:
    loaded, from_reef = load_file(dense / "model.safetensors"), reefknot.load(dense / "model.reef")
    assert list(from_reef) == [f"fc{n}.{kind}" for n in (1, 2, 3) for kind in ("weight", "bias")]
    assert loaded.keys() == from_reef.keys()
    assert all(torch.equal(loaded[name], from_reef[name]) for name in loaded)
    record = record_of(dense)
    assert record["density"] > 0.99
    assert record["val_error_soft"] is record["val_error_hardened"] is None  # nothing is tied
    assert {row["phase"] for row in rows_of(dense)} == {"train"}
    assert record["test_error"] == pytest.approx(
        perceptron_error(open_state(dense / "model.reef"), "test")
    )


@pytest.mark.parametrize("parent", ["model.safetensors", "model.reef"])
def test_a_run_starts_from_a_parent(dense: Path, tmp_path: Path, parent: str) -> None:
    config = digits_config(tmp_path, settings='init = "kmeans"')
    start = f"start={dense / parent}"
    small = ("--set", "training.soft_steps=1", "--set", "optimizer.lr=1e-9")
    out = finished(config, tmp_path / "out", "--set", start, *small)
    assert record_of(out)["dense_test_error"] == record_of(dense)["test_error"]
    assert record_of(out)["dense_val_error"] == record_of(dense)["val_error"]
    # One tiny step away, the error is the parent's; a fresh network's is about 90 %.
    assert record_of(out)["val_error_soft"] == pytest.approx(record_of(dense)["val_error"], abs=1)


def test_a_run_learns_from_teachers(dense: Path, tmp_path: Path) -> None:
    config = digits_config(tmp_path, settings="refit_every = 4")
    teachers = ("--set", f'distillation.teachers=["{dense / "model.reef"}"]')
    out = finished(config, tmp_path / "out", *teachers)
    kept = tomllib.loads((out / "config.toml").read_text())
    assert kept["distillation"]["teachers"] == [os.path.relpath(dense / "model.reef", out)]
    plain = finished(config, tmp_path / "plain")
    assert (plain / "model.reef").read_bytes() != (out / "model.reef").read_bytes()


def test_a_missing_or_wrong_start_is_refused_in_one_sentence(dense: Path, tmp_path: Path) -> None:
    other = {"fc1.weight": torch.zeros(3, 3)}
    save_file(other, tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("hello")
    (tmp_path / "text.reef").write_text("hello")
    for name, words in {
        "no.safetensors": "could not be read: No such file",
        "other.safetensors": "does not fit the model",
        "text.safetensors": "is not a safetensors file",
        "text.reef": "is not a .reef file",
    }.items():
        config = digits_config(tmp_path, entries=f'start = "{name}"')
        refused(command("run", config, "--out", tmp_path / "out" / name), words)


def refused(done: Result, words: str, exit_code: int = 2) -> None:
    """One sentence on stderr, no traceback, and the right exit code."""
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == exit_code
    last = done.stderr.splitlines()[-1]
    assert last.startswith("reefknot: ")
    assert words in last
    assert done.stderr.count("reefknot: ") == 1


# -- a budget -------------------------------------------------------------------------------

BUDGET = """
model = "digits-mlp"
data = "digits"
method = "sparse_apt"
{entries}
settings.target_bytes = 3_000
training.steps = 600
training.evaluate_every = 20
training.threads = 1
optimizer.name = "adam"
optimizer.lr = 2e-3
"""


def budget_config(folder: Path, entries: str = "") -> Path:
    path = folder / "budget.toml"
    path.write_text(BUDGET.format(entries=entries))
    return path


def phases_of(folder: Path) -> dict[str, int]:
    """The phases in order, each with the last step at which it was measured."""
    return {row["phase"]: row["step"] for row in rows_of(folder)}


@pytest.fixture(scope="module")
def budget(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a budget, with its baseline."""
    folder = tmp_path_factory.mktemp("budget")
    return finished(budget_config(folder), folder / "out", "--baseline")


def test_a_budget_goes_through_its_phases_and_ends_at_or_below_its_size(budget: Path) -> None:
    record, rows = record_of(budget), rows_of(budget)
    assert list(phases_of(budget)) == ["sparsify", "recover", "commit", "frozen"]
    size = (budget / "model.reef").stat().st_size
    assert size == record["file_bytes"] <= 3_000
    assert size > 0.9 * 3_000
    assert {row["target_bytes"] for row in rows} == {3_000}
    assert all("l1_strength" in row for row in rows if row["phase"] == "sparsify")
    assert all("bit_price" in row for row in rows if row["phase"] == "commit")
    assert rows[-1]["predicted_bytes"] == pytest.approx(size, abs=20)
    # The learning rate starts anew in each phase, at a tenth in the last one.
    assert max(row["lr"] for row in rows if row["phase"] == "commit") > 1.9e-3
    assert rows[-1]["lr"] < 2e-4
    assert record["val_error"] < 15  # it did learn
    assert record["val_error_soft"] is not None
    assert record["val_error_hardened"] is not None
    assert record["test_error"] == pytest.approx(
        perceptron_error(open_state(budget / "model.reef"), "test")
    )


def test_the_baseline_of_a_budget_trains_as_long_without_compression(
    budget: Path, tmp_path: Path
) -> None:
    inside = budget / "baseline"
    rows = rows_of(inside)
    assert (rows[-1]["step"], {row["phase"] for row in rows}) == (600, {"train"})
    assert rows[-1]["lr"] < 1e-4 < rows[0]["lr"]  # it decays
    assert record_of(budget)["dense_test_error"] == record_of(inside)["test_error"]
    plain = finished(
        budget_config(tmp_path), tmp_path / "plain", "--set", "method=dense", "--set", "settings={}"
    )
    assert (plain / "model.reef").read_bytes() == (inside / "model.reef").read_bytes()
    # The same command goes on with it, and finds all of it done.
    before = contents(budget)
    assert command("run", budget / "config.toml", "--out", budget, "--resume").exit_code == 0
    assert contents(budget) == before


def test_a_budget_that_starts_from_a_trained_network_has_a_shorter_first_phase(
    budget: Path, dense: Path, tmp_path: Path
) -> None:
    config = budget_config(tmp_path, f'start = "{dense / "model.reef"}"')
    out = finished(config, tmp_path / "out")
    assert phases_of(out)["sparsify"] < phases_of(budget)["sparsify"]
    assert (out / "model.reef").stat().st_size <= 3_000
    assert record_of(out)["dense_val_error"] == record_of(dense)["val_error"]


def test_a_density_is_a_budget_too(tmp_path: Path) -> None:
    config = budget_config(tmp_path)
    density = ("--set", "settings={target_density = 0.05}", "--set", "training.steps=60")
    out = finished(config, tmp_path / "out", *density)
    assert record_of(out)["density"] <= 0.05
    assert {row["target_density"] for row in rows_of(out)} == {0.05}


def test_the_recipe_of_the_document_runs_as_it_stands(tmp_path: Path) -> None:
    document = Path(__file__).parents[2] / "docs" / "runs.md"
    recipe = re.findall(r"^```toml\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "small.toml").write_text(recipe)
    out = finished(tmp_path / "small.toml", tmp_path / "out", "--set", "training.steps=100")
    table = tomllib.loads(recipe)
    assert (out / "model.reef").stat().st_size <= table["settings"]["target_bytes"]


def test_a_size_that_cannot_be_had_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = command(
        "run", budget_config(tmp_path), "--out", out, "--set", "settings.target_bytes=20",
        "--baseline",
    )  # fmt: skip
    refused(done, "target_bytes is 20, but with all tied weights at zero the network still has ")
    assert done.stderr.count("training") == 0  # nor was the baseline
    assert not out.exists()


# -- refused --------------------------------------------------------------------------------


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


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


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
def unprivileged() -> Iterator[Path]:
    """A folder that may be entered, as somebody to whom rights matter: root may do anything."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            if root:
                os.seteuid(0)


@pytest.mark.parametrize("rights", [0o000, 0o600])
def test_a_folder_without_search_rights_is_refused_in_one_sentence(rights: int) -> None:
    with unprivileged() as place:
        config, locked = digits_config(place), place / "locked"
        (locked / "inside").mkdir(parents=True)
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
    refused(done, "config.toml is damaged: it is not UTF-8 (byte 9); add --force to start over")


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_damaged_record_is_refused_in_one_sentence(
    tied: Path, tmp_path: Path, content: bytes
) -> None:
    folder = Path(shutil.copytree(tied, tmp_path / "out"))
    (folder / "record.json").write_bytes(content)
    done = command("run", tied / "config.toml", "--out", folder, "--resume")
    refused(done, "record.json ")


# -- the baseline ---------------------------------------------------------------------------


def test_without_anything_to_compare_with_the_command_that_trains_it_is_printed(
    dense: Path, tmp_path: Path
) -> None:
    config, out = digits_config(tmp_path), tmp_path / "o u t"
    done = command("run", config, "--out", out, "--set", "seed=3")
    (line,) = (x for x in done.stdout.splitlines() if x.endswith("--baseline"))
    assert "lost to compression" not in done.stdout
    assert record_of(out)["dense_val_error"] is None
    done = command(*shlex.split(line)[1:])
    assert done.exit_code == 0, done.stderr
    late = record_of(out)
    assert late["dense_val_error"] == record_of(out / "baseline")["val_error"]
    lost = late["test_error"] - late["dense_test_error"]
    said = " ".join(done.stdout.split())
    assert f"test error, lost to compression {lost:+.2f} points" in said
    assert "validation error, lost" not in done.stdout
    assert "--baseline" not in done.stdout
    assert (
        "baseline" not in command("run", dense / "config.toml", "--out", dense, "--resume").stdout
    )
    # As if it had been asked for at once; and it changes nothing of the run itself.
    at_once = finished(config, tmp_path / "at once", "--set", "seed=3", "--baseline")
    assert (at_once / "model.reef").read_bytes() == (out / "model.reef").read_bytes()
    assert record_of(at_once) | {"seconds": 0} == late | {"seconds": 0}
    page = (out / "report.html").read_text()
    assert "Dense network" in page


def test_the_baseline_is_the_run_of_the_same_configuration_without_compression(
    tmp_path: Path,
) -> None:
    config, out = digits_config(tmp_path, settings="num_clusters = 3"), tmp_path / "out"
    finished(config, out, "--baseline")
    plain = finished(
        digits_config(tmp_path, "dense"), tmp_path / "plain", "--set", "training.hard_steps=30"
    )
    inside = out / "baseline"
    assert (inside / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    assert record_of(out)["dense_test_error"] == record_of(plain)["test_error"]
    # --force begins with the baseline anew, too.
    finished(config, out, "--force", "--set", "seed=1")
    assert not inside.exists()


class StopsAt:
    """A display that stops a run once it has been shown so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def stepped(self, progress: Any) -> None:
        self.left -= progress.event == "step"
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)

    def measured(self, row: Any) -> None:
        pass


def test_a_run_that_is_stopped_in_its_baseline_goes_on_with_it(tmp_path: Path) -> None:
    config = read_config(digits_config(tmp_path))
    out, whole = tmp_path / "out", tmp_path / "whole"
    for number, steps in enumerate((70, 60)):  # in the baseline, then in the run itself
        with pytest.raises(InterruptedRunError):
            run(config, out, baseline=not number, resume=bool(number), display=StopsAt(steps))
    assert (out / "baseline" / "record.json").exists()
    record = run(config, out, resume=True)
    assert record | {"seconds": 0} == run(config, whole, baseline=True) | {"seconds": 0}
    assert (out / "model.reef").read_bytes() == (whole / "model.reef").read_bytes()


def test_a_baseline_of_what_has_one_already_is_refused(dense: Path, tmp_path: Path) -> None:
    config = digits_config(tmp_path, entries=f'start = "{dense / "model.reef"}"')
    done = command("run", config, "--out", tmp_path / "out", "--baseline")
    refused(done, "which start names already")
    plain = digits_config(tmp_path, "dense")
    refused(command("run", plain, "--out", tmp_path / "out", "--baseline"), "which this one is")
    assert not (tmp_path / "out").exists()


# -- the test set ---------------------------------------------------------------------------

# A network that refuses to look at the test set, whose inputs are all 1000.
BLIND = """
import torch
from torch import nn
from reefknot.zoo import Data, Split

class Blind(nn.Linear):
    def forward(self, inputs):
        if inputs.max() > 500:
            raise AssertionError("the test set was looked at")
        return super().forward(inputs)

def network():
    return Blind(2, 2)

def data():
    inputs = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    part = Split(inputs, (inputs[:, 0] > 0).long())
    return Data("blind", part, part, Split(torch.full((4, 2), 1000.0), torch.zeros(4).long()))
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module into a current folder of its own, and forgets it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    yield write
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"blind", "mine"}:
            del sys.modules[name]


def test_without_evaluate_test_the_test_set_is_never_looked_at(
    own_module: Any, tmp_path: Path
) -> None:
    own_module("blind.py", BLIND)
    save_file({"weight": torch.eye(2), "bias": torch.zeros(2)}, tmp_path / "parent.safetensors")
    config = digits_config(tmp_path)
    entries = ("model=blind:network", "data=blind:data", "start=parent.safetensors")
    own = [word for entry in entries for word in ("--set", entry)]
    out = finished(config, tmp_path / "out", *own, "--set", "evaluate_test=false")
    assert record_of(out)["test_error"] is None
    assert record_of(out)["dense_test_error"] is None
    assert record_of(out)["val_error"] is not None
    # And the network does see it when asked to.
    done = command("run", config, "--out", tmp_path / "seen", *own)
    refused(done, "evaluating the network failed with AssertionError: the test set was looked at")


# -- a user's own network -------------------------------------------------------------------

MINE = """
import numpy as np
from torch import nn

def network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
    )

def data():
    images = np.random.default_rng(0).random((60, 1, 8, 8), np.float32)
    return images, (images[:, 0, 4, 4] > 0.5).astype(np.int64)

def nothing():
    return None
"""


def test_a_users_own_network_and_data_are_found_in_the_current_folder(
    own_module: Any, tmp_path: Path
) -> None:
    own_module("mine/parts.py", MINE)
    config = digits_config(tmp_path, settings='exclude = ["1.*"]')
    own = ("--set", "model=mine.parts:network", "--set", "data=mine.parts:data")
    out = finished(config, tmp_path / "out", *own)
    record = record_of(out)
    assert (record["network"], record["data"]) == ("mine.parts:network", "mine.parts:data")
    assert record["test_error"] is None  # it has no test set
    assert record["skipped"].keys() == {"1.weight", "1.bias"}
    loaded = reefknot.load(out / "model.reef")
    model = sys.modules["mine.parts"].network()
    model.load_state_dict(loaded)
    # Batch-norm statistics came along, estimated once more at the end: an epoch has one batch.
    assert loaded["1.num_batches_tracked"] == 1
    assert not torch.equal(loaded["1.running_var"], torch.ones(4))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model=mine.parts:nothing", "gave a NoneType; a torch module was expected"),
        ("model=mine.parts:netwrok", "has no 'netwrok' (did you mean 'network'?)"),
        ("model=mine.party:network", "no module 'mine.party'"),
        ("model=digits-mpl", "unknown network 'digits-mpl' (did you mean 'digits-mlp'?)"),
        ("data=mine.parts:nothing", "expected a reefknot.zoo.Data, or a tuple of tensors"),
        ("data=digit", "unknown data set 'digit' (did you mean 'digits'?)"),
        ("settings.include=fc9*", "the pattern 'fc9*' matches no parameter"),
    ],
)
def test_what_is_not_a_network_or_data_is_refused_in_one_sentence(
    own_module: Any, tmp_path: Path, override: str, words: str
) -> None:
    own_module("mine/parts.py", MINE)
    config = digits_config(tmp_path)
    refused(command("run", config, "--out", tmp_path / "out", "--set", override), words)


FAULTY = """
import dataclasses
import torch
from torch import nn
from reefknot.zoo import DATASETS

def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def too_narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(60, 10))

def too_few_classes():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))

def images():
    return nn.Linear(8, 10)

class Pair(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs.flatten(1)), 1

def pair():
    return Pair(64, 10)

class Tired(nn.Linear):
    def forward(self, inputs):
        if self.training and torch.is_grad_enabled():
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps > 3:
                raise OverflowError("no more,\\n  please")
        return super().forward(inputs.flatten(1))

def tired():
    return Tired(64, 10)

def raises():
    raise ZeroDivisionError("one of mine")

def data():
    return DATASETS["digits"]()

def torn():
    def augment(inputs, generator):
        raise KeyError("torn")
    return dataclasses.replace(data(), augment=augment)
"""


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model=mine.faulty:raises", "the network 'mine.faulty:raises' failed with ZeroDivision"),
        ("data=mine.faulty:raises", "the data 'mine.faulty:raises' failed with ZeroDivisionError"),
        (
            "model=mine.faulty:too_narrow",
            "the network 'mine.faulty:too_narrow' on inputs of shape (2, 1, 8, 8) failed with "
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        ),
        (
            "model=mine.faulty:too_few_classes",
            "gave outputs of shape (2, 7); expected (2, classes) with at least 10 classes, since "
            "the largest label of 'digits' is 9",
        ),
        ("model=mine.faulty:images", "gave outputs of shape (2, 1, 8, 10); expected (2, classes)"),
        ("model=mine.faulty:pair", "gave a tuple; expected (2, classes)"),
        (
            "model=mine.faulty:tired",
            "step 4 failed with OverflowError: no more, please; add --debug",
        ),
        ("data=mine.faulty:torn", "step 1 failed with KeyError: 'torn'; add --debug to see where"),
    ],
)
def test_what_a_users_own_code_raises_is_one_sentence(
    own_module: Any, tmp_path: Path, override: str, words: str
) -> None:
    own_module("mine/faulty.py", FAULTY)
    config, out = digits_config(tmp_path), tmp_path / "out"
    refused(command("run", config, "--out", out, "--set", override), words)
    assert not out.exists()


def test_debug_shows_the_traceback(own_module: Any, tmp_path: Path) -> None:
    own_module("mine/faulty.py", FAULTY)
    wrong = ("--out", tmp_path / "out", "--set", "model=mine.faulty:raises")
    done = command("run", digits_config(tmp_path), *wrong, "--debug")
    assert done.exit_code == 2
    assert 'mine/faulty.py", line' in done.stderr
    assert done.stderr.splitlines()[-1].endswith("failed with ZeroDivisionError: one of mine")
    assert "Traceback" not in command("run", digits_config(tmp_path), *wrong).stderr


BLOTS = """
import dataclasses
import torch
from reefknot.zoo import DATASETS

def plain():
    return DATASETS["digits"]()

def blotted():
    return dataclasses.replace(plain(), augment=lambda inputs, _: torch.zeros_like(inputs))

def empty():
    inputs, labels = plain().train
    return dataclasses.replace(plain(), train=(torch.zeros_like(inputs), labels))
"""


def test_teachers_judge_the_images_that_the_model_sees(
    dense: Path, tmp_path: Path, own_module: Any
) -> None:
    """To blot every image out by augmentation is as if all of them were empty."""
    own_module("mine/blots.py", BLOTS)
    config = digits_config(tmp_path)
    teachers = ("--set", f'distillation.teachers=["{dense / "model.reef"}"]')
    losses = {}
    for name in ("plain", "blotted", "empty"):
        out = finished(config, tmp_path / name, "--set", f"data=mine.blots:{name}", *teachers)
        losses[name] = [row["loss"] for row in rows_of(out)]
    assert losses["blotted"] == pytest.approx(losses["empty"], rel=1e-5)
    assert losses["blotted"] != pytest.approx(losses["plain"], rel=1e-2)


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


# -- what a review found --------------------------------------------------------------------


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        refused(command("run", digits_config(tmp_path), "--out", folder), "another process")
    finally:
        os.close(handle)


DRAWN = """
import torch

def network():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 2))

def data():
    inputs = torch.randn(100, 5)
    return inputs, (inputs.sum(1) > 0).long()
"""


def test_data_that_is_drawn_is_the_same_in_every_run(own_module: Any, tmp_path: Path) -> None:
    own_module("mine.py", DRAWN)
    config = digits_config(tmp_path, settings="num_clusters = 3")
    own = ("--set", "model=mine:network", "--set", "data=mine:data")
    files = [finished(config, tmp_path / name, *own) / "model.reef" for name in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()


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
