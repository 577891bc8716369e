"""A run killed at any point and resumed gives bit for bit what it would have given.

The killed runs are real processes that get a real SIGKILL. They are forked from a server that has
torch imported already, which is all that makes them cheaper than `reefknot` itself; what is left
is the command line. Runs that are not killed happen in this process.
"""

import contextlib
import functools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from click.testing import CliRunner, Result

from reefknot.checkpoint import read_checkpoint, write_checkpoint
from reefknot.cli import main
from reefknot.lab.baselines import METHODS
from reefknot.lab.runs.config import read_config
from reefknot.lab.runs.run import InterruptedRunError, run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and fork")

# A user's own module. PAUSE slows training down, so that there is time to hit a moment. HOLD, a
# run's folder, a phase and a step, makes training wait there until a file says that it was struck.
MODULE = """
import json, os, time
from pathlib import Path
import torch
from torch import nn

def data():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(160, 6, generator=generator)
    labels = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()
    return inputs[:120], labels[:120], inputs[120:], labels[120:]

def pause(module, inputs):
    if module.training:
        time.sleep(float(os.environ.get("PAUSE", 0)))
        if hold := os.environ.get("HOLD"):
            folder, phase, step = hold.split(":")
            while held(Path(folder), phase, int(step)) and not Path(f"{folder}.struck").exists():
                time.sleep(0.002)

def held(folder, phase, step):
    metrics = folder / "metrics.jsonl"
    if not metrics.exists() or not (folder / "checkpoint.safetensors").exists():
        return False
    rows = metrics.read_text().splitlines()
    row = json.loads(rows[-1]) if rows else {"phase": "", "step": -1}
    return row["phase"] == phase and row["step"] >= step

def mlp():
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    model.register_forward_pre_hook(pause)
    return model

def norm_and_dropout():
    model = nn.Sequential(
        nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 3)
    )
    model.register_forward_pre_hook(pause)
    return model

def wide():
    model = nn.Sequential(nn.Linear(6, 60), nn.ReLU(), nn.Dropout(0.3), nn.Linear(60, 3))
    model.register_forward_pre_hook(pause)
    return model
"""

CONFIG = """
model = "resumed:{model}"
data = "resumed:data"
method = "{method}"
[settings]
{settings}
[training]
{length}
batch_size = 16
evaluate_every = {evaluate}
checkpoint_every = {checkpoint}
threads = 1
[optimizer]
name = "{optimizer}"
lr = {lr}
{options}
"""
TYING = "num_clusters = 5\ntying_strength = 1e-2\nrefit_every = 7"
MOMENTUM_OPTION = 'decay = "cosine"\n[optimizer.options]\nmomentum = 0.9'


class Case(NamedTuple):
    """A configuration; `evaluate` and `checkpoint` are not in step, so rows get rewritten."""

    model: str = "mlp"
    optimizer: str = "adam"
    lr: float = 0.01
    options: str = 'decay = "cosine"'
    soft: int = 24
    hard: int = 24
    evaluate: int = 4
    checkpoint: int = 6
    settings: str = TYING
    steps: int = 0  # of a budget, in place of `soft` and `hard`
    shrink: bool = False
    method: str = "sparse_apt"
    keep_best: bool = False

    @property
    def text(self) -> str:
        """The configuration as TOML."""
        parts = f"soft_steps = {self.soft}\nhard_steps = {self.hard}"
        length = f"steps = {self.steps}" if self.steps else parts
        length += "\nshrink = true" if self.shrink else ""
        length += "\nkeep_best = true" if self.keep_best else ""
        return CONFIG.format(**self._asdict(), length=length)


MOMENTUM = Case(optimizer="sgd", lr=0.1, options=MOMENTUM_OPTION)
ADAM = Case(optimizer="adam", lr=0.01)
NORMS = Case(model="norm_and_dropout", optimizer="adadelta", lr=1.0)
TINY = Case(model="norm_and_dropout", soft=3, hard=3, evaluate=2, checkpoint=2)
# Every step is measured: assignments change at each step of `commit`, not only at a refit.
BUDGET = Case(
    model="norm_and_dropout",
    options="",
    evaluate=1,
    checkpoint=5,
    settings="target_bytes = 420",
    steps=100,
)
SHRUNK = Case(model="wide", options="", settings="target_density = 0.1", steps=100, shrink=True)
AVERAGED = Case(
    model="norm_and_dropout",
    optimizer="sgd",
    lr=0.1,
    options='decay = "one_cycle"\n[optimizer.options]\nmomentum = 0.9\nweight_decay = 1e-2',
    soft=40,
    hard=8,
    settings="average_steps = 5",
    method="dense",
)
PLATEAU = Case(options='decay = "plateau"', lr=0.3, soft=60, hard=30, evaluate=1)
# Hard steps that are far too large: the last state is not the best one.
KEPT = Case(
    model="norm_and_dropout",
    optimizer="sgd",
    lr=0.1,
    options='decay = "constant"\nhard_lr = 3.0',
    hard=40,
    evaluate=1,
    keep_best=True,
)
# The phases of 100 steps and where they end.
PHASES = {"sparsify": 66, "recover": 72, "commit": 98, "frozen": 100}


