"""`reefknot run` from a configuration to a folder: what is in it, parents, budgets, baselines."""

import os
import re
import shlex
import signal
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from digits_runs import (
    command,
    contents,
    digits_config,
    finished,
    perceptron_error,
    record_of,
    refused,
    rows_of,
)
from safetensors.torch import load_file, save_file

import reefknot
from reefknot.format import open_state
from reefknot.lab.runs.config import read_config
from reefknot.lab.runs.parts import build
from reefknot.lab.runs.run import InterruptedRunError, run

# What docs/runs.md promises of a record and of a row of the metrics.
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
    assert {row["phase"] for row in rows_of(dense)} == {"training"}
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
    assert (rows[-1]["step"], {row["phase"] for row in rows}) == (600, {"training"})
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
    out = finished(config, tmp_path / "out", "--set", "training.steps=200")
    assert phases_of(out)["sparsify"] / 200 < phases_of(budget)["sparsify"] / 600 - 0.1
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
