"""One run: from a configuration to a folder with the file, the record and how it came about.

Takes     a `Config` and a folder.
Gives     config.toml, metrics.jsonl, model.reef, record.json, report.html in the folder, and
          checkpoint.safetensors, from which a killed run goes on bit for bit.
Unaware   of which method it runs and of how progress is shown.
"""

import copy
import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor, nn
from torch.optim import Optimizer

from reefknot import rates
from reefknot.checkpoint import read_checkpoint, write_checkpoint
from reefknot.config import OPTIMIZERS, Config, to_toml
from reefknot.distil import soft_labels
from reefknot.errors import CheckError, ConfigError, DivergedError, FormatError, ReefknotError
from reefknot.files import read_bytes, write_atomically
from reefknot.format import decode, encode, open_state
from reefknot.loading import load, tensors
from reefknot.methods import METHODS, Method
from reefknot.report import write_report
from reefknot.state import TiedState
from reefknot.train import Batches, Progress, Relabel, error_percent, train
from reefknot.zoo import DATASETS, NETWORKS, Data, as_data, resolve

try:
    import fcntl
except ImportError:  # there is none on Windows
    fcntl = None  # type: ignore[assignment]

Record = dict[str, Any]


class Display(Protocol):
    """Where progress is shown: told of every step, and of every measurement."""

    def stepped(self, progress: Progress) -> None: ...  # noqa: D102
    def measured(self, row: Record) -> None: ...  # noqa: D102


class InterruptedRunError(ReefknotError):
    """The run was asked to stop, and can be resumed."""

    exit_code = 130


@dataclass
class _Parts:
    """All that a checkpoint must hold, and the data."""

    model: nn.Module
    method: Method
    optimizer: Optimizer
    data: Data
    labels: Tensor  # that the model learns: those of the data, or softened ones
    relabel: Relabel | None  # softens them batch by batch, where no image is seen twice


def run(
    config: Config, folder: Path, *, resume: bool = False, display: Display | None = None
) -> Record:
    """Train, tie, write the file and its record; gives the record."""
    with ExitStack() as stack:
        _check_free(folder, config, resume)
        if folder.exists():
            stack.enter_context(_locked(folder))
        return _run(config, folder, resume, display, stack)


def _run(
    config: Config, folder: Path, resume: bool, display: Display | None, stack: ExitStack
) -> Record:
    fresh = not folder.exists()
    if resume and (folder / "record.json").exists():
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)
        if not (folder / "report.html").exists():
            write_report(folder, open_state(folder / "model.reef"))
        return json.loads(read_bytes(folder / "record.json"))
    saved = None
    if resume and (folder / "checkpoint.safetensors").exists():
        saved = _read_saved(folder / "checkpoint.safetensors")
    threads = saved["threads"] if saved else config.training.threads
    if threads:
        torch.set_num_threads(threads)  # the order of sums, and so the bits, depend on it
    parts = _build(config)
    _claim(folder, config)  # only now: a mistake found while building leaves no folder in the way
    if fresh:
        stack.enter_context(_locked(folder))
    journal = _Journal(folder, saved["journal"] if saved else None)
    journal.notes.setdefault("dense_test_error", _parent_error(config, parts))
    state = _train(config, parts, journal, saved, display)
    return _conclude(config, parts, journal, state)


# -- before ---------------------------------------------------------------------------------


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Nobody else runs in this folder meanwhile; the lock goes with the process."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ReefknotError(f"another process is running in {folder}; wait for it") from error
    try:
        yield
    finally:
        os.close(handle)


def _read_saved(path: Path) -> dict[str, Any]:
    """A checkpoint with all that a run saves in it."""
    saved = read_checkpoint(path)
    expected = {"step", "threads", "model", "method", "optimizer", "random", "journal"}
    if not isinstance(saved, dict) or not expected <= set(saved):
        raise FormatError(f"{path} is a checkpoint, but not one that a run has written")
    return saved


def _text(folder: Path, config: Config) -> str:
    # Relative paths, so that the folder can be moved with its parent.
    start = None if config.start is None else os.path.relpath(config.start, folder)
    teachers = [os.path.relpath(path, folder) for path in config.distillation.teachers]
    distillation = replace(config.distillation, teachers=teachers)
    return to_toml(replace(config, start=start, distillation=distillation))


def _check_free(folder: Path, config: Config, resume: bool) -> None:
    """Be sure that the folder is this run's own, or nobody's."""
    text = _text(folder, config)
    kept = folder / "config.toml"
    if resume and kept.exists():
        before = read_bytes(kept).decode()
        changed = sorted(set(before.splitlines()) ^ set(text.splitlines()))
        if changed:
            raise ConfigError(
                f"{folder} was begun with another configuration (differing: {'; '.join(changed)}); "
                "resume with the same one, or choose another --out"
            )
    if resume and folder.is_dir():
        for path in folder.glob(".*.tmp"):  # left by a kill inside a write
            path.unlink(missing_ok=True)
        if kept.exists():
            return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already; add --resume, or choose another --out")