# -- running --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the user's module in it; runs happen there."""
    folder = tmp_path_factory.mktemp("resumed")
    (folder / "resumed.py").write_text(MODULE)
    return folder


@pytest.fixture(autouse=True)
def _here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield
    sys.modules.pop("resumed", None)


def arguments(case: Case, out: str, *more: str) -> list[str]:
    """The command line of a run of this case; its configuration file is written on the way."""
    path = Path(f"{abs(hash(case)):x}.toml")
    path.write_text(case.text)
    return ["run", str(path), "--out", out, *more]


def run_here(*args: str) -> Result:
    return CliRunner().invoke(main, args)


@functools.cache
def uninterrupted(case: Case) -> dict[str, Any]:
    """What a run leaves behind that nobody interrupts."""
    out = f"whole-{abs(hash(case)):x}"
    done = run_here(*arguments(case, out))
    assert done.exit_code == 0, done.stderr
    return results(Path(out))


def results(folder: Path) -> dict[str, Any]:
    """All that two runs of one configuration must agree in."""
    record = json.loads((folder / "record.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for timed in (record, *rows):
        del timed["seconds"]
    for row in rows:
        assert row.pop("step_seconds") >= 0
    return {
        "model": (folder / "model.reef").read_bytes(),
        "config": (folder / "config.toml").read_bytes(),
        "record": record,
        "rows": rows,
        "files": sorted(os.listdir(folder)),
    }


def agree(found: dict[str, Any], case: Case) -> None:
    """The parts that differ are named, before their bytes are shown."""
    expected = uninterrupted(case)
    assert [key for key in expected if found[key] != expected[key]] == []


def resume(case: Case, out: str) -> None:
    begun = ["--resume"] if Path(out).exists() else []  # a kill may come before the folder is made
    done = run_here(*arguments(case, out, *begun))
    assert done.exit_code == 0, done.stderr
    agree(results(Path(out)), case)


# -- processes ------------------------------------------------------------------------------


def _command(args: list[str], errors: str, pause: float, hold: str, moment: int, log: str) -> None:
    """In another process: the command, with a SIGKILL just before its `moment`-th file operation.

    The operations on files in the run's folder are counted, and noted in `log`.
    """
    os.environ |= {"PAUSE": str(pause), "HOLD": hold}
    handle = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if log:
        _watch(f"/{args[3]}", moment, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    main(args, prog_name="reefknot")


def _watch(folder: str, moment: int, log: int) -> None:
    kinds = {"open", "os.mkdir", "os.chmod", "os.rename", "os.remove", "os.truncate"}
    seen = 0

    def hook(event: str, values: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in kinds and folder in str(Path.cwd() / str(values[0])):
            seen += 1
            os.write(log, f"{event} {Path(str(values[0])).name}\n".encode())
            if seen == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


@pytest.fixture(scope="module")
def server() -> Any:
    """Where processes are forked from."""
    context = multiprocessing.get_context("forkserver")
    # The last one is what making an optimizer imports: a second for each process otherwise.
    context.set_forkserver_preload(
        [
            "reefknot.lab.runs.run",
            "reefknot.lab.display",
            "reefknot.lab.display",
            "torch._dynamo",
            "pytest",
        ]
    )
    return context


def start(
    server: Any,
    args: list[str],
    *,
    pause: float = 0.0,
    hold: str = "",
    moment: int = 0,
    log: str = "",
) -> Any:
    process = server.Process(
        target=_command, args=(args, f"{args[3]}.errors", pause, hold, moment, log), daemon=True
    )
    process.start()
    return process


def rows_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    whole = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole]


def struck(server: Any, args: list[str], phase: str, number: int) -> Any:
    """A run that gets a signal while it waits in a phase, at a step that has left a checkpoint."""
    folder, step = Path(args[3]), FROM_STEP[phase]
    mark = Path(f"{folder}.struck")
    mark.unlink(missing_ok=True)
    process = start(server, args, hold=f"{folder}:{phase}:{step}")
    deadline = time.monotonic() + 60
    while not (
        (folder / "checkpoint.safetensors").exists()
        and any(row["phase"] == phase and row["step"] >= step for row in rows_of(folder)[-1:])
    ):
        assert process.is_alive(), Path(f"{folder}.errors").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.kill(process.pid, number)
    mark.touch()
    process.join(60)
    return process


# A run is struck from this step of a phase on.
FROM_STEP = {"training": 20, "sparsify": 8, "recover": 0, "commit": 0, "frozen": 0}


# -- killed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["sparsify", "frozen"])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(MOMENTUM, id="momentum", marks=pytest.mark.slow),
        pytest.param(ADAM, id="adam", marks=pytest.mark.slow),
        pytest.param(NORMS, id="norms"),
    ],
)
def test_a_killed_run_resumes_bit_for_bit(server: Any, case: Case, phase: str) -> None:
    out = Path(f"killed-{case.optimizer}-{phase}")
    process = struck(server, arguments(case, str(out)), phase, signal.SIGKILL)
    assert process.exitcode == -signal.SIGKILL
    assert not (out / "record.json").exists()
    assert rows_of(out)[-1]["phase"] == phase
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"phase": "so')  # as a row that was being written leaves it
    resume(case, str(out))


def test_a_run_with_an_average_resumes_bit_for_bit(server: Any) -> None:
    killed_in("training", AVERAGED, server, Path("killed-averaged"))
    resume(AVERAGED, "killed-averaged")


def test_a_run_with_a_plateau_resumes_bit_for_bit(server: Any) -> None:
    lrs = {row["lr"] for row in uninterrupted(PLATEAU)["rows"]}
    assert len(lrs) > 2
    killed_in("sparsify", PLATEAU, server, Path("killed-plateau"))
    resume(PLATEAU, "killed-plateau")


def test_a_run_that_keeps_its_best_state_resumes_bit_for_bit(server: Any) -> None:
    whole = uninterrupted(KEPT)
    hard = [row for row in whole["rows"] if row["phase"] == "frozen"]
    least = min(row["val_error"] for row in hard)
    assert hard[-1]["val_error"] > least
    best = next(row for row in hard if row["val_error"] == least)
    assert whole["record"]["best_step"] == best["step"]
    assert whole["record"]["val_error"] == least
    assert whole["record"]["density"] == best["density"]

    with_the_last = uninterrupted(KEPT._replace(keep_best=False))
    assert with_the_last["rows"] == whole["rows"]
    assert with_the_last["record"]["best_step"] is None
    assert with_the_last["record"]["val_error"] != least

    config, out = read_config(Path(arguments(KEPT, "stopped")[1])), Path("stopped-kept")
    for step in (best["step"], best["step"] + 1, KEPT.soft + KEPT.hard - 1):
        with pytest.raises(InterruptedRunError):
            run(config, out, resume=out.exists(), display=StopAt(step))
    resume(KEPT, str(out))
    killed_in("frozen", KEPT, server, Path("killed-kept"))
    resume(KEPT, "killed-kept")


def test_a_best_state_that_does_not_fit_is_refused_in_one_sentence() -> None:
    crafted = {
        "a step of text": change("best", "step", to="1"),
        "an error of 200 %": change("best", "val_error", to=200.0),
        "a weight of another shape": change("best", "model", "0.weight", to=lambda t: t[:3]),
        "a weight that is not finite": change("best", "model", "0.weight", to=nan),
        "no centers": drop("best", "method", "network/centers"),
        "no method": drop("best", "method"),
    }
    out = crash(KEPT, "kept-to-damage", KEPT.soft + 20)
    checkpoint = out / "checkpoint.safetensors"
    whole = checkpoint.read_bytes()
    for craft in crafted.values():
        checkpoint.write_bytes(whole)
        tree = read_checkpoint(checkpoint)
        craft(tree)
        write_checkpoint(checkpoint, tree)
        refused_in_one_sentence(KEPT, checkpoint, "does not fit this run")
    checkpoint.write_bytes(whole)
    resume(KEPT, str(out))


def test_a_budget_goes_through_all_of_its_phases_and_ends_at_its_size() -> None:
    whole = uninterrupted(BUDGET)
    found = {row["phase"]: row["step"] for row in whole["rows"]}
    assert found == PHASES
    assert list(found) == list(PHASES)
    assert len(whole["model"]) <= 420


def killed_in(phase: str, case: Case, server: Any, out: Path) -> None:
    process = struck(server, arguments(case, str(out)), phase, signal.SIGKILL)
    assert process.exitcode == -signal.SIGKILL
    assert not (out / "record.json").exists()
    assert rows_of(out)[-1]["phase"] == phase


def some(values: Iterable[Any], quick: Any) -> list[Any]:
    """One of several cases of one idea; the others are slow."""
    marks = {True: (), False: pytest.mark.slow}
    return [pytest.param(value, marks=marks[value == quick]) for value in values]


@pytest.mark.parametrize("phase", some(PHASES, "commit"))
def test_a_run_killed_in_any_phase_of_a_budget_resumes_bit_for_bit(server: Any, phase: str) -> None:
    out = Path(f"killed-budget-{phase}")
    killed_in(phase, BUDGET, server, out)
    resume(BUDGET, str(out))


@pytest.mark.parametrize("phase", some(["commit", "frozen"], "frozen"))
def test_a_killed_run_that_shrinks_while_it_trains_resumes_bit_for_bit(
    server: Any, phase: str
) -> None:
    out = Path(f"killed-shrunk-{phase}")
    killed_in(phase, SHRUNK, server, out)
    resume(SHRUNK, str(out))


def test_a_run_that_shrinks_leaves_units_out_once_zeros_are_fixed() -> None:
    """Dropout has fewer numbers to draw then, so that losses are others."""
    rows, whole = (
        uninterrupted(SHRUNK._replace(shrink=shrink))["rows"] for shrink in (True, False)
    )
    losses = {
        phase: [
            [row["loss"] for row in own if (row["phase"] == "sparsify") == (phase == "sparsify")]
            for own in (rows, whole)
        ]
        for phase in ("sparsify", "later")
    }
    assert losses["sparsify"][0] == losses["sparsify"][1]
    assert losses["later"][0] != losses["later"][1]


class StopAt:
    """A display that asks the run to stop after a step, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, progress: Any) -> None:
        if progress.event == "step" and progress.step == self.step:
            os.kill(os.getpid(), signal.SIGINT)

    def measured(self, row: dict[str, Any]) -> None:
        pass


def test_a_run_stopped_in_each_phase_of_a_budget_and_where_it_ends_resumes_bit_for_bit() -> None:
    config, out = read_config(Path(arguments(BUDGET, "stopped")[1])), Path("stopped-budget")
    stops = {step - before for step in (2, *PHASES.values()) for before in (0, 1)}
    for stop in sorted(stops - {BUDGET.steps}):
        with pytest.raises(InterruptedRunError, match=f"stopped after step {stop};"):
            run(config, out, resume=out.exists(), display=StopAt(stop))
    resume(BUDGET, str(out))


@pytest.mark.slow
def test_a_run_killed_twenty_times_resumes_bit_for_bit(server: Any) -> None:
    case, out = NORMS._replace(soft=300, hard=300), Path("twenty")
    moments = random.Random(0)
    for kill in range(20):
        begun = ["--resume"] if out.exists() else []
        before = saved_at(out)
        process = start(server, arguments(case, str(out), *begun), pause=0.005)
        if kill % 4:  # else while it starts
            while process.is_alive() and saved_at(out) == before:
                time.sleep(0.001)
        process.join(moments.uniform(0.0, 0.05))
        assert process.is_alive(), Path(f"{out}.errors").read_text()
        process.kill()
        process.join(60)
    assert not (out / "record.json").exists()
    resume(case, str(out))


def saved_at(folder: Path) -> int:
    path = folder / "checkpoint.safetensors"
    return path.stat().st_mtime_ns if path.exists() else 0


@pytest.mark.slow
def test_a_run_killed_twice_resumes_bit_for_bit(server: Any) -> None:
    for flags, phase in ([], "sparsify"), (["--resume"], "frozen"):
        process = struck(server, arguments(NORMS, "twice", *flags), phase, signal.SIGKILL)
        assert process.exitcode == -signal.SIGKILL
    resume(NORMS, "twice")


@pytest.mark.slow
def test_a_run_killed_at_a_random_moment_resumes_bit_for_bit(server: Any) -> None:
    delay = random.SystemRandom().uniform(0.0, 0.4)
    process = start(server, arguments(NORMS, "random"), pause=0.004)
    time.sleep(delay)
    process.kill()
    process.join(60)
    print(f"killed after {delay:.4f} s")  # pytest shows it if the test fails
    resume(NORMS, "random")


@pytest.fixture(scope="module")
def operations(place: Path, server: Any) -> list[str]:
    """What a tiny run does in its folder, in order: the moments at which a kill could hurt."""
    with contextlib.chdir(place):
        process = start(server, arguments(TINY, "watched"), log="watched.log")
        process.join(60)
        assert process.exitcode == 0, Path("watched.errors").read_text()
        return Path("watched.log").read_text().splitlines()


def resumes_from_each(moments: dict[int, str], server: Any, name: str) -> None:
    """Kill a run before each of these file operations and resume it; name those that go wrong."""
    wrong = []
    for moment, operation in moments.items():
        out = f"{name}-{moment}"
        process = start(server, arguments(TINY, out), moment=moment, log=f"{out}.log")
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        begun = ["--resume"] if Path(out).exists() else []
        done = run_here(*arguments(TINY, out, *begun))
        if done.exit_code != 0:
            wrong.append(f"{moment} {operation}: {done.stderr}")
            continue
        found, expected = results(Path(out)), uninterrupted(TINY)
        differing = [key for key in expected if key != "files" and found[key] != expected[key]]
        if differing:
            wrong.append(f"{moment} {operation}: {differing} differ")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_a_run_killed_before_each_kind_of_file_operation_resumes_bit_for_bit(
    server: Any, operations: list[str]
) -> None:
    # The last operation of each kind on each file; names of temporary files have a random part.
    last = {
        re.sub(r"\.\w{8,12}(\.tmp)?$", "", operation): (moment, operation)
        for moment, operation in enumerate(operations, start=1)
    }
    for name in ("config.toml", "checkpoint.safetensors", "model.reef", "record.json", "report"):
        assert any(name in kind for kind in last)
    resumes_from_each(dict(last.values()), server, "kind")


@pytest.mark.slow
def test_a_run_killed_before_any_file_operation_resumes_bit_for_bit(
    server: Any, operations: list[str]
) -> None:
    resumes_from_each(dict(enumerate(operations, start=1)), server, "moment")


Kill = Callable[[str, str], None]


@pytest.fixture
def killed_at(server: Any, operations: list[str]) -> Kill:
    """Leaves a run as a kill just before the last operation of this name leaves it."""

    def leave(out: str, operation: str) -> None:
        found = [n for n, known in enumerate(operations, start=1) if operation in known]
        process = start(server, arguments(TINY, out), moment=found[-1], log=f"{out}.log")
        process.join(60)
        assert process.exitcode == -signal.SIGKILL

    return leave


def test_a_run_killed_between_record_and_report_gets_its_report(killed_at: Kill) -> None:
    killed_at("unreported", "open .report.html")
    assert (Path("unreported") / "record.json").exists()
    assert not (Path("unreported") / "report.html").exists()
    resume(TINY, "unreported")


def test_what_a_killed_write_left_behind_is_cleaned_up(killed_at: Kill) -> None:
    # The temporary file of a checkpoint is as large as the checkpoint.
    killed_at("littered", "os.rename .checkpoint.safetensors")
    assert any(name.endswith(".tmp") for name in os.listdir("littered"))
    resume(TINY, "littered")


# -- asked to stop --------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_resumes_bit_for_bit(server: Any, number: int) -> None:
    out = Path(f"stopped-{number}")
    process = struck(server, arguments(ADAM, str(out)), "sparsify", number)
    assert process.exitcode == 130
    errors = Path(f"{out}.errors").read_text()
    assert errors.splitlines()[-1].startswith("reefknot: stopped after step ")
    assert errors.splitlines()[-1].endswith("; add --resume to continue")
    assert "Traceback" not in errors
    resume(ADAM, str(out))


# -- refused, or nothing to do --------------------------------------------------------------


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_resuming_with_another_configuration_is_refused_and_harms_nothing(killed_at: Kill) -> None:
    killed_at("other", "os.rename .model.reef")
    before = files_of(Path("other"))
    done = run_here(*arguments(TINY, "other", "--resume", "--set", "optimizer.lr=0.5"))
    assert done.exit_code == 2
    assert "started with another configuration" in done.stderr
    assert "optimizer.lr = 0.01; optimizer.lr = 0.5" in done.stderr
    assert files_of(Path("other")) == before
    resume_exit = run_here(*arguments(TINY, "other")).exit_code
    assert resume_exit == 2  # without --resume an existing folder is refused
    assert files_of(Path("other")) == before


def test_resuming_a_finished_run_changes_nothing() -> None:
    assert run_here(*arguments(TINY, "finished")).exit_code == 0
    before = files_of(Path("finished"))
    done = run_here(*arguments(TINY, "finished", "--resume"))
    assert done.exit_code == 0
    assert "model.reef" in done.stdout
    assert files_of(Path("finished")) == before


def test_resuming_what_was_never_begun_is_refused() -> None:
    done = run_here(*arguments(TINY, "never-begun", "--resume"))
    assert done.exit_code == 2
    assert done.stderr == (
        "reefknot: never-begun does not exist, so there is nothing to resume; start without "
        "--resume\n"
    )
    assert not Path("never-begun").exists()


# -- two at once ----------------------------------------------------------------------------


def test_resuming_beside_a_running_run_is_refused_and_does_not_disturb_it(server: Any) -> None:
    case, out = NORMS._replace(checkpoint=1), "beside"
    process = start(server, arguments(case, out), hold=f"{out}:sparsify:8")
    while not Path(out, "checkpoint.safetensors").exists():
        assert process.is_alive()
    for _ in range(6):
        done = run_here(*arguments(case, out, "--resume"))
        assert (done.exit_code, done.stderr) == (
            2,
            "reefknot: another process is running in beside; wait for it\n",
        )
    Path(f"{out}.struck").touch()  # it goes on
    process.join(60)
    assert process.exitcode == 0, Path(f"{out}.errors").read_text()
    agree(results(Path(out)), case)


@pytest.mark.parametrize("times", some([1, 8], 1))
def test_of_two_runs_that_start_in_one_fresh_folder_exactly_one_goes_on(
    server: Any, times: int
) -> None:
    for number in range(times):
        out = Path(f"raced-{times}-{number}")
        processes = []
        for seed in (0, 1):
            args = [*arguments(TINY, str(out)), "--set", f"seed={seed}"]
            context = {"args": (args, f"{out}.{seed}.errors", 0.02, "", 0, ""), "daemon": True}
            processes.append(server.Process(target=_command, **context))
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        codes = [process.exitcode for process in processes]
        assert sorted(codes) == [0, 2]
        loser, winner = (Path(f"{out}.{codes.index(code)}.errors").read_text() for code in (2, 0))
        assert "Traceback" not in loser + winner
        assert loser.splitlines() == [loser.strip()]
        assert "another process is running in" in loser or "already exists" in loser
        alone = f"alone-{codes.index(0)}"
        if not Path(alone).exists():
            args = [*arguments(TINY, alone), "--set", f"seed={codes.index(0)}"]
            assert run_here(*args).exit_code == 0
        assert results(out) == results(Path(alone))


# -- crashed, and damaged -------------------------------------------------------------------


class CrashError(Exception):
    """Not ours."""


class CrashAt:
    """A display that raises after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, progress: Any) -> None:
        if progress.step >= self.step:
            raise CrashError

    def measured(self, row: dict[str, Any]) -> None:
        pass


