"""The queue: what becomes of a finished run."""

import datetime
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments import packed
from experiments import run as queue
from experiments.run import Job, record

import reefknot
from reefknot.format import open_state
from reefknot.lab.runs.config import read_config
from reefknot.lab.runs.run import run
from reefknot.lab.runs.training import error_percent
from reefknot.lab.zoo import DATASETS

MODULE = """
from torch import nn

def model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        nn.Linear(576, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10),
    )
"""
RECIPE = """
model = "queued:model"
data = "digits"
method = "dense"
[training]
steps = 30
batch_size = 64
threads = 1
[optimizer]
name = "adam"
lr = 1e-2
"""


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a dense run, with records to be put elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(queue, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(queue, "jobs", lambda: [])
    (tmp_path / "queued.py").write_text(MODULE)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    run(read_config(tmp_path / "recipe.toml"), tmp_path / "run")
    return tmp_path / "run"


JOB = Job("small", "dense", 0, 1)


def test_a_small_file_is_kept_as_it_is(finished: Path) -> None:
    place = record(JOB, finished)
    assert place.name == f"{datetime.date.today().isoformat()}_small_dense_seed0"
    for name in ("record.json", "model.reef"):
        assert (place / name).read_bytes() == (finished / name).read_bytes()


def test_a_large_file_is_packed_and_its_record_is_that_of_the_packed_file(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MOST_BYTES", 1_000)
    place = record(JOB, finished)
    before = json.loads((finished / "record.json").read_text())
    after = json.loads((place / "record.json").read_text())
    file = place / "model.reef"
    stored = reefknot.load(file)
    for name in ("0.weight", "4.weight"):
        assert len(stored[name].unique()) <= 256
    assert after["file_bytes"] == file.stat().st_size < before["file_bytes"] / 2
    assert (after["val_error_soft"], after["num_clusters"]) == (before["val_error"], 256)
    assert after["original_bytes"] == before["original_bytes"]
    assert (after["seconds"], after["seed"]) == (before["seconds"], 0)

    model = __import__("queued").model()
    data = DATASETS["digits"]()
    assert data.test is not None
    model.load_state_dict(stored)
    assert after["test_error"] == error_percent(model, *data.test, exact=True)
    assert after["val_error"] == error_percent(model, *data.validation, exact=True)
    assert after["density"] == open_state(file).density


def test_balanced_layers_have_the_same_outputs_and_comparable_weights(finished: Path) -> None:
    model = __import__("queued").model()
    model.load_state_dict(reefknot.load(finished / "model.reef"))
    model.eval()
    inputs = DATASETS["digits"]().validation.inputs
    with torch.no_grad():
        before = model(inputs)
        packed.balance_(model)
        torch.testing.assert_close(model(inputs), before, rtol=1e-4, atol=1e-4)
    # 0.05 for 36,864 weights, and a fourth root of the number of weights less.
    for layer in (model[0], model[4]):
        rms = float(layer.weight.detach().square().mean().sqrt())
        np.testing.assert_allclose(rms, 0.05 * (36_864 / layer.weight.numel()) ** 0.25, rtol=1e-5)


def test_a_record_gets_the_name_by_which_another_recipe_needs_it(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other:
        needs = tuple(
            Path(f"../records/{name}/model.reef")
            for name in ("2020-01-01_small_dense-decay_seed0", "2020-01-02_small_dense_seed0")
        )

    monkeypatch.setattr(queue, "jobs", lambda: [Other])
    assert record(JOB, finished).name == "2020-01-02_small_dense_seed0"


def test_a_record_of_an_earlier_recipe_does_not_count_and_makes_way(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "RECIPES", finished.parents[0])
    recipe = finished.parent / "small" / "dense.toml"
    recipe.parent.mkdir()
    recipe.write_text(RECIPE)
    job = Job("small", "dense", 7, 1)
    place = record(job, finished)
    earlier = place.rename(place.with_name("2020-01-01_small_dense_seed7"))
    assert job.is_done  # seeds, dates and how often there is a checkpoint do not matter
    recipe.write_text(RECIPE.replace("lr = 1e-2", "lr = 2e-2"))
    changed = Job("small", "dense", 7, 1)
    assert not changed.is_done
    record(changed, finished)
    assert not earlier.exists()
    assert [path.name for path in queue.RECORDS.iterdir()] == [place.name]
