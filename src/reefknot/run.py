"""One run: from a configuration to a folder with the file, the record and how it came about.

Takes     a `Config` and a folder.
Gives     config.toml, metrics.jsonl, model.reef, record.json, report.html in the folder, and
          checkpoint.safetensors, from which a killed run goes on bit for bit. In baseline/, if
          asked for, a run of the same network without compression.
Unaware   of which method it runs and of how progress is shown.
"""

import copy
import json
import math
import os
import platform
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor, nn
from torch.optim import Optimizer

from reefknot import rates
from reefknot.checkpoint import read_checkpoint, unlike, write_checkpoint
from reefknot.config import MAX_THREADS, OPTIMIZERS, Config, to_toml
from reefknot.distil import soft_labels
from reefknot.errors import CheckError, ConfigError, DivergedError, FormatError, ReefknotError
from reefknot.files import read_bytes, write_atomically
from reefknot.format import decode, encode, open_state
from reefknot.loading import load, tensors
from reefknot.methods import BASELINE, METHODS, Method
from reefknot.report import write_report
from reefknot.state import TiedState
from reefknot.train import Batches, Plan, Progress, Relabel, blamed_on, error_percent, train
from reefknot.zoo import DATASETS, NETWORKS, Data, Split, as_data, resolve

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
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    force: bool = False,
    baseline: bool = False,
    display: Display | None = None,
) -> Record:
    """Train, tie, write the file and its record; gives the record.

    Args:
        config: what to train, and how.
        folder: a new or empty one.
        resume: go on in the folder of a run that was begun with this configuration.
        force: begin anew in the folder of another run, whose files are deleted.
        baseline: train the same network without compression as well, in the sub-folder baseline/,
            and record its errors. Once begun, it also goes on with every `resume`.
        display: is told of every step.
    """
    if baseline:
        _check_baseline(config)
    with _claimed(folder, config, resume=resume, force=force) as claim:
        baseline = baseline or "baseline" in claim.names
        if "record.json" in claim.names:
            claim.take()
            return _finished(config, folder, baseline, display)
        saved = None
        if "checkpoint.safetensors" in claim.names:
            saved = _read_saved(folder / "checkpoint.safetensors", config.plan)
        threads = saved["threads"] if saved else config.training.threads
        if threads:
            torch.set_num_threads(threads)  # the order of sums, and so the bits, depend on it
        parts = _build(config)
        compared = _parent_errors(config, parts)
        if saved:
            _restore(folder / "checkpoint.safetensors", saved, parts)
        claim.take()  # only now: a mistake found so far changes nothing
        if baseline:
            compared = _trained_baseline(config, folder, display)
        journal = _Journal(folder, saved["journal"] if saved else None)
        state = _train(config, parts, journal, saved["step"] if saved else 0, display)
        return _conclude(config, parts, journal, state, compared)


def _finished(config: Config, folder: Path, baseline: bool, display: Display | None) -> Record:
    """The record of a run that is done, with what a kill or a later wish has left to do."""
    record = _read_record(folder)
    renewed = baseline and record.get("dense_val_error") is None
    if renewed:
        record |= _trained_baseline(config, folder, display)
        _write_record(folder, record)
    if renewed or not (folder / "report.html").exists():
        write_report(folder, open_state(folder / "model.reef"))
    _remove(folder, ["checkpoint.safetensors"])
    return record


# -- the folder -----------------------------------------------------------------------------

_FILES = (
    "config.toml",
    "metrics.jsonl",
    "checkpoint.safetensors",
    "model.reef",
    "model.safetensors",
    "record.json",
    "report.html",
)


