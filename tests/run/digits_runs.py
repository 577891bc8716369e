"""Runs of the digits for the tests: their configuration, the command, and what it leaves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

from reefknot.cli import main
from reefknot.lab.zoo import DATASETS
from reefknot.state import TiedState

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


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


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


def refused(done: Result, words: str, exit_code: int = 2) -> None:
    """One sentence on stderr, no traceback, and the right exit code."""
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == exit_code
    last = done.stderr.splitlines()[-1]
    assert last.startswith("reefknot: ")
    assert words in last
    assert done.stderr.count("reefknot: ") == 1