def _claim(folder: Path, config: Config) -> None:
    """Make the folder this run's own."""
    if (folder / "config.toml").exists():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReefknotError(f"{folder} could not be made: {error.strerror}") from error
    write_atomically(folder / "config.toml", _text(folder, config).encode())


def _build(config: Config) -> _Parts:
    torch.manual_seed(config.seed)  # data that is drawn must be the same after a resume
    make_data, make_model = _resolved(config)
    data = as_data(make_data(), config.data)
    torch.manual_seed(config.seed)
    model = make_model()
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{config.model} gave a {type(model).__name__}; a torch module was expected"
        )
    if config.start is not None:
        _load_parent(model, Path(config.start), "start")
    teachers = []
    for path in config.distillation.teachers:
        teachers.append(copy.deepcopy(model))
        _load_parent(teachers[-1], Path(path), "distillation.teachers")
    labels, relabel = data.train.labels, None
    if teachers:
        soften = partial(
            soft_labels,
            teachers,
            temperature=config.distillation.temperature,
            weight=config.distillation.weight,
        )
        if data.augment is None:
            labels = soften(*data.train)
        else:
            relabel = soften
    method = METHODS[config.method](model, **config.settings)
    optimizer = OPTIMIZERS[config.optimizer.name](
        method.parameter_groups(),
        lr=config.optimizer.rate,  # type: ignore[call-arg]  # every optimizer of the table has it
        **config.optimizer.options,
    )
    return _Parts(model, method, optimizer, data, labels, relabel)