class _Claim:
    """A locked folder that is this run's own or nobody's; `names` are the files it goes on from."""

    def __init__(self, folder: Path, config: Config, *, resume: bool, force: bool) -> None:
        self.folder = folder
        self._text = _text(folder, config)
        self.began = False  # and did not go on
        found = _names(folder)
        self.names = found
        if force:
            _check_only_ours(folder)
            self.names = set()
        elif resume and "config.toml" in found:
            _check_same(folder, self._text)
        elif found and not (resume and found == _litter(found)):
            raise ConfigError(
                f"{folder} is there already; add --resume to go on in it, --force to delete what "
                "a run has written there, or choose another --out"
            )

    def take(self) -> None:
        """Make the folder this run's own: clear it of what is not gone on from."""
        found = _names(self.folder)
        _remove(self.folder, _litter(found))  # left by a kill inside a write
        if "config.toml" not in self.names:
            _clear(self.folder)
            self.began = True
            write_atomically(self.folder / "config.toml", self._text.encode())

    def drop(self) -> None:
        """After a failure: what was begun here and is not worth keeping goes again."""
        names = _names(self.folder)
        if self.began and names - _litter(names) <= {"config.toml", "metrics.jsonl"}:
            _remove(self.folder, names)


@contextmanager
def _claimed(folder: Path, config: Config, *, resume: bool, force: bool) -> Iterator[_Claim]:
    """The folder, locked before anything in it is looked at, let alone changed.

    If the run fails before it has anything worth keeping, what it has made is removed again.
    """
    with _locked(folder, make=not resume) as made:
        claim = None
        try:
            claim = _Claim(folder, config, resume=resume, force=force)
            yield claim
        except BaseException:
            with suppress(ReefknotError, OSError):
                if claim:
                    claim.drop()
                if made:
                    folder.rmdir()  # fails if anything is left in it
            raise


@contextmanager
def _locked(folder: Path, *, make: bool) -> Iterator[bool]:
    """Nobody else runs in this folder meanwhile; the lock goes with the process.

    Gives whether the folder was made here. Without `make` it must be there.
    """
    for _ in range(100):
        made = make and _make(folder)
        handle = _lock(folder)
        if handle is not None:
            break
        if not make:
            raise ConfigError(
                f"{folder} is not there, so there is nothing to resume; leave out --resume to begin"
            )
    else:
        raise ReefknotError(f"{folder} could not be made")
    try:
        yield made
    finally:
        if handle >= 0:
            os.close(handle)


def _make(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise ReefknotError(f"{folder} could not be made: {error.strerror}") from error
    return True


def _lock(folder: Path) -> int | None:
    """A handle that holds the lock, or None if the folder is not there, or not any more.

    It may have been removed meanwhile by a run that failed in it.
    """
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise ConfigError(f"{folder} is a file; --out names a folder")
        if fcntl is None:
            return -1
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReefknotError(f"{folder} could not be opened: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), folder.stat()):
            return handle
    except FileNotFoundError:
        pass
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise ReefknotError(f"another process is running in {folder}; wait for it") from error
        raise ReefknotError(f"{folder} could not be locked: {error.strerror}") from error
    os.close(handle)
    return None


def _check_only_ours(folder: Path) -> None:
    """Refuse to clear a folder that holds what no run has written."""
    names = _names(folder)
    strangers = names - _litter(names) - {*_FILES, "baseline"}
    if strangers:
        raise ConfigError(
            f"{folder} holds {min(strangers)!r}, which no run has written; choose another --out"
        )
    if "baseline" in names:
        _check_only_ours(folder / "baseline")


def _clear(folder: Path) -> None:
    """Delete what a run has written, and its baseline."""
    names = _names(folder)
    if "baseline" in names:
        _clear(folder / "baseline")
        with suppress(OSError):
            (folder / "baseline").rmdir()
    _remove(folder, names & {*_FILES})


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError as error:
        raise ReefknotError(f"{folder} could not be read: {error.strerror}") from error


def _litter(names: set[str]) -> set[str]:
    """Temporary files of writes that were killed."""
    return {
        n for n in names if n.endswith(".tmp") and n.startswith(tuple(f".{f}." for f in _FILES))
    }


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise ReefknotError(
                f"{folder / name} could not be deleted: {error.strerror}"
            ) from error


def _check_same(folder: Path, text: str) -> None:
    kept = folder / "config.toml"
    try:
        before = read_bytes(kept).decode()
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{kept} is damaged: it is not UTF-8 (byte {error.start}); add --force to begin anew"
        ) from error
    changed = sorted(set(before.splitlines()) ^ set(text.splitlines()))
    if changed:
        raise ConfigError(
            f"{folder} was begun with another configuration (differing: {'; '.join(changed)}); "
            "resume with the same one, add --force to begin anew, or choose another --out"
        )


def _text(folder: Path, config: Config) -> str:
    # Relative paths, so that the folder can be moved with its parent.
    start = None if config.start is None else os.path.relpath(config.start, folder)
    teachers = [os.path.relpath(path, folder) for path in config.distillation.teachers]
    distillation = replace(config.distillation, teachers=teachers)
    return to_toml(replace(config, start=start, distillation=distillation))


# -- the parts ------------------------------------------------------------------------------


def _build(config: Config) -> _Parts:
    torch.manual_seed(config.seed)  # data that is drawn must be the same after a resume
    make_data, make_model = _resolved(config)
    with blamed_on(f"the data {config.data!r}"):
        made = make_data()
    data = as_data(made, config.data)
    torch.manual_seed(config.seed)
    with blamed_on(f"the network {config.model!r}"):
        model = make_model()
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{config.model} gave a {type(model).__name__}; a torch module was expected"
        )
    _check_network(config, model, data)
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


