"""The searches: which trials there are, what is kept of them, and who wins."""

import json
from pathlib import Path

import pytest
from experiments import run as queue
from experiments import searches
from experiments.searches import Search, adopted, go

from reefknot.lab.runs.config import read_config
from reefknot.lab.runs.run import run

RECIPE = """
model = "digits-mlp"
data = "digits"
method = "sparse_apt"
[settings]
num_clusters = 5
tying_strength = 1e-4
l1_strength = 1e-4  # how sparse
[training]
soft_steps = 60
hard_steps = 20
batch_size = 64
evaluate_every = 5
keep_best = true
[optimizer]
name = "adam"
lr = 2e-3
"""
GRID = {"settings.l1_strength": [1e-4, 1e-2], "optimizer.lr": [2e-3, 4e-3]}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe of its own, tables of its own, and a queue in this process."""
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "sparse_apt.toml").write_text(RECIPE)
    monkeypatch.setattr(queue, "RECIPES", tmp_path)
    monkeypatch.setattr(searches, "TABLES", tmp_path / "tables")
    monkeypatch.setitem(searches.PAPER, ("small", "sparse_apt"), (1.0, 1.0, 6))

    class Here:
        def __init__(self, waiting, runs, threads, keep) -> None:
            self.waiting, self.runs, self.keep = waiting, runs, keep

        def go(self) -> int:
            for trial in self.waiting:
                run(trial.config, self.runs / trial.name)
                self.keep(trial, self.runs / trial.name)
            return 0

    monkeypatch.setattr(searches, "Queue", Here)
    return tmp_path


def test_all_settings_are_looked_at_and_the_best_of_them_run_at_full_length(here: Path) -> None:
    first = {"part": 0.25, "keep": 2, "least_rate": 0}
    search = Search("small", "sparse_apt", 1, GRID, first)
    assert [trial.config.plan.steps for trial in search.trials()] == [20] * 4
    assert search.winner() is None
    assert go(search, here / "runs", 1) == 0

    rows = search.rows()
    short, whole = ([row for row in rows if row["steps"] == steps] for steps in (20, 80))
    assert (len(short), len(whole), len(rows)) == (4, 2, 6)
    best = sorted(short, key=lambda row: (row["val_error"], -row["rate_paper"]))[:2]
    assert {(r["settings.l1_strength"], r["optimizer.lr"]) for r in whole} == {
        (r["settings.l1_strength"], r["optimizer.lr"]) for r in best
    }
    for row in whole:
        name = f"{row['settings.l1_strength']:g}_{row['optimizer.lr']:g}_seed{searches.SEED}"
        place = here / "runs" / f"small_sparse_apt_{name}"
        record = json.loads((place / "record.json").read_text())
        assert {key: row[key] for key in searches.MEASURED} == {
            key: record[key] for key in searches.MEASURED
        }
        assert record["test_error"] is None
        assert record["best_step"] > 60
        assert read_config(place / "config.toml").training.threads == 1
    before = search.file.read_bytes()
    assert go(search, here / "nowhere", 1) == 0  # nothing is left
    assert search.file.read_bytes() == before


def row(strength: float, error: float, rate: float, steps: int = 80) -> dict[str, float]:
    tried = {"settings.l1_strength": strength, "optimizer.lr": 2e-3, "steps": steps}
    return tried | {"val_error": error, "rate_paper": rate}


def test_the_least_error_at_the_published_rate_wins_and_is_adopted(here: Path) -> None:
    search = Search("small", "sparse_apt", 1, GRID, {"part": 0.25, "keep": 1, "least_rate": 3})
    search.file.parent.mkdir()
    tried = [row(1e-4, 1.0, 5.9), row(2e-4, 2.0, 6.0), row(1.4e-4, 2.0, 6.5), row(3e-4, 2.5, 9)]
    search.file.write_text(json.dumps([*tried, row(1e-2, 0.5, 99, steps=20)]))
    assert search.winner() == row(1.4e-4, 2.0, 6.5)
    text = adopted(search, RECIPE)
    assert text == RECIPE.replace("l1_strength = 1e-4  # how sparse", "l1_strength = 1.4e-4")


@pytest.mark.parametrize("search", [*searches.searches()], ids=lambda s: f"{s.network}/{s.recipe}")
def test_a_recipe_has_what_its_search_has_found(search: Search) -> None:
    for trial in search.trials():
        assert not trial.config.evaluate_test
        assert trial.config.training.keep_best
    if all(search.row_of(trial) for trial in search.trials()):
        text = (searches.RECIPES / search.network / f"{search.recipe}.toml").read_text()
        assert adopted(search, text) == text
