"""What is shown while a run goes on: nothing is cut, and nothing is called what it is not."""

import contextlib
import io
import json
import logging
import os
import pty
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from safetensors.torch import save_file
from torch import nn

import reefknot
from reefknot import progress
from reefknot.cli import display, main
from reefknot.lab.display import progress_bar
from reefknot.lab.runs.training import Progress
from reefknot.packing.network import Packer
from reefknot.progress import Stage, doing, each

RECORDS = Path(__file__).parents[2] / "experiments" / "records"
VGG = {"loss": 12345678.0, "val_error": 93.21, "density": 0.0123, "predicted_bytes": 59_944_936}
FACTS = "loss 1.23e+07  val 93.21 %  density 0.0123  59,944,936 bytes"


def shown(*rows: dict, total: int = 2_000_000, terminal: bool = True) -> str:
    """All that is written for these measurements where there is room for 80 columns."""
    console = Console(
        file=io.StringIO(), width=80, force_terminal=terminal, _environ={"TERM": "xterm"}
    )
    with progress_bar(total, console) as bar:
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
    with progress_bar(60_000, console) as bar:
        bar.measured(BUDGET)
        bar.stepped(Progress("entered", 58_800, 0.1, 0.1, "frozen"))
    assert "frozen" in console.file.getvalue()


def test_a_phase_that_is_not_known_is_shown_by_its_own_name() -> None:
    assert "sparsify" in shown(VGG | {"phase": "sparsify", "step": 5})


def test_a_dense_run_trains() -> None:
    lines = (RECORDS / "2026-11-16_lenet-300-100_dense-warped_seed0" / "metrics.jsonl").read_text()
    text = shown(*map(json.loads, lines.splitlines()), terminal=False)
    assert set(re.findall(r"^\w+(?: tying)?", text, re.MULTILINE)) == {"training"}


# -- calls that take long ---------------------------------------------------------------------


class Slow(nn.Module):
    def __init__(self, seconds: float = 0.01) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, 64), nn.Linear(64, 30)
        self.seconds = seconds

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.second(torch.relu(self.first(inputs)))


def batches(count: int = 4) -> list[torch.Tensor]:
    return [torch.randn(64, 20) for _ in range(count)]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell at once, and often."""
    monkeypatch.setattr(progress, "SILENCE", 0.0)
    monkeypatch.setattr(progress, "APART", 0.01)
    monkeypatch.setattr(progress, "MORE_APART", 0.0)


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "reefknot")
    return caplog


def nobody_tells() -> bool:
    return not any(thread.name == "reefknot-progress" for thread in threading.enumerate())


@pytest.mark.usefixtures("impatient")
def test_a_slow_pack_tells_layer_pass_and_bytes_to_the_logger(tmp_path: Path, heard) -> None:
    reefknot.pack(Slow(), tmp_path / "m.reef", size=1_800, inputs=batches())
    lines = "\n".join(heard.messages)
    begin = r"^reefknot: packing, \d s: "
    count = r"\w+\.weight, [12] of 2"
    for pattern in (
        rf"measuring what errors do: in {count}$",
        rf"pass 1 of at most 10: quantizing {count}$",  # how long it takes is not known yet
        r"pass 2 of at most 10, the last one: [\d,]+ bytes, [\d.]+% of the budget: "
        rf"quantizing {count}, about \d s for the rest$",
        "pass 1 of at most 10: measuring the outputs$",
    ):
        assert re.search(begin + pattern, lines, re.MULTILINE), (pattern, lines)


@pytest.mark.usefixtures("impatient")
def test_other_calls_say_what_they_do(tmp_path: Path, heard, monkeypatch) -> None:
    tensors = {f"{n}.weight": torch.randn(300, 100) for n in range(3)}
    seen = []

    def noted(what, items, **options):
        return (seen.append(progress._call.stages[0].what) or item for item in items)

    for module in ("packing.pack", "packing.clustering", "format.write"):
        monkeypatch.setattr(sys.modules[f"reefknot.{module}"], "each", noted)
    reefknot.pack(tensors, tmp_path / "m.reef", bits=4)
    assert set(seen) == {"packing"}
    state = reefknot.cluster(tensors, 8)
    reefknot.save(state, tmp_path / "m.reef")
    assert set(seen) == {"packing", "clustering", "saving"}
    for call, what in (
        (lambda: reefknot.inspect(tmp_path / "m.reef"), "inspecting"),
        (lambda: reefknot.verify(tmp_path / "m.reef"), "verifying"),
        (lambda: reefknot.load(tmp_path / "m.reef"), "reading"),
        (lambda: reefknot.shrink(Slow(0.2), torch.zeros(1, 20)), "shrinking"),
    ):
        heard.clear()
        call()
        assert all(f"reefknot: {what}," in line for line in heard.messages)
    assert heard.messages  # the last one is slow


def test_a_pack_shorter_than_three_seconds_says_nothing(tmp_path: Path, heard, capfd) -> None:
    assert progress.until_next(None) == display.Display()(None) == 3.0
    reefknot.pack(Slow(0), tmp_path / "m.reef", bits=8, inputs=batches())
    assert not heard.messages
    assert capfd.readouterr() == ("", "")
    assert nobody_tells()


def test_it_costs_no_thread_if_nobody_listens(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(progress.threading, "Thread", refuse)
    reefknot.pack({"weight": torch.randn(30, 30)}, tmp_path / "m.reef", bits=8)


class _Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError("no more paper")


@pytest.mark.usefixtures("impatient")
def test_an_error_of_a_listener_is_shown_and_the_file_is_written(
    tmp_path: Path, heard, monkeypatch
) -> None:
    errors = []
    monkeypatch.setattr(threading, "excepthook", lambda found: errors.append(found.exc_value))
    logger, broken = logging.getLogger("reefknot"), _Broken()
    logger.addHandler(broken)
    try:
        packed = reefknot.pack(Slow(), tmp_path / "m.reef", bits=8, inputs=batches())
    finally:
        logger.removeHandler(broken)
    assert (tmp_path / "m.reef").stat().st_size == packed.file_bytes
    assert [str(error) for error in errors] == ["no more paper"]
    assert nobody_tells()


class _Keeps:
    def __init__(self) -> None:
        self.told: list[str] = []

    def __call__(self, moment: progress.Moment | None) -> float:
        self.told.append(str(moment))
        return 0.001


def test_an_error_or_ctrl_c_in_a_call_ends_what_is_told_of_it() -> None:
    for kind in (ValueError, KeyboardInterrupt):
        listener = _Keeps()
        with progress.listening(listener), pytest.raises(kind), doing("working"):
            for number in each("on", [1, 2, 3], name=str):
                time.sleep(0.05)
                if number == 2:
                    raise kind
        assert listener.told[-2:] == ["working, 0 s: on 2, 2 of 3", "None"]
        assert nobody_tells()
        assert not progress._call.stages


def test_a_loop_that_is_left_early_does_not_end_what_began_after_it() -> None:
    with progress.listening(_Keeps()), doing("working"):
        with doing("first"):
            loop = each("on", [1, 2], name=str)
            next(loop)
        with doing("second"):
            loop.close()
            assert [stage.what for stage in progress._call.stages] == ["working", "second"]


def test_time_left_is_told_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.time, "monotonic", lambda: 107.0)
    begun = [100.0, 104.0]  # the second of three for three seconds now
    assert Stage("layer", 3, begun=begun).seconds_left is None
    assert Stage("layer", 3, before=[0, 4, 11, 12], begun=begun).seconds_left == 12 - 4 - 3
    assert Stage("layer", 3, before=[0, 4, 5, 5], begun=begun).seconds_left == 0
    assert Stage("layer", 3, sizes=[8, 8, 16], begun=begun).seconds_left == 4 / 8 * 24 - 3
    assert Stage("layer", 3, sizes=[8, 8, 16], begun=begun[:1]).seconds_left is None
    assert Stage("layer", 3, sizes=[0, 8, 16], begun=begun).seconds_left is None


SCRIPT = """
import time, torch
from torch import nn
class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(20, 64), nn.Linear(64, 30)
    def forward(self, inputs):
        time.sleep(0.01)
        return self.second(torch.relu(self.first(inputs)))