def crash(case: Case, out: str, step: int, *, again: bool = False) -> Path:
    """Leaves a run as a crash after this step leaves it."""
    config = read_config(Path(arguments(case, out)[1]))
    with pytest.raises(CrashError):
        run(config, Path(out), resume=again, display=CrashAt(step))
    return Path(out)


def test_every_figure_of_the_metrics_is_as_undisturbed() -> None:
    # Rows between the checkpoint and the next refit, in each phase and where it ends.
    ends = list(PHASES.values())
    for number, step in enumerate((6, 31, ends[0], 69, ends[1], 76, 93, ends[2], 99)):
        crash(BUDGET, "figures", step, again=number > 0)
    resume(BUDGET, "figures")


@pytest.mark.parametrize("damage", ["cut", "gone", "garbage", "longer"])
def test_metrics_are_made_whole_again_whatever_happened_to_the_file(damage: str) -> None:
    path = crash(ADAM, f"metrics-{damage}", 29) / "metrics.jsonl"
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        changed = {"cut": content[:300], "garbage": b"\xff" * 500, "longer": content + content}
        path.write_bytes(changed[damage])
    resume(ADAM, str(path.parent))


def test_a_file_that_is_gone_is_written_again_from_the_checkpoint() -> None:
    out = crash(TINY, "file-gone", 6)  # after the last step
    (out / "record.json").write_text("{}")
    resume(TINY, str(out))