def _check_network(config: Config, model: nn.Module, data: Data) -> None:
    """Refuse a network that does not classify these examples, before training finds out."""
    some = data.validation.inputs[:2]
    what = f"the network {config.model!r} on inputs of shape {tuple(some.shape)}"
    was_training = model.training
    model.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]), blamed_on(what):
        outputs = model(some)
    model.train(was_training)
    least = 1 + max(int(part.labels.max()) for part in _looked_at(config, data))
    if not isinstance(outputs, Tensor):
        found = f"a {type(outputs).__name__}"
    elif outputs.dim() == 2 and len(outputs) == len(some) and outputs.shape[1] >= least:
        return
    else:
        found = f"outputs of shape {tuple(outputs.shape)}"
    raise ConfigError(
        f"{what} gave {found}; expected ({len(some)}, classes) with at least {least} classes, "
        f"since the largest label of {config.data!r} is {least - 1}"
    )


def _looked_at(config: Config, data: Data) -> Iterator[Split]:
    """The parts of the data that this run may look at."""
    yield from (data.train, data.validation)
    if data.test is not None and config.evaluate_test:
        yield data.test


def _load_parent(model: nn.Module, path: Path, key: str) -> None:
    try:
        parent = load(path) if path.suffix == ".reef" else load_safetensors(read_bytes(path))
        model.load_state_dict(parent)
    except SafetensorError as error:
        raise ConfigError(f"{key}: {path} is not a safetensors file: {error}") from error
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{key}: {path} does not fit the model: {reason}") from error


# -- what it is compared with ---------------------------------------------------------------


def _parent_errors(config: Config, parts: _Parts) -> dict[str, float | None]:
    """Errors of the network that the run starts from, if it is a trained one."""
    if config.start is None:
        return {"dense_test_error": None, "dense_val_error": None}
    return {
        "dense_test_error": _test_error(config, parts),
        "dense_val_error": error_percent(parts.model, *parts.data.validation, exact=True),
    }


def _test_error(config: Config, parts: _Parts) -> float | None:
    if parts.data.test is None or not config.evaluate_test:
        return None
    return error_percent(parts.model, *parts.data.test, exact=True)


def _check_baseline(config: Config) -> None:
    if config.start is not None:
        raise ConfigError(
            "--baseline trains the network without compression, which start names already; leave "
            "one of them out"
        )
    if config.method == BASELINE:
        raise ConfigError(f"--baseline compares a method with {BASELINE}, which this one is")


def _trained_baseline(
    config: Config, folder: Path, display: Display | None
) -> dict[str, float | None]:
    """Run the same configuration without compression; what is random here stays as it was."""
    plain = replace(config, method=BASELINE, settings={})
    place, threads = folder / "baseline", torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        record = run(plain, place, resume=place.exists(), display=display)
    torch.set_num_threads(threads)
    return {f"dense_{key}": record[key] for key in ("test_error", "val_error")}