def _resolved(config: Config) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The functions that make data and model, or all that is wrong with their names."""
    found: list[Callable[[], Any]] = []
    mistakes: list[str] = []
    for reference, known, kind in (
        (config.data, DATASETS, "data set"),
        (config.model, NETWORKS, "network"),
    ):
        try:
            found.append(resolve(reference, known, kind))
        except ConfigError as error:
            mistakes += error.mistakes
    if mistakes:
        raise ConfigError(*mistakes)
    return found[0], found[1]


def _load_parent(model: nn.Module, path: Path, key: str) -> None:
    try:
        parent = load(path) if path.suffix == ".reef" else load_safetensors(read_bytes(path))
        model.load_state_dict(parent)
    except SafetensorError as error:
        raise ConfigError(f"{key}: {path} is not a safetensors file: {error}") from error
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{key}: {path} does not fit the model: {reason}") from error


def _parent_error(config: Config, parts: _Parts) -> float | None:
    if config.start is None or parts.data.test is None or not config.evaluate_test:
        return None
    return error_percent(parts.model, *parts.data.test, exact=True)


# -- training -------------------------------------------------------------------------------


def _train(
    config: Config,
    parts: _Parts,
    journal: "_Journal",
    saved: dict[str, Any] | None,
    display: Display | None,
) -> TiedState:
    model, method, optimizer, data = parts.model, parts.method, parts.optimizer, parts.data
    step = 0
    if saved:
        model.load_state_dict(saved["model"])
        method.load_state_dict(saved["method"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])
        step = saved["step"]
    method.attach(optimizer)
    plan, training = config.plan, config.training
    batches = Batches(
        data.train.inputs,
        parts.labels,
        training.batch_size,
        config.seed,
        data.augment,
        parts.relabel,
    )
    notes = journal.notes
    last_saved = step if saved else None

    def checkpoint(step: int) -> None:
        nonlocal last_saved
        for name, value in model.named_parameters():  # a buffer may hold -inf on purpose
            if not bool(value.isfinite().all()):
                raise DivergedError(f"{name!r} is not finite after step {step:,}")
        write_checkpoint(
            journal.folder / "checkpoint.safetensors",
            {
                "step": step,
                "threads": torch.get_num_threads(),
                "model": dict(model.state_dict()),
                "method": method.state_dict(),
                "optimizer": optimizer.state_dict(),
                "random": torch.get_rng_state(),
                "journal": journal.state_dict(),
            },
        )
        last_saved = step

    try:
        with _stop_signal() as stop:
            for progress in train(model, method, optimizer, batches, plan, step=step):
                if progress.event == "soft":
                    notes["val_error_soft"] = error_percent(model, *data.validation)
                elif progress.event == "hardened":
                    notes["val_error_hardened"] = error_percent(model, *data.validation)
                else:
                    journal.add_loss(progress.loss)
                    if progress.step % training.evaluate_every == 0 or progress.step == plan.steps:
                        row = journal.measure(
                            progress.step,
                            rate=plan.rate_at(progress.step - 1),
                            val_error=error_percent(model, *data.validation),
                            stats=method.stats(),
                        )
                        if display:
                            display.measured(row)
                    if progress.step % training.checkpoint_every == 0:
                        checkpoint(progress.step)
                if display:
                    display.stepped(progress)
                if stop.is_set() and progress.event == "step":
                    checkpoint(progress.step)
                    raise InterruptedRunError(
                        f"stopped after step {progress.step:,}; add --resume to go on"
                    )
    except DivergedError as error:
        where = f"step {last_saved:,} in {journal.folder}" if last_saved else "none"
        raise DivergedError(
            f"{error}; last good checkpoint: {where}. Try a lower optimizer.rate, or lower "
            "strengths in [settings]"
        ) from error
    return method.finish()


@contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    """An event that Ctrl-C or a polite kill sets, so that the run stops between two steps."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: stop.set())
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Journal:
    """metrics.jsonl and what else a run must remember about its past."""

    def __init__(self, folder: Path, saved: dict[str, Any] | None) -> None:
        self.folder = folder
        self.path = folder / "metrics.jsonl"
        self.notes: dict[str, Any] = dict(saved["notes"]) if saved else {}
        self._loss: float = saved["loss"] if saved else 0.0
        self._count: int = saved["count"] if saved else 0
        self._seconds_before = saved["seconds"] if saved else 0.0
        self._began = time.monotonic()
        length = saved["length"] if saved else 0
        try:
            with self.path.open("ab") as file:
                # Rows after the checkpoint will be written again.
                file.truncate(min(length, file.tell()))
        except OSError as error:
            raise ReefknotError(f"{self.path} could not be written: {error.strerror}") from error

    @property
    def seconds(self) -> float:
        """Time spent, over all parts of an interrupted run."""
        return self._seconds_before + time.monotonic() - self._began

    def add_loss(self, loss: float) -> None:
        """Count the data loss of one step."""
        self._loss, self._count = self._loss + loss, self._count + 1

    def measure(self, step: int, *, rate: float, val_error: float, stats: dict[str, Any]) -> Record:
        """Write one row: the mean data loss since the last one, and how things stand."""
        row = {
            **stats,
            "step": step,
            "rate": rate,
            "loss": self._loss / max(self._count, 1),
            "val_error": val_error,
            "seconds": round(self.seconds, 3),
        }
        self._loss, self._count = 0.0, 0
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise ReefknotError(f"{self.path} could not be written: {error.strerror}") from error
        return row

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the journal."""
        return {
            "notes": dict(self.notes),
            "loss": self._loss,
            "count": self._count,
            "seconds": self.seconds,
            "length": self.path.stat().st_size,
        }


# -- after ----------------------------------------------------------------------------------


def _conclude(config: Config, parts: _Parts, journal: _Journal, state: TiedState) -> Record:
    """Write the file, read it back, measure what was read, and record it."""
    folder, data = journal.folder, parts.data
    content = encode(state)
    back = decode(content, max_bytes=2 * state.original_bytes + (1 << 20))
    if back != state:
        raise CheckError("the encoded network does not decode to itself; please report this")
    parts.model.load_state_dict(tensors(back))
    if not state.codebooks:  # nothing was tied: a parent for other runs
        write_atomically(folder / "model.safetensors", save_safetensors(tensors(back)))
    write_atomically(folder / "model.reef", content)
    test = data.test if config.evaluate_test else None
    record = {
        "network": config.model,
        "data": config.data,
        "method": config.method,
        "seed": config.seed,
        "settings": dict(config.settings),
        "val_error_soft": journal.notes.get("val_error_soft"),
        "val_error_hardened": journal.notes.get("val_error_hardened"),
        "val_error": error_percent(parts.model, *data.validation, exact=True),
        "test_error": error_percent(parts.model, *test, exact=True) if test else None,
        "dense_test_error": journal.notes.get("dense_test_error"),
        "density": state.density,
        "num_clusters": state.num_clusters,
        "num_weights": state.num_weights,
        "original_bytes": state.original_bytes,
        "file_bytes": len(content),
        "rate_file": rates.rate_file(state, len(content)),
        "rate_paper": rates.rate_paper(state),
        "rate_fixed": rates.rate_fixed(state),
        "skipped": parts.method.skipped,
        "seconds": round(journal.seconds, 1),
        "threads": torch.get_num_threads(),
        "versions": _versions(),
    }
    write_atomically(folder / "record.json", (json.dumps(record, indent=2) + "\n").encode())
    write_report(folder, state)
    (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    return record


def _versions() -> dict[str, str]:
    names = ("reefknot", "torch", "numpy", "numba")
    return {"python": platform.python_version()} | {name: version(name) for name in names}
