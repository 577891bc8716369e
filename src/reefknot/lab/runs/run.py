"""One run: from a configuration to a folder with the file, its record and its metrics.

Takes     a `Config` and a folder.
Gives     config.toml, metrics.jsonl, model.reef, record.json, report.html in the folder, and
          checkpoint.safetensors, from which a killed run resumes bit for bit. In baseline/, if
          asked for, a run of the same network without compression.
Unaware   of which method it runs and of how progress is shown.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import save as save_safetensors
from torch import nn

from reefknot import rates
from reefknot.errors import CheckError, ConfigError, DivergedError, FormatError, ReefknotError
from reefknot.files import write_atomically
from reefknot.format import decode, encode, open_state
from reefknot.lab.baselines import BASELINE
from reefknot.lab.report import read_record, write_report
from reefknot.lab.runs.batches import Batches
from reefknot.lab.runs.config import Config
from reefknot.lab.runs.folder import claimed, remove
from reefknot.lab.runs.journal import Journal, Record, versions, write_record
from reefknot.lab.runs.parts import Best, Parts, build, network_and_data, read_saved, restore, save
from reefknot.lab.runs.training import Progress, error_percent, train
from reefknot.lab.zoo import Data
from reefknot.loading import load, tensors
from reefknot.state import TiedState


class Display(Protocol):
    """A display of progress: it is told about every step and every measurement."""

    def stepped(self, progress: Progress) -> None: ...  # noqa: D102
    def measured(self, row: Record) -> None: ...  # noqa: D102


class InterruptedRunError(ReefknotError):
    """The run was asked to stop, and can be resumed."""

    exit_code = 130


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
        folder: a new or empty folder.
        resume: continue a run that was started in the folder with this configuration.
        force: start over in the folder of another run, whose files are deleted.
        baseline: also train the same network without compression, in the sub-folder baseline/, and
            record its errors. Once started, every `resume` continues it too.
        display: shows progress.
    """
    if baseline:
        _check_baseline(config)
    config = replace(config, search={})  # what others may be tried decides nothing here
    with claimed(folder, config, resume=resume, force=force) as claim:
        baseline = baseline or "baseline" in claim.names
        if "record.json" in claim.names and _has_file(folder, claim.names):
            claim.take()
            return _finished(config, folder, baseline, display)
        saved = None
        if "checkpoint.safetensors" in claim.names:
            saved = read_saved(folder / "checkpoint.safetensors", config.plan)
        threads = saved["threads"] if saved else config.training.threads
        if threads:
            torch.set_num_threads(threads)  # decides the order of sums, and so the exact bits
        parts = build(config)
        compared = _parent_errors(config, parts)
        if saved:
            restore(folder / "checkpoint.safetensors", saved, parts)
        parts.method.attach(parts.optimizer)  # refuses a target size that cannot be met
        claim.take()  # only now, so that mistakes found above change nothing on disk
        if baseline:
            compared = _trained_baseline(config, folder, display)
        journal = Journal(folder, saved["journal"] if saved else None)
        best = Best(saved["best"] if saved else {})
        state = _train(config, parts, journal, best, saved["step"] if saved else 0, display)
        return _conclude(config, parts, journal, state, compared | {"best_step": best.step})


def _has_file(folder: Path, names: set[str]) -> bool:
    """Whether a finished run still has its file; without one, its checkpoint can give it again."""
    if not names & {"model.reef", "checkpoint.safetensors"}:
        raise FormatError(
            f"{folder} holds the record of a finished run but not its model.reef, and no "
            "checkpoint to write it from; put the file back, or add --force to run again"
        )
    return "model.reef" in names


def _finished(config: Config, folder: Path, baseline: bool, display: Display | None) -> Record:
    """The record of a finished run, after adding a missing baseline or report."""
    record = read_record(folder)
    renewed = baseline and record.get("dense_val_error") is None
    if renewed:
        record |= _trained_baseline(config, folder, display)
        write_record(folder, record)
    if renewed or not (folder / "report.html").exists():
        write_report(folder, open_state(folder / "model.reef"))
    remove(folder, ["checkpoint.safetensors"])
    return record


