"""`reefknot pack` with a budget: what people type, and what they read."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

import reefknot
from reefknot.cli import main
from reefknot.tensorfile import open_tensors

RNG = np.random.default_rng(0)
MINE = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 64))

def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(64, 64, generator=generator) for _ in range(4)]

def example():
    return torch.zeros(1, 64)

def number():
    return 3

def broken():
    raise RuntimeError("my own mistake")

ready = model()
"""


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)


@pytest.fixture
def weights(tmp_path):
    tensors = {
        "a.weight": RNG.normal(size=(200, 300)).astype("<f4"),
        "a.bias": RNG.normal(size=200).astype("<f4"),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [("25KB", 25_000), ("0.025 mb", 25_000), ("25_000", 25_000), ("25 KiB", 25_600)],
)
def test_sizes_are_written_as_people_write_them(tmp_path, weights, size, num_bytes):
    assert run("pack", weights, tmp_path / "m.reef", "--size", size).exit_code == 0
    assert 0.97 * num_bytes < (tmp_path / "m.reef").stat().st_size <= num_bytes


def test_the_table_tells_bits_and_errors_and_one_line_the_whole(tmp_path, weights):
    result = run("pack", weights, tmp_path / "m.reef", "--bits", 3)
    assert "bits per weight" in result.stdout and "the whole network" in result.stdout
    assert "worst row" in " ".join(result.stdout.split())
    assert "kept exactly: too small" in result.stdout
    result = run("pack", weights, tmp_path / "m.reef", "-f", "--error", 0.1, "--json")
    found = json.loads(result.stdout)
    assert 0.09 < found["worst_row"] <= 0.1
    assert 0.08 < found["relative_error"] <= found["worst_row"]
    assert found["outputs"] is None
    row = next(row for row in found["tensors"] if row["name"] == "a.weight")
    assert row["worst_row"] == found["worst_row"]
    assert 3.0 < row["bits"] < 4.0  # 0.1 of a Gaussian is 3.32 bits at the limit, 3.58 in practice


def test_a_tensor_that_loses_much_is_named_in_words(tmp_path, weights):
    result = run("pack", weights, tmp_path / "m.reef", "--bits", 0.6)
    assert "'a.weight'" in result.stderr and "lose more than a tenth" in result.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--size", "many"], "not a size"),
        (["--size", "1KB", "--bits", "2"], "one of size"),
        (["--bits", "2", "--clusters", "4"], "--clusters"),
        (["--bits", "2", "--inputs", "mine:inputs"], "need a --model"),
        (["--model", "mine:model", "--inputs", "mine:inputs"], "one of --size"),
        (["--size", "100"], "too few"),
    ],
)
def test_mistakes_are_said_in_one_sentence(tmp_path, weights, options, sentence):
    result = run("pack", weights, tmp_path / "m.reef", *options)
    assert result.exit_code == 2
    assert sentence in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "m.reef").exists()


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A user's module with a trained model."""
    monkeypatch.chdir(tmp_path)
    name = f"mine_{abs(hash(tmp_path)) % 10**9}"
    (tmp_path / f"{name}.py").write_text(MINE)
    namespace = {}
    exec(MINE, namespace)
    torch.manual_seed(0)
    state = namespace["model"]().state_dict()
    save_file({k: v.numpy() for k, v in state.items()}, tmp_path / "weights.safetensors")
    return name


@pytest.mark.parametrize("way", ["--inputs", "--example"])
def test_a_model_with_inputs_prints_what_became_of_its_outputs(tmp_path, mine, way):
    function = f"{mine}:{'inputs' if way == '--inputs' else 'example'}"
    arguments = ("pack", "weights.safetensors", "m.reef", "--model", f"{mine}:model", way, function)
    result = run(*arguments, "--size", "6KB", "--for-inference")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "m.reef").stat().st_size <= 6_000
    kind = "held-back" if way == "--inputs" else "random"
    assert f"{kind} inputs: relative error" in result.stdout
    names = {t.name for t in open_tensors(tmp_path / "weights.safetensors")}
    assert set(reefknot.load(tmp_path / "m.reef")) == names


def test_what_is_no_model_is_said(tmp_path, mine):
    arguments = ("pack", "weights.safetensors", "m.reef", "--size", "6KB", "--inputs")
    result = run(*arguments, f"{mine}:inputs", "--model", f"{mine}:number")
    assert result.exit_code == 2 and "a torch module was expected" in result.stderr


def test_a_model_that_is_made_already_is_taken_as_it_is(tmp_path, mine):
    arguments = ("pack", "weights.safetensors", "m.reef", "--bits", 4, "--model", f"{mine}:ready")
    assert run(*arguments, "--inputs", f"{mine}:inputs").exit_code == 0


