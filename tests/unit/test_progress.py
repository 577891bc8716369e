"""What is shown while a run goes on: nothing is cut, and nothing is called what it is not."""

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from reefknot.progress import ProgressBar

RECORDS = Path(__file__).parents[2] / "experiments" / "records"
VGG = {"loss": 12345678.0, "val_error": 93.21, "density": 0.0123, "predicted_bytes": 59_944_936}
FACTS = "loss 12345678.0000  val 93.21 %  density 0.0123  ~59,944.9 KB"


def shown(*rows: dict, total: int = 2_000_000, terminal: bool = True) -> str:
    """All that is written for these measurements where there is room for 80 columns."""
    console = Console(
        file=io.StringIO(), width=80, force_terminal=terminal, _environ={"TERM": "xterm"}
    )
    with ProgressBar(total, console) as bar:
        for row in rows:
            bar.measured(row)
            bar.stepped(SimpleNamespace(event="soft", step=row["step"], loss=row["loss"]))
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


def test_a_phase_that_is_not_known_is_shown_by_its_own_name() -> None:
    assert "sparsify" in shown(VGG | {"phase": "sparsify", "step": 5})


def test_a_dense_run_trains() -> None:
    lines = (RECORDS / "2026-11-16_lenet-300-100_dense-warped_seed0" / "metrics.jsonl").read_text()
    text = shown(*map(json.loads, lines.splitlines()), terminal=False)
    assert set(re.findall(r"^\w+(?: tying)?", text, re.MULTILINE)) == {"training"}