# -- what it is compared with ---------------------------------------------------------------


def _parent_errors(config: Config, parts: Parts) -> dict[str, float | None]:
    """The errors of the trained network that the run starts from, if there is one."""
    if config.start is None:
        return {"dense_test_error": None, "dense_val_error": None}
    return {
        "dense_test_error": _test_error(config, parts.model, parts.data),
        "dense_val_error": error_percent(parts.model, *parts.data.validation, exact=True),
    }


def _test_error(config: Config, model: nn.Module, data: Data) -> float | None:
    if data.test is None or not config.evaluate_test:
        return None
    return error_percent(model, *data.test, exact=True)


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
    """Run the same configuration without compression; the random state here is preserved."""
    plain = replace(config, method=BASELINE, settings={})
    place, threads = folder / "baseline", torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        record = run(plain, place, resume=place.exists(), display=display)
    torch.set_num_threads(threads)
    return {f"dense_{key}": record.get(key) for key in ("test_error", "val_error")}


# -- training -------------------------------------------------------------------------------


def _train(
    config: Config,
    parts: Parts,
    journal: Journal,
    best: Best,
    step: int,
    display: Display | None,
) -> TiedState:
    """Train, continuing after `step` completed steps; end with the best state, if it is kept."""
    training = config.training
    observer = _Observer(config, parts, journal, best, last_saved=step)
    stop = threading.Event()
    try:
        with on_stop_signal(stop.set):
            began = time.monotonic()
            for progress in train(
                parts.model,
                parts.method,
                parts.optimizer,
                _batches(config, parts),
                config.plan,
                step=step,
                shrink=training.shrink,
                bf16=training.bf16,
                label_smoothing=training.label_smoothing,
                measured=journal.errors,
            ):
                if progress.event != "step":
                    observer.changing_phase(progress)
                else:
                    row = observer.stepped(progress, time.monotonic() - began)
                    if row and display:
                        display.measured(row)
                if display:
                    display.stepped(progress)
                if stop.is_set() and progress.event == "step":
                    observer.save(progress.step)
                    raise InterruptedRunError(
                        f"stopped after step {progress.step:,}; add --resume to continue"
                    )
                began = time.monotonic()
    except DivergedError as error:
        last = observer.last_saved
        where = f"step {last:,} in {journal.folder}" if last else "none"
        raise DivergedError(
            f"{error}; last good checkpoint: {where}. Try a lower optimizer.lr, or lower "
            "strengths in [settings]"
        ) from error
    best.restore(parts.model, parts.method)
    return parts.method.finish()


@dataclass
class _Observer:
    """Measures a run while it trains, and saves it."""

    config: Config
    parts: Parts
    journal: Journal
    best: Best
    last_saved: int  # after how many steps the checkpoint is; 0 if there is none

    def changing_phase(self, progress: Progress) -> None:
        """Note the error before weights are tied, and after clusters are frozen."""
        method, notes = self.parts.method, self.journal.notes
        if progress.event == "leaving" and not method.phase.is_tied:
            notes["val_error_soft"] = self._validation_error()
        elif progress.event == "entered" and method.phase.is_last:
            notes["val_error_hardened"] = self._validation_error()

    def stepped(self, progress: Progress, seconds: float) -> Record | None:
        """Measure and save where it is time for it; gives the row of a measurement."""
        training, method, step = self.config.training, self.parts.method, progress.step
        is_last = step == self.config.plan.steps
        row = None
        self.journal.add_step(progress.loss, seconds)
        if is_last or step % training.evaluate_every == 0:
            error, stats = self._validation_error(), method.stats()
            row = self.journal.measure(step, lr=progress.lr, val_error=error, stats=stats)
            if training.keep_best and method.phase.is_last:
                self.best.consider(step, error, self.parts.model, method)
        # After the last step, too, in case writing the results fails.
        if is_last or step % training.checkpoint_every == 0:
            self.save(step)
        return row

    def save(self, step: int) -> None:
        """Write a checkpoint, unless training has diverged."""
        for name, value in self.parts.model.named_parameters():  # a buffer may be -inf on purpose
            if not bool(value.isfinite().all()):
                raise DivergedError(f"{name!r} is not finite after step {step:,}")
        checkpoint = self.journal.folder / "checkpoint.safetensors"
        save(checkpoint, step, self.parts, self.journal, self.best)
        self.last_saved = step

    def _validation_error(self) -> float:
        validation, bf16 = self.parts.data.validation, self.config.training.bf16
        return error_percent(self.parts.model, *validation, bf16=bf16)


