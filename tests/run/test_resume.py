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
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from reefknot.cli import main

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and fork")

# A user's own module. PAUSE slows training down, so that there is time to hit a moment.
MODULE = """
import os, time
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
"""

CONFIG = """
model = "resumed:{model}"
data = "resumed:data"
method = "sparse_apt"
[settings]
num_clusters = 5
tying_strength = 1e-2
refit_every = 7
[training]
soft_steps = {soft}
hard_steps = {hard}
batch_size = 16
evaluate_every = {evaluate}
checkpoint_every = {checkpoint}
threads = 1
[optimizer]
name = "{optimizer}"
rate = {rate}
decay = "cosine"
{options}
"""


class Case(NamedTuple):
    """A configuration; `evaluate` and `checkpoint` are not in step, so rows get rewritten."""

    model: str = "mlp"
    optimizer: str = "adam"
    rate: float = 0.01
    options: str = ""
    soft: int = 24
    hard: int = 24
    evaluate: int = 4
    checkpoint: int = 6


MOMENTUM = Case(optimizer="sgd", rate=0.1, options="[optimizer.options]\nmomentum = 0.9")
ADAM = Case(optimizer="adam", rate=0.01)
NORMS = Case(model="norm_and_dropout", optimizer="adadelta", rate=1.0)
TINY = Case(model="norm_and_dropout", soft=3, hard=3, evaluate=2, checkpoint=2)


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
    text = CONFIG.format(**case._asdict())
    path = Path(f"{abs(hash(case)):x}.toml")
    path.write_text(text)
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
    done = run_here(*arguments(case, out, "--resume"))
    assert done.exit_code == 0, done.stderr
    agree(results(Path(out)), case)


# -- processes ------------------------------------------------------------------------------


def _command(args: list[str], errors: str, pause: float, moment: int, log: str) -> None:
    """In another process: the command, with a SIGKILL just before its `moment`-th file operation.

    The operations on files in the run's folder are counted, and noted in `log`.
    """
    os.environ["PAUSE"] = str(pause)
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
        ["reefknot.run", "reefknot.progress", "reefknot.summary", "torch._dynamo"]
    )
    return context


def start(
    server: Any, args: list[str], *, pause: float = 0.0, moment: int = 0, log: str = ""
) -> Any:
    process = server.Process(
        target=_command, args=(args, f"{args[3]}.errors", pause, moment, log), daemon=True
    )
    process.start()
    return process


def rows_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    whole = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole]


def strike(
    process: Any, folder: Path, when: Callable[[list[dict[str, Any]]], bool], number: int
) -> None:
    """Send a signal once the rows of the run's metrics say so; waits for the process to end."""
    deadline = time.monotonic() + 60
    while not ((folder / "checkpoint.safetensors").exists() and when(rows_of(folder))):
        assert process.is_alive(), Path(f"{folder}.errors").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.kill(process.pid, number)
    process.join(60)


IN_PHASE: dict[str, Callable[[list[dict[str, Any]]], bool]] = {
    "soft": lambda rows: bool(rows) and rows[-1]["step"] >= 8,
    "hard": lambda rows: bool(rows) and rows[-1]["phase"] == "hard",
}


# -- killed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", IN_PHASE)
@pytest.mark.parametrize("case", [MOMENTUM, ADAM, NORMS], ids=["momentum", "adam", "norms"])
def test_a_killed_run_resumes_bit_for_bit(server: Any, case: Case, phase: str) -> None:
    out = Path(f"killed-{case.optimizer}-{phase}")
    process = start(server, arguments(case, str(out)), pause=0.01)
    strike(process, out, IN_PHASE[phase], signal.SIGKILL)
    assert process.exitcode == -signal.SIGKILL
    assert not (out / "record.json").exists()
    assert rows_of(out)[-1]["phase"] == phase
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"phase": "so')  # as a row that was being written leaves it
    resume(case, str(out))


def test_a_run_killed_twice_resumes_bit_for_bit(server: Any) -> None:
    for flags, phase in ([], "soft"), (["--resume"], "hard"):
        process = start(server, arguments(NORMS, "twice", *flags), pause=0.01)
        strike(process, Path("twice"), IN_PHASE[phase], signal.SIGKILL)
        assert process.exitcode == -signal.SIGKILL
    resume(NORMS, "twice")


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
        done = run_here(*arguments(TINY, out, "--resume"))
        if done.exit_code != 0:
            wrong.append(f"{moment} {operation}: {done.stderr}")
            continue
        found, expected = results(Path(out)), uninterrupted(TINY)
        differing = [key for key in expected if key != "files" and found[key] != expected[key]]
        if differing:
            wrong.append(f"{moment} {operation}: {differing} differ")
    assert not wrong, "\n".join(wrong)


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
    process = start(server, arguments(ADAM, str(out)), pause=0.01)
    strike(process, out, IN_PHASE["soft"], number)
    assert process.exitcode == 130
    errors = Path(f"{out}.errors").read_text()
    assert errors.splitlines()[-1].startswith("reefknot: stopped after step ")
    assert errors.splitlines()[-1].endswith("; add --resume to go on")
    assert "Traceback" not in errors
    resume(ADAM, str(out))


# -- refused, or nothing to do --------------------------------------------------------------


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_resuming_with_another_configuration_is_refused_and_harms_nothing(killed_at: Kill) -> None:
    killed_at("other", "os.rename .model.reef")
    before = files_of(Path("other"))
    done = run_here(*arguments(TINY, "other", "--resume", "--set", "optimizer.rate=0.5"))
    assert done.exit_code == 2
    assert "begun with another configuration" in done.stderr
    assert "rate = 0.5" in done.stderr
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


def test_resuming_what_was_never_begun_begins_it() -> None:
    resume(TINY, "never-begun")


def test_a_damaged_checkpoint_is_refused_in_one_sentence(killed_at: Kill) -> None:
    killed_at("damaged", "os.rename .model.reef")
    (Path("damaged") / "checkpoint.safetensors").write_bytes(b"\x80\x04 not a checkpoint")
    done = run_here(*arguments(TINY, "damaged", "--resume"))
    assert done.exit_code == 2
    assert done.stderr.startswith("reefknot: damaged/checkpoint.safetensors is not a checkpoint")
    assert isinstance(done.exception, SystemExit)
