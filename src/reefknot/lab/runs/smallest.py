"""The smallest file that keeps the error: runs of one recipe at several sizes.

Takes     a `Config` with a budget of bytes, and how many points the validation error may grow.
Gives     the run of the smallest file that keeps to it, as a run's folder; every try in tries/,
          and all of them in smallest.json.
Unaware   of which method it runs and of how tries are shown.

The error is compared with that of the dense network: one that is given, that of the recipe's
`start`, or of a run without compression in baseline/. Sizes are halved or doubled until one try
keeps to it and one does not; from there on their geometric mean is tried. Nothing here looks at
test data before a try is chosen.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from reefknot.errors import CheckError, ConfigError, TyingError
from reefknot.files import read_bytes, write_atomically
from reefknot.format import open_state
from reefknot.lab.baselines import BASELINE
from reefknot.lab.report import write_report
from reefknot.lab.runs.config import Config, with_entries
from reefknot.lab.runs.folder import claimed, config_text, names_in
from reefknot.lab.runs.journal import Record, read_record, write_record
from reefknot.lab.runs.parts import network_and_data
from reefknot.lab.runs.run import Display, errors_on_test, run
from reefknot.lab.runs.training import error_percent

TRIES = 8
CLOSE = 1.02  # sizes that differ by less are not worth another run


class Try(NamedTuple):
    """One size, and what came of it; where it cannot be had there is no file, but a reason."""

    target_bytes: int
    file_bytes: int | None
    val_error: float | None
    keeps: bool  # to the error that is allowed
    reason: str = ""

    @property
    def enough(self) -> int:
        """The bytes that it has shown to be enough."""
        return min(self.target_bytes, self.file_bytes or self.target_bytes)


def smallest(
    config: Config,
    folder: Path,
    *,
    max_error_increase: float,
    reference_error: float | None = None,
    resume: bool = False,
    display: Display | None = None,
    tell: Callable[[Try], None] = lambda _: None,
) -> Record:
    """Find it; gives the record of its run.

    Args:
        config: what to train, and how; its `target_bytes` is tried first.
        folder: a new or empty one.
        max_error_increase: how many points of validation error compression may cost.
        reference_error: the error to compare with, in percent; that of the dense network if None.
        resume: go on in a folder that was begun with this configuration; finished tries are kept.
        display: is told of every step.
        tell: is told of every try.
    """
    first = config.settings.get("target_bytes")
    if not isinstance(first, int):
        raise ConfigError("--max-error-increase tries sizes, so it needs settings.target_bytes")
    config = replace(config, search={})
    unseen, place = replace(config, evaluate_test=False), folder / "tries"
    model, data = network_and_data(unseen)  # mistakes in names are found before anything is made
    if not resume and folder.is_dir() and names_in(folder):
        raise ConfigError(f"{folder} is not empty; add --resume, or choose another --out")
    with claimed(place, config, resume=resume, force=False) as claim:
        claim.take()
        if reference_error is None and config.start is not None:
            reference_error = error_percent(model, *data.validation, exact=True)
        elif reference_error is None:
            dense = replace(unseen, method=BASELINE, settings={})
            plain = folder / "baseline"
            reference_error = run(dense, plain, resume=plain.exists(), display=display)["val_error"]
        allowed = reference_error + max_error_increase
        most = sum(value.nbytes for value in model.state_dict().values())
        tries: list[Try] = []
        while len(tries) < TRIES and (target := next_target(tries, first, most)) is not None:
            sized = with_entries(unseen, {"settings.target_bytes": target})
            tries.append(_tried(sized, target, place / str(target), allowed, display))
            tell(tries[-1])
        kept = {"reference_error": reference_error, "max_error_increase": max_error_increase}
        kept["tries"] = [one._asdict() for one in tries]
        write_atomically(folder / "smallest.json", (json.dumps(kept, indent=2) + "\n").encode())
        chosen = min((t for t in tries if t.keeps), key=lambda t: t.enough, default=None)
        if chosen is None:
            raise CheckError(_none_keeps(tries, reference_error, max_error_increase))
        return _conclude(config, folder, chosen, reference_error)


def next_target(tries: Sequence[Try], first: int, most: int) -> int | None:
    """The size to try next; None if there is nothing left to find out.

    >>> next_target([], 800, 100_000)
    800
    >>> next_target([Try(800, 790, 2.0, True)], 800, 100_000)
    395
    >>> next_target([Try(800, 790, 2.0, True), Try(395, 390, 4.0, False)], 800, 100_000)
    559
    """
    high = min((t.enough for t in tries if t.keeps), default=None)
    fails = (t.target_bytes for t in tries if not t.keeps)
    low = max((size for size in fails if high is None or size < high), default=None)
    if low is None:
        return first if high is None else high // 2 or None
    if high is None:
        return min(2 * low, most) if low < most else None
    middle = round(math.sqrt(low * high))
    return middle if low < middle < high and high > CLOSE * low else None


def _tried(sized: Config, target: int, place: Path, allowed: float, display: Display | None) -> Try:
    try:
        record = run(sized, place, resume=place.exists(), display=display)
    except (ConfigError, TyingError) as error:  # all else in the recipe was good for the reference
        return Try(target, None, None, False, str(error))
    keeps = record["val_error"] <= allowed + 1e-9
    return Try(target, record["file_bytes"], record["val_error"], keeps)


def _conclude(config: Config, folder: Path, chosen: Try, reference: float) -> Record:
    """The chosen run becomes the folder's own, and is the only one that meets test data."""
    place = folder / "tries" / str(chosen.target_bytes)
    sized = with_entries(config, {"settings.target_bytes": chosen.target_bytes})
    for name in ("metrics.jsonl", "model.reef"):
        write_atomically(folder / name, read_bytes(place / name))
    write_atomically(folder / "config.toml", config_text(folder, sized).encode())
    plain = folder / "baseline" / "model.reef"
    # None is the network in `start`; a reference that was only told has no network.
    dense = [plain] if plain.exists() else [None] if config.start is not None else []
    test, *dense_test = errors_on_test(sized, [folder / "model.reef", *dense])
    record = read_record(place) | {"test_error": test, "dense_val_error": reference}
    record["dense_test_error"] = dense_test[0] if dense_test else None
    write_record(folder, record)
    write_report(folder, open_state(folder / "model.reef"))
    return record


def _none_keeps(tries: Sequence[Try], reference: float, increase: float) -> str:
    measured = [(t.val_error, t.file_bytes) for t in tries if t.val_error is not None]
    if not measured:
        return f"no size could be had: {tries[-1].reason}"
    error, size = min(measured)
    return (
        f"none of {len(tries)} sizes keeps the validation error within {increase:g} points of "
        f"{reference:.2f} %; the best, {size:,} bytes, has {error:.2f} %. "
        "Train longer, or allow more with --max-error-increase"
    )