def _batches(config: Config, parts: Parts) -> Batches:
    training, steps = config.training, config.plan.steps
    return Batches(
        parts.data.train.inputs,
        parts.labels,
        training.batch_size,
        config.seed,
        parts.data.augment,
        parts.relabel,
        [(round(share * steps), pixels) for share, pixels in training.progressive_resizing],
    )


@contextmanager
def on_stop_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGINT and SIGTERM, as far as this thread can be told of them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- after ----------------------------------------------------------------------------------


def measured(
    config: Config, model: nn.Module, data: Data, state: TiedState, file_bytes: int
) -> Record:
    """What a record tells about a network and the file that it was read from."""
    return {
        "val_error": error_percent(model, *data.validation, exact=True),
        "test_error": _test_error(config, model, data),
        "density": state.density,
        "num_clusters": state.num_clusters,
        "num_weights": state.num_weights,
        "original_bytes": state.original_bytes,
        "file_bytes": file_bytes,
        "rate_file": rates.rate_file(state, file_bytes),
        "rate_paper": rates.rate_paper(state),
        "rate_fixed": rates.rate_fixed(state),
    }


def _conclude(
    config: Config,
    parts: Parts,
    journal: Journal,
    state: TiedState,
    more: Record,
) -> Record:
    """Write the file, read it back, evaluate what was read, and write the record."""
    folder, data = journal.folder, parts.data
    content = encode(state)
    back = decode(content, max_bytes=2 * state.original_bytes + (1 << 20))
    if back != state:
        raise CheckError("the encoded network does not decode to itself; please report this")
    parts.model.load_state_dict(tensors(back))
    if not state.codebooks:  # nothing was tied: a parent for other runs
        write_atomically(folder / "model.safetensors", save_safetensors(tensors(back)))
    write_atomically(folder / "model.reef", content)
    # Nothing is soft or hard where nothing is tied.
    notes = journal.notes if state.codebooks else {}
    record = {
        "network": config.model,
        "data": config.data,
        "data_name": data.name,
        "method": config.method,
        "seed": config.seed,
        "settings": dict(config.settings),
        "start_is_tied": parts.method.phases[0].is_tied,
        "val_error_soft": notes.get("val_error_soft"),
        "val_error_hardened": notes.get("val_error_hardened"),
        **measured(config, parts.model, data, state, len(content)),
        **more,
        "skipped": parts.method.skipped,
        "seconds": round(journal.seconds, 1),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }
    write_record(folder, record)
    write_report(folder, state)
    remove(folder, ["checkpoint.safetensors"])
    return record


def errors_on_test(config: Config, files: Sequence[Path | None]) -> list[float | None]:
    """The test error of each file, in percent; None where there is none or no test data.

    This is looked at once, when nothing is chosen any more.
    """
    if not config.evaluate_test or not any(files):
        return [None] * len(files)
    model, data = network_and_data(config)

    def error_of(file: Path) -> float | None:
        try:
            model.load_state_dict(load(file))
        except RuntimeError as error:
            raise FormatError(f"{file} does not fit {config.model}") from error
        return _test_error(config, model, data)

    return [None if file is None else error_of(file) for file in files]