@pytest.mark.parametrize("option", ["--model", "--inputs"])
def test_a_function_that_fails_is_named_and_debug_shows_where(tmp_path, mine, option):
    names = {"--model": f"{mine}:model", "--inputs": f"{mine}:inputs", option: f"{mine}:broken"}
    words = [word for pair in names.items() for word in pair]
    result = run("pack", "weights.safetensors", "m.reef", "--bits", 4, *words)
    assert result.exit_code == 2 and "Traceback" not in result.stderr
    assert f"{mine}:broken failed: RuntimeError: my own mistake; add --debug" in result.stderr
    shown = run("pack", "weights.safetensors", "m.reef", "--bits", 4, *words, "--debug").stderr
    assert f"{mine}.py" in shown and "add --debug" not in shown


def test_a_half_precision_checkpoint_stays_one(tmp_path, mine):
    half = {k: v.astype("<f2") for k, v in load_file("weights.safetensors").items() if v.ndim}
    count = {"1.num_batches_tracked": np.zeros((), np.int64)}
    save_file(half | count, "half.safetensors")
    words = ("--model", f"{mine}:model", "--inputs", f"{mine}:inputs", "--size", "6KB")
    assert run("pack", "half.safetensors", "m.reef", *words).exit_code == 0
    loaded = reefknot.load(tmp_path / "m.reef")
    assert all(loaded[name].dtype == torch.float16 for name in half)


def test_a_budget_that_the_whole_network_fits_changes_nothing_and_says_so(tmp_path, weights):
    result = run("pack", weights, tmp_path / "m.reef", "--size", "1MB")
    assert "nothing changed: every value reads back as it was" in result.stdout


def test_a_folder_as_model_hubs_have_it_goes_there_and_back(tmp_path):
    folder, back = tmp_path / "hub", tmp_path / "back"
    folder.mkdir()
    back.mkdir()
    (folder / "config.json").write_text("{}")
    first, second = ({n: RNG.normal(size=(40, 50)).astype("<f4")} for n in ("a", "b"))
    save_file(first, folder / "model-00001-of-00002.safetensors")
    save_file(second, folder / "model-00002-of-00002.safetensors")
    where = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = {"metadata": {"total_size": 16_000}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert run("pack", folder, tmp_path / "m.reef").exit_code == 0
    assert run("unpack", tmp_path / "m.reef", back).exit_code == 0
    found = load_file(back / "model.safetensors")
    assert all(np.array_equal(found[n], t) for n, t in (first | second).items())
    save_file(first, folder / "model.safetensors")  # one file, and variants of it beside it
    save_file(first, folder / "model.fp16.safetensors")
    assert [t.name for t in open_tensors(folder)] == ["a"]
    result = run("pack", folder, tmp_path / "s.reef", "--bits", 3)
    assert result.exit_code == 0


SLOW = """
import pathlib, time
import torch
from torch import nn

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(40, 40) for _ in range(8))

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            if number > 2:
                pathlib.Path("begun").touch()
                time.sleep(0.5)
            x = layer(x)
        return x

model = Slow

def inputs():
    return [torch.randn(8, 40) for _ in range(20)]
"""


def interrupted(folder, words, begun):
    """The exit code and stderr of `pack` after Ctrl-C, as soon as files of a pattern are there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "reefknot.cli", "pack", "model.safetensors", "m.reef", *words],
        cwd=folder,
        stderr=subprocess.PIPE,
        # A shell starts what it runs in the background with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not list(folder.glob(begun)) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    return process.returncode, said


def test_ctrl_c_leaves_nothing_half_written(tmp_path):
    big = {f"w{n}": RNG.normal(size=(1000, 1000)).astype("<f4") for n in range(12)}
    save_file(big, tmp_path / "model.safetensors")
    code, said = interrupted(tmp_path, ("--bits", "2"), ".m.reef*")
    assert code == 130 and b"stopped" in said
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.slow
def test_ctrl_c_while_batches_wait_in_the_network_ends_it(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    weights = {
        f"layers.{n}.{kind}": RNG.normal(size=shape).astype("<f4")
        for n in range(8)
        for kind, shape in (("weight", (40, 40)), ("bias", 40))
    }
    save_file(weights, tmp_path / "model.safetensors")
    words = ("--model", "slow:model", "--inputs", "slow:inputs", "--bits", "8")
    code, said = interrupted(tmp_path, words, "begun")
    assert code == 130 and b"stopped" in said
    assert not list(tmp_path.glob("*m.reef*"))