def images():
    torch.manual_seed(0)
    return [torch.randn(64, 20) for _ in range(6)]
"""
COMMAND = "pack in.safetensors out.reef --model slow:Slow --inputs slow:images --size 1800 --json"


@pytest.fixture
def slow_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "slow.py").write_text(SCRIPT)
    torch.manual_seed(0)
    save_file(Slow().state_dict(), tmp_path / "in.safetensors")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "slow", raising=False)
    return tmp_path


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """What the command writes to standard error, a terminal of 80 columns, and its exit code."""
    monkeypatch.setattr(display, "SOON", 0.0)
    monkeypatch.setattr(display, "OFTEN", 0.005)
    for name, value in (("TERM", "xterm"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    here, there = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the terminal has no other end any more
            while part := os.read(here, 4096):
                seen.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with open(there, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        with pytest.raises(SystemExit) as ended:
            main(COMMAND.split())
    reader.join()
    os.close(here)
    return b"".join(seen).decode(), ended.value.code


def test_on_a_terminal_a_bar_shows_layer_pass_and_bytes_and_is_removed(
    slow_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, code = on_a_terminal(monkeypatch)
    assert code == 0
    assert json.loads(capsys.readouterr().out)["file_bytes"] <= 1_800
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen).replace("\r", "\n").splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(line.rstrip() for line in lines)
    for line in (
        r"packing [━╸╺]+ \d+ s",
        r"packing [━╸╺]+ \d+ s about \d s for the rest",
        r"pass 2 of at most 10, the last one: [\d,]+ bytes, [\d.]+% of the budget",
        r"quantizing first.weight, 1 of 2",
    ):
        assert re.search(f"^{line}$", text, re.MULTILINE), line
    ending = seen[seen.rindex("packing ") :]
    assert "\x1b[?25h" in ending  # the cursor is back
    assert ending.count("\x1b[2K") >= ending.count("\n")  # and all lines of the bar are erased


@pytest.fixture
def interruptible():
    """Programs that a shell starts in the background ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_removes_the_bar(slow_folder: Path, monkeypatch, capsys) -> None:
    def stopped(*_: object) -> None:
        time.sleep(0.1)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Packer, "at", stopped)
    seen, code = on_a_terminal(monkeypatch)
    assert (capsys.readouterr().out, code) == ("", 130)
    assert seen.endswith("reefknot: stopped\r\n")
    assert seen.rindex("\x1b[?25h") > seen.rindex("pass 1 of at most 10")
    assert not (slow_folder / "out.reef").exists()


@pytest.mark.usefixtures("impatient")
@pytest.mark.usefixtures("slow_folder")
def test_without_a_terminal_lines_go_to_standard_error() -> None:
    result = CliRunner().invoke(main, COMMAND.split())
    assert result.exit_code == 0
    assert json.loads(result.stdout)["file_bytes"] <= 1_800
    lines = result.stderr.splitlines()
    assert any(
        re.fullmatch(r"reefknot: packing, \d+ s: pass 1 of at most 10: quantizing .*", line)
        for line in lines
    )
    assert all(line.startswith("reefknot: ") for line in lines)