def refused_in_one_sentence(case: Case, checkpoint: Path, words: str) -> None:
    done = run_here(*arguments(case, str(checkpoint.parent), "--resume"))
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == 2, done.stderr
    assert done.stderr.startswith(f"reefknot: {checkpoint} {words}")
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def stopped(place: Path) -> Path:
    """A run that crashed in soft tying."""
    with contextlib.chdir(place):
        return crash(ADAM, "to-damage", 20).absolute()


@pytest.fixture
def checkpoint(stopped: Path, request: pytest.FixtureRequest) -> Path:
    """The checkpoint of a copy of it, to be damaged."""
    copy = shutil.copytree(stopped, f"damaged-{abs(hash(request.node.name)):x}")
    return Path(copy) / "checkpoint.safetensors"


@pytest.mark.parametrize(
    "damaged",
    [
        lambda content: b"\x80\x04 not a checkpoint",
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        lambda content: content[: len(content) // 2] + bytes(len(content) - len(content) // 2),
    ],
    ids=["text", "empty", "cut", "longer", "one bit", "half zero"],
)
def test_a_damaged_checkpoint_is_refused_in_one_sentence(
    checkpoint: Path, damaged: Callable[[bytes], bytes]
) -> None:
    checkpoint.write_bytes(damaged(checkpoint.read_bytes()))
    refused_in_one_sentence(ADAM, checkpoint, "is not a checkpoint that can be read")


def assignments(tree: Any) -> list[str]:
    return [key for key in tree["method"] if "/assignment." in key]


def change(*keys: Any, to: Any) -> Callable[[Any], None]:
    """Replaces one entry of a tree; a function is given the old value."""

    def apply(tree: Any) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        tree[keys[-1]] = to(tree[keys[-1]]) if callable(to) else to

    return apply


def change_assignments(which: slice, to: Callable[[torch.Tensor], Any]) -> Callable[[Any], None]:
    def apply(tree: Any) -> None:
        for key in assignments(tree)[which]:
            tree["method"][key] = to(tree["method"][key])

    return apply


def drop(*keys: Any) -> Callable[[Any], None]:
    def apply(tree: Any) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        del tree[keys[-1]]

    return apply


def nan(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, float("nan"))


ONE, ALL = slice(-1, None), slice(None)
CRAFTED: dict[str, Callable[[Any], None]] = {
    "step negative": change("step", to=-5),
    "step beyond the end": change("step", to=10**9),
    "step a text": change("step", to="18"),
    "step in another phase": change("step", to=30),
    "step true": change("step", to=True),
    "threads": change("threads", to=10**6),
    "no threads": change("threads", to=0),
    "an entry too many": change("more", to=1),
    "an entry too few": drop("random"),
    "random state short": change("random", to=lambda t: t[:100]),
    "random state of floats": change("random", to=lambda t: t.float()),
    "random state zero": change("random", to=torch.zeros_like),
    "weight of another shape": change("model", "0.weight", to=lambda t: t[:3]),
    "weight of another type": change("model", "0.weight", to=lambda t: t.double()),
    "weight a number": change("model", "0.weight", to=1.0),
    "weight gone": drop("model", "0.weight"),
    "weight not finite": change("model", "0.weight", to=nan),
    "method gone": change("method", to={}),
    "method of another step": change("method", "step", to=17),
    "method in another phase": change("method", "phase", to=1),
    "method step a tensor": change("method", "step", to=torch.zeros(3)),
    "one assignment I32": change_assignments(ONE, lambda t: t.int()),
    "all assignments I32": change_assignments(ALL, lambda t: t.int()),
    "all assignments I64": change_assignments(ALL, lambda t: t.long() + 2**40),
    "all assignments I8": change_assignments(ALL, lambda t: t.to(torch.int8)),
    "all assignments BOOL": change_assignments(ALL, lambda t: t.bool()),
    "an assignment of floats": change_assignments(ONE, lambda t: t.float()),
    "an assignment a number": change_assignments(ONE, lambda t: 3),
    "an assignment of another shape": change_assignments(ONE, lambda t: t[:1]),
    "an assignment to cluster 250": change_assignments(ONE, lambda t: t * 0 + 250),
    "zero cluster 200": change("method", "network/zero_cluster", to=200),
    "zero cluster a text": change("method", "network/zero_cluster", to="x"),
    "zero cluster -7": change("method", "network/zero_cluster", to=-7),
    "too few centers": change("method", "network/centers", to=lambda t: t[:1]),
    "no centers": change("method", "network/centers", to=lambda t: t[:0]),
    "too many centers": change("method", "network/centers", to=lambda t: t.repeat(9)),
    "centers a matrix": change("method", "network/centers", to=lambda t: t.reshape(1, -1)),
    "centers of integers": change("method", "network/centers", to=lambda t: t.long()),
    "centers not finite": change("method", "network/centers", to=nan),
    "centers gone": drop("method", "network/centers"),
    "changed a text": change("method", "changed", to="x"),
    "changed gone": drop("method", "changed"),
    "phase gone": drop("method", "phase"),
    "phase unknown": change("method", "phase", to=9),
    "phase a text": change("method", "phase", to="frozen"),
    "step of the phase negative": change("method", "phase_step", to=-1),
    "L1 strength not finite": change("method", "l1_strength", to=float("nan")),
    "optimizer of others": change("optimizer", to={7: {"step": torch.tensor(1.0)}}),
    "optimizer a list": change("optimizer", to=[]),
    "optimizer without a moment": drop("optimizer", 0, "exp_avg"),
    "moment of another shape": change("optimizer", 0, "exp_avg", to=lambda t: t[:1]),
    "moment of integers": change("optimizer", 0, "exp_avg", to=lambda t: t.long()),
    "moment a text": change("optimizer", 0, "exp_avg", to="x"),
    "journal gone": change("journal", to={}),
    "journal of floats": change("journal", "rows", to=lambda t: t.float()),
    "journal of half a row": change("journal", "rows", to=lambda t: t[:-9]),
    "journal of rows without an error": change("journal", "rows", to=torch.tensor([91, 93]).byte()),
    "notes of texts": change("journal", "notes", to={"val_error_soft": "x"}),
    "count negative": change("journal", "count", to=-1),
    "loss not finite": change("journal", "loss", to=float("nan")),
    "seconds endless": change("journal", "seconds", to=float("inf")),
    "step seconds negative": change("journal", "step_seconds", to=-1.0),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_checkpoint_is_refused_in_one_sentence(checkpoint: Path, name: str) -> None:
    """Its checksum is right; types, shapes and ranges are not."""
    tree = read_checkpoint(checkpoint)
    assert len(assignments(tree)) > 1
    CRAFTED[name](tree)
    write_checkpoint(checkpoint, tree)
    crafted = files_of(checkpoint.parent)
    refused_in_one_sentence(ADAM, checkpoint, "does not fit this run")
    assert files_of(checkpoint.parent) == crafted


def test_the_checkpoint_that_was_damaged_is_fine_without_damage(checkpoint: Path) -> None:
    write_checkpoint(checkpoint, read_checkpoint(checkpoint))
    resume(ADAM, str(checkpoint.parent))


# Settings that let a method show what it does within the steps of a case.
METHOD_SETTINGS = {
    "bayesian_compression": "num_examples = 108\nwarmup_steps = 4",
    "deep_compression": "quality = 1.0\nprune_every = 5\nprune_rounds = 2",
    "dense": None,
    "soft_weight_sharing": "num_examples = 108\ntau = 0.1\nnum_components = 7",
    "sparse_vd": "num_examples = 108\nwarmup_steps = 4",
    "l1_threshold": "l1_strength = 1e-3\nthreshold = 0.05\nprune_at = 10",
    "magnitude_kmeans": "density = 0.5",
}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_every_method_goes_on_after_crashes_as_if_undisturbed(method: str) -> None:
    settings = METHOD_SETTINGS.get(method, "")
    clusters = "" if settings is None else "num_clusters = 5"
    text = ADAM._replace(keep_best=True).text.replace("sparse_apt", method)
    before, _, after = text.partition("[settings]")
    rest = after[after.index("[training]") :]
    config = Path(f"every-{method}.toml")
    config.write_text(f"{before}[settings]\n{clusters}\n{settings or ''}\n{rest}")
    out = Path(f"every-{method}")
    for step in (10, 35):
        with pytest.raises(CrashError):
            run(read_config(config), out, resume=out.exists(), display=CrashAt(step))
    run(read_config(config), out, resume=True)
    run(read_config(config), Path(f"{out}-whole"))
    assert results(out) == results(Path(f"{out}-whole"))
