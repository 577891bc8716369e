"""`reefknot shrink`, `export onnx`, `export safetensors` and `inspect --model`."""

import json

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import nn

import reefknot
from reefknot.cli import main

CODE = """
from torch import nn

def model():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))

def pictures():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(12, 2))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a user's own code and a file of their network: one dead unit of three."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_to_shrink.py").write_text(CODE)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[2].weight[:, 1] = 0
    reefknot.save(reefknot.cluster(model.state_dict(), min_size=10_000), tmp_path / "model.reef")
    return tmp_path


def run(*words):
    return CliRunner().invoke(main, list(words))


def test_shrink_writes_what_is_left_and_tells_what_went(folder):
    words = ("shrink", "model.reef", "small.safetensors", "--model", "mine_to_shrink:model")
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert {n: tuple(t.shape) for n, t in load_file("small.safetensors").items()} == {
        "0.weight": (2, 4), "0.bias": (2,), "2.weight": (2, 2), "2.bias": (2,),
    }  # fmt: skip
    assert "23 -> 16" in result.output  # parameters
    assert "18 -> 12" in result.output  # MACs
    size = (folder / "small.safetensors").stat().st_size
    assert f"wrote small.safetensors, {size:,} bytes" in result.output
    again = run(*words)
    assert (again.exit_code, again.output.count("exists; use --force")) == (2, 1)
    assert run(*words, "--force").exit_code == 0
    told = json.loads(run(*words, "--force", "--json").output)
    assert told["parameters"] == [23, 16]
    assert told["file_bytes"] == size
    assert told["layers"][0]["units"] == [3, 2]


def test_inspect_tells_what_could_go(folder):
    result = run("inspect", "model.reef", "--model", "mine_to_shrink:model")
    assert result.exit_code == 0, result.output
    assert "18 -> 12" in result.output
    told = json.loads(run("inspect", "model.reef", "--json").output)
    assert "shrink" not in told
    told = json.loads(
        run("inspect", "model.reef", "--model", "mine_to_shrink:model", "--json").output
    )
    assert told["shrink"]["macs"] == [18, 12]


@pytest.mark.parametrize("target", ["onnx", "safetensors"])
def test_exports_write_a_file_and_tell_bytes_beside_the_reef_file(folder, target):
    out = folder / f"net.{target}"
    words = ("export", target, "model.reef", "--model", "mine_to_shrink:model", "--out", str(out))
    result = run(*words)
    assert result.exit_code == 0, result.output
    sizes = (f"{(folder / 'model.reef').stat().st_size:,} bytes", f"{out.stat().st_size:,} bytes")
    assert all(size in result.output for size in sizes)
    assert ("ONNX Runtime gives the outputs of torch" in result.output) == (target == "onnx")
    assert run(*words).exit_code == 2


def test_a_network_that_does_not_fit_is_one_sentence(folder):
    result = run("shrink", "model.reef", "o.safetensors", "--model", "mine_to_shrink:pictures")
    assert result.exit_code == 2
    assert "does not fit the model" in result.output
    assert not (folder / "o.safetensors").exists()
    result = run("shrink", "model.reef", "o.safetensors", "--model", "lenet-4")
    assert result.exit_code == 2
    assert "unknown network 'lenet-4'" in result.output


def test_the_shape_of_ones_own_network_is_asked_for_and_taken(folder):
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(12, 2))
    reefknot.save(reefknot.cluster(model.state_dict(), min_size=10_000), "model.reef")
    words = ("shrink", "model.reef", "o.safetensors", "--model", "mine_to_shrink:pictures")
    result = run(*words)
    assert result.exit_code == 2
    assert "--input 1x28x28" in result.output
    assert run(*words, "--input", "1x4x4").exit_code == 0
    result = run(*words, "--input", "1x5x4", "--force")
    assert result.exit_code == 2, result.output
    assert "does not take the example input of shape (1, 1, 5, 4)" in result.output