# -- going on -------------------------------------------------------------------------------


_SAVED = {
    "step": int,
    "threads": int,
    "model": dict,
    "method": dict,
    "optimizer": dict,
    "random": Tensor,
    "journal": dict,
}


def _save(path: Path, step: int, parts: _Parts, journal: "_Journal") -> None:
    """Write all that decides the steps to come."""
    write_checkpoint(
        path,
        {
            "step": step,
            "threads": torch.get_num_threads(),
            "model": dict(parts.model.state_dict()),
            "method": parts.method.state_dict(),
            "optimizer": parts.optimizer.state_dict()[
                "state"
            ],  # the groups are the configuration's
            "random": torch.get_rng_state(),
            "journal": journal.state_dict(),
        },
    )


def _read_saved(path: Path, plan: Plan) -> dict[str, Any]:
    """What `_save` has written, with all that does not need the network checked."""
    saved = read_checkpoint(path)
    for mistake in _saved_mistakes(saved, plan):
        raise FormatError(f"{path} does not fit this run: {mistake}")
    return saved


def _saved_mistakes(saved: Any, plan: Plan) -> Iterator[str]:
    if not isinstance(saved, dict) or {k: type(v) for k, v in saved.items()} != _SAVED:
        yield "a run has other entries"
        return
    step, threads = saved["step"], saved["threads"]
    if not 0 < step <= plan.steps:
        yield f"it is of step {step:,}, and the run has {plan.steps:,}"
    if not 0 < threads <= MAX_THREADS:
        yield f"it is of {threads} threads, expected 1 to {MAX_THREADS}"
    phase = {"step": step, "hard": int(step > plan.soft_steps)}
    for key, value in phase.items():
        found = saved["method"].get(key)
        if type(found) is not int or found != value:
            yield f"the method's {key!r} is {found!r}, expected {value} at step {step:,}"
    yield from unlike(saved["random"], torch.get_rng_state(), "the random state")
    yield from _Journal.mistakes(saved["journal"])


def _restore(path: Path, saved: dict[str, Any], parts: _Parts) -> None:
    """Bring model, method, optimizer and random state to where they were saved."""
    for mistake in _misfits(saved, parts):
        raise FormatError(f"{path} does not fit this run: {mistake}")
    groups = parts.optimizer.state_dict()["param_groups"]
    try:
        parts.model.load_state_dict(saved["model"])
        parts.method.load_state_dict(saved["method"])
        parts.optimizer.load_state_dict({"state": saved["optimizer"], "param_groups": groups})
        torch.set_rng_state(saved["random"])
    except (ReefknotError, RuntimeError) as error:  # the latter of a random state
        reason = " ".join(str(error).split())
        raise FormatError(f"{path} does not fit this run: {reason}") from error


def _misfits(saved: dict[str, Any], parts: _Parts) -> Iterator[str]:
    """Where model and optimizer have other tensors than were saved."""
    yield from unlike(saved["model"], dict(parts.model.state_dict()), "the model")
    for name, _ in parts.model.named_parameters():
        if not bool(saved["model"][name].isfinite().all()):
            yield f"{name!r} is not finite"
    found, expected = saved["optimizer"], _stepped_state(parts.optimizer)
    for key in found.keys() ^ expected.keys():
        # A parameter without a gradient has no state, unless the optimizer made it at first.
        if key in found or key in parts.optimizer.state_dict()["state"]:
            yield f"the optimizer has {'an unknown' if key in found else 'no'} parameter {key!r}"
    for key in found:
        yield from unlike(found[key], expected.get(key), f"the optimizer's state {key!r}")


def _stepped_state(optimizer: Optimizer) -> dict[int, Any]:
    """The state that an optimizer like this has after a step."""
    probe = copy.deepcopy(optimizer)
    for group in probe.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    probe.step()
    return probe.state_dict()["state"]


# -- training -------------------------------------------------------------------------------


