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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import save as save_safetensors
from torch import nn

from reefknot import rates
from reefknot.errors import CheckError, ConfigError, DivergedError, ReefknotError
from reefknot.files import write_atomically
from reefknot.format import decode, encode, open_state
from reefknot.lab.baselines import BASELINE
from reefknot.lab.report import write_report
from reefknot.lab.runs.batches import Batches
from reefknot.lab.runs.best import Best
from reefknot.lab.runs.config import Config
from reefknot.lab.runs.folder import claimed, remove
from reefknot.lab.runs.journal import Journal
from reefknot.lab.runs.parts import Parts, build, read_saved, restore, save
from reefknot.lab.runs.record import Record, read_record, versions, write_record
from reefknot.lab.runs.training import Progress, error_percent, train
from reefknot.lab.zoo import Data
from reefknot.loading import tensors
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
        if "record.json" in claim.names:
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
    model, method, optimizer, data = parts.model, parts.method, parts.optimizer, parts.data
    plan, training = config.plan, config.training
    batches = _batches(config, parts)
    notes = journal.notes
    last_saved = step or None

    def validation_error() -> float:
        return error_percent(model, *data.validation, bf16=training.bf16)

    def checkpoint(step: int) -> None:
        nonlocal last_saved
        for name, value in model.named_parameters():  # a buffer may hold -inf on purpose
            if not bool(value.isfinite().all()):
                raise DivergedError(f"{name!r} is not finite after step {step:,}")
        save(journal.folder / "checkpoint.safetensors", step, parts, journal, best)
        last_saved = step

    try:
        with _stop_signal() as stop:
            began = time.monotonic()
            for progress in train(
                model,
                method,
                optimizer,
                batches,
                plan,
                step=step,
                shrink=training.shrink,
                bf16=training.bf16,
                label_smoothing=training.label_smoothing,
                measured=journal.errors,
            ):
                if progress.event == "leaving":
                    if not method.phase.is_tied:
                        notes["val_error_soft"] = validation_error()
                elif progress.event == "entered":
                    if method.phase.is_last:
                        notes["val_error_hardened"] = validation_error()
                else:
                    journal.add_step(progress.loss, time.monotonic() - began)
                    if progress.step % training.evaluate_every == 0 or progress.step == plan.steps:
                        row = journal.measure(
                            progress.step,
                            lr=progress.lr,
                            val_error=validation_error(),
                            stats=method.stats(),
                        )
                        if training.keep_best and method.phase.is_last:
                            best.consider(progress.step, row["val_error"], model, method)
                        if display:
                            display.measured(row)
                    last = progress.step == plan.steps  # in case writing the results fails
                    if last or progress.step % training.checkpoint_every == 0:
                        checkpoint(progress.step)
                if display:
                    display.stepped(progress)
                if stop.is_set() and progress.event == "step":
                    checkpoint(progress.step)
                    raise InterruptedRunError(
                        f"stopped after step {progress.step:,}; add --resume to continue"
                    )
                began = time.monotonic()
    except DivergedError as error:
        where = f"step {last_saved:,} in {journal.folder}" if last_saved else "none"
        raise DivergedError(
            f"{error}; last good checkpoint: {where}. Try a lower optimizer.lr, or lower "
            "strengths in [settings]"
        ) from error
    best.restore(model, method)
    return method.finish()


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
def _stop_signal() -> Iterator[threading.Event]:
    """An event that SIGINT or SIGTERM sets, so that the run stops between two steps."""
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
