"""What is shown while a run goes on: nothing is cut, and nothing is called what it is not."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from reefknot.cli.progress import ProgressBar
from reefknot.runs.training import Progress

RECORDS = Path(__file__).parents[2] / "experiments" / "records"
VGG = {"loss": 12345678.0, "val_error": 93.21, "density": 0.0123, "predicted_bytes": 59_944_936}
FACTS = "loss 1.23e+07  val 93.21 %  density 0.0123  59,944,936 bytes"


def shown(*rows: dict, total: int = 2_000_000, terminal: bool = True) -> str:
    """All that is written for these measurements where there is room for 80 columns."""
    console = Console(
        file=io.StringIO(), width=80, force_terminal=terminal, _environ={"TERM": "xterm"}
    )
    with ProgressBar(total, console) as bar:
        for row in rows:
            bar.measured(row)
            bar.stepped(Progress("entered", row["step"], row["loss"], 0.1, row["phase"]))
    text = console.file.getvalue()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize("terminal", [True, False])
def test_no_figure_is_cut_off_at_80_columns(terminal: bool) -> None:
    text = shown(VGG | {"phase": "soft", "step": 1_234_567}, terminal=terminal)
    assert any(line.endswith(FACTS) for line in map(str.rstrip, text.splitlines())), text
    assert "…" not in text
    if terminal:
        assert all(len(line) <= 80 for line in text.replace("\r", "\n").splitlines())
        assert "1234567/2000000" in text


BUDGET = {
    "phase": "commit",
    "step": 58_000,
    "loss": 0.0123,
    "val_error": 1.63,
    "density": 0.0123,
    "predicted_bytes": 3_298,
    "target_bytes": 3_300,
    "num_clusters": 7,
}


@pytest.mark.parametrize("terminal", [True, False])
def test_a_budget_shows_phase_step_loss_error_density_size_of_target_and_clusters(
    terminal: bool,
) -> None:
    text = shown(BUDGET, total=60_000, terminal=terminal)
    facts = "loss 0.0123  val 1.63 %  density 0.0123  3,298 of 3,300 bytes  K 7"
    lines = [line.rstrip() for line in text.replace("\r", "\n").splitlines()]
    if terminal:
        assert facts in lines
        assert any(line.startswith("commit ") and "58000/60000" in line for line in lines)
        assert max(map(len, lines)) <= 80
    else:
        assert lines == [f"commit 58,000 {facts}"]


def test_the_largest_figures_of_a_budget_fit_80_columns() -> None:
    large = BUDGET | VGG | {"phase": "sparsify", "target_bytes": 100_000, "num_clusters": 257}
    lines = shown(large).replace("\r", "\n").splitlines()
    assert "59,944,936 of 100,000 bytes  K 257" in "".join(lines)
    assert sum("val 93.21 %" in line for line in lines) == sum("K 257" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_the_phase_is_the_one_that_was_entered_and_not_that_of_the_last_measurement() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, _environ={"TERM": "xterm"})
    with ProgressBar(60_000, console) as bar:
        bar.measured(BUDGET)
        bar.stepped(Progress("entered", 58_800, 0.1, 0.1, "frozen"))
    assert "frozen" in console.file.getvalue()


def test_a_phase_that_is_not_known_is_shown_by_its_own_name() -> None:
    assert "sparsify" in shown(VGG | {"phase": "sparsify", "step": 5})


def test_a_dense_run_trains() -> None:
    lines = (RECORDS / "2026-11-16_lenet-300-100_dense-warped_seed0" / "metrics.jsonl").read_text()
    text = shown(*map(json.loads, lines.splitlines()), terminal=False)
    assert set(re.findall(r"^\w+(?: tying)?", text, re.MULTILINE)) == {"training"}