def _train(
    config: Config,
    parts: _Parts,
    journal: "_Journal",
    step: int,
    display: Display | None,
) -> TiedState:
    """Train from `step` completed steps on."""
    model, method, optimizer, data = parts.model, parts.method, parts.optimizer, parts.data
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
    last_saved = step or None

    def checkpoint(step: int) -> None:
        nonlocal last_saved
        for name, value in model.named_parameters():  # a buffer may hold -inf on purpose
            if not bool(value.isfinite().all()):
                raise DivergedError(f"{name!r} is not finite after step {step:,}")
        _save(journal.folder / "checkpoint.safetensors", step, parts, journal)
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
                    # The last one, since writing the results may fail: a full disk.
                    if (
                        progress.step % training.checkpoint_every == 0
                        or progress.step == plan.steps
                    ):
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
    """metrics.jsonl and what else a run must remember about its past.

    A checkpoint holds the rows as well: whatever happened to the file meanwhile, a resumed run has
    all of them, and none twice.
    """

    def __init__(self, folder: Path, saved: dict[str, Any] | None) -> None:
        self.folder = folder
        self.path = folder / "metrics.jsonl"
        self.notes: dict[str, float] = dict(saved["notes"]) if saved else {}
        self._loss: float = saved["loss"] if saved else 0.0
        self._count: int = saved["count"] if saved else 0
        self._seconds_before = saved["seconds"] if saved else 0.0
        self._began = time.monotonic()
        self._rows = bytearray(saved["rows"].numpy().tobytes() if saved else b"")
        write_atomically(self.path, bytes(self._rows))

    @staticmethod
    def mistakes(saved: dict[str, Any]) -> Iterator[str]:
        """What is wrong with a saved journal."""
        kinds = {"notes": dict, "loss": float, "count": int, "seconds": float, "rows": Tensor}
        if {key: type(value) for key, value in saved.items()} != kinds:
            yield "a journal has other entries"
            return
        if not all(type(value) is float for value in saved["notes"].values()):
            yield "the journal's notes are no numbers"
        if saved["rows"].dtype != torch.uint8 or saved["rows"].dim() != 1:
            yield "the journal's rows are no text"
        if saved["count"] < 0 or not 0 <= saved["seconds"] < float("inf"):
            yield "the journal counts less than nothing"
        if not math.isfinite(saved["loss"]):
            yield "the journal's loss is not finite"

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
        text = (json.dumps(row) + "\n").encode()
        self._rows += text
        try:
            with self.path.open("ab") as file:
                file.write(text)
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
            "rows": torch.from_numpy(np.array(self._rows, np.uint8)),
        }


# -- after ----------------------------------------------------------------------------------


def _conclude(
    config: Config,
    parts: _Parts,
    journal: _Journal,
    state: TiedState,
    compared: dict[str, float | None],
) -> Record:
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
    notes = (
        journal.notes if state.codebooks else {}
    )  # nothing is soft or hard where nothing is tied
    record = {
        "network": config.model,
        "data": config.data,
        "data_name": data.name,
        "method": config.method,
        "seed": config.seed,
        "settings": dict(config.settings),
        "val_error_soft": notes.get("val_error_soft"),
        "val_error_hardened": notes.get("val_error_hardened"),
        "val_error": error_percent(parts.model, *data.validation, exact=True),
        "test_error": _test_error(config, parts),
        **compared,
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
    _write_record(folder, record)
    write_report(folder, state)
    _remove(folder, ["checkpoint.safetensors"])
    return record


def _write_record(folder: Path, record: Record) -> None:
    write_atomically(folder / "record.json", (json.dumps(record, indent=2) + "\n").encode())


def _read_record(folder: Path) -> Record:
    path = folder / "record.json"
    try:
        record = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(record, dict):
        raise FormatError(f"{path} holds a {type(record).__name__}; a record was expected")
    return record


def _versions() -> dict[str, str]:
    names = ("reefknot", "torch", "numpy", "numba")
    return {"python": platform.python_version()} | {name: version(name) for name in names}
