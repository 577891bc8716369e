"""What a step costs as the network becomes sparse, with `training.shrink` and without.

Takes     LeNet-300-100 and LeNet-5 on MNIST, sparse APT from a budget, seed 0.
Gives     a table in docs/performance.md and the data of its figure.

Both runs start from the same weights, see the same batches, and take their steps in turn in one
process. The time of a step is processor time, so that other programs do not count.
"""

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np

from experiments.studies.training import scaled
from reefknot import TiedState
from reefknot.format import encode
from reefknot.lab.runs.config import make_config
from reefknot.lab.runs.parts import Parts, build
from reefknot.lab.runs.training import Batches, Progress, error_percent, train
from reefknot.shrinking.narrow import Narrowed

MINUTES, MARK, DOCUMENT = 4.0, "while training", "performance.md"
CASES = {"lenet-300-100": (1_770, 12_000), "lenet-5-caffe": (1_140, 600)}  # bytes, steps
WINDOWS = 60  # times are medians over so many parts of a run
TITLES = {"whole": "whole", "shrunk": "`training.shrink`"}


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """Each network."""
    return {
        network: {"network": network, "target_bytes": size, "steps": steps}
        for network, (size, steps) in CASES.items()
    }


def measure(network: str, target_bytes: int, steps: int) -> dict[str, Any]:
    """Both runs, step by step in turn."""
    steps = scaled(steps)
    config = make_config(
        {
            "model": network,
            "data": "mnist",
            "method": "sparse_apt",
            "seed": 0,
            "settings": {"target_bytes": target_bytes},
            "training": {"steps": steps, "batch_size": 128},
            "optimizer": {"name": "adadelta"},
        }
    )
    runs = {name: build(config) for name in TITLES}
    going: dict[str, Iterator[Progress]] = {}
    for name, parts in runs.items():
        parts.method.attach(parts.optimizer)
        batches = Batches(*parts.data.train, config.training.batch_size, config.seed)
        going[name] = train(
            parts.model, parts.method, parts.optimizer, batches, config.plan,
            shrink=name == "shrunk",
        )  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in runs}
    phases: list[dict[str, Any]] = []
    is_over = False
    while not is_over:
        for name, run in going.items():
            began = time.process_time()
            progress = next(run, None)
            if progress is None:
                is_over = True
            elif progress.event == "step":
                times[name].append(1_000 * (time.process_time() - began))
            if progress and name == "shrunk" and (not phases or progress.event == "entered"):
                phases.append(_phase(progress, runs[name]))
    return {
        "network": network,
        "target_bytes": target_bytes,
        "steps": steps,
        "phases": phases,
        "ms": {name: _windows(own) for name, own in times.items()},
        "seconds": {name: sum(own) / 1_000 for name, own in times.items()},
        **_ends(runs),
    }


def _phase(progress: Progress, parts: Parts) -> dict[str, Any]:
    """Where a phase begins, and the multiplications for one example in it."""
    fixed, example = parts.method.phase.fixed_zeros(), parts.data.train[0][:1]
    before, after = Narrowed(parts.model, fixed, example).macs
    step = progress.step if progress.event == "entered" else 0
    return {"phase": progress.phase, "step": step, "macs": after, "whole_macs": before}


def _windows(times: list[float]) -> list[float]:
    parts = np.array_split(np.array(times), min(WINDOWS, len(times)))
    return [round(median(part.tolist()), 3) for part in parts]


def _ends(runs: dict[str, Parts]) -> dict[str, Any]:
    """The file and the validation error of each run, and how many weights are the same."""
    states = {name: parts.method.finish() for name, parts in runs.items()}
    whole, shrunk = (_values(states[name]) for name in TITLES)
    return {
        "file_bytes": {name: len(encode(state)) for name, state in states.items()},
        "density": {name: state.density for name, state in states.items()},
        "val_error": {
            name: error_percent(parts.model, *parts.data.validation, exact=True)
            for name, parts in runs.items()
        },
        "same_zeros": float(((whole == 0) == (shrunk == 0)).mean()),
    }


def _values(state: TiedState) -> np.ndarray:
    return np.concatenate([values.ravel() for _, _, values in state.arrays()])


def data(done: dict[str, Any]) -> dict[str, Any]:
    """By network."""
    return done


def table(runs: dict[str, Any]) -> str:
    """The record as Markdown."""
    lines = [
        "| network | run | ms per step: first, last tenth | all steps, s | multiplications | "
        "validation error % | file bytes |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for network, run in runs.items():
        first, last = run["phases"][0], run["phases"][-1]
        for name, title in TITLES.items():
            ms, tenth = run["ms"][name], max(1, len(run["ms"][name]) // 10)
            macs = last["macs"] if name == "shrunk" else last["whole_macs"]
            lines.append(
                f"| {network} | {title} | {median(ms[:tenth]):.2f}, {median(ms[-tenth:]):.2f} | "
                f"{run['seconds'][name]:.0f} | {first['whole_macs']:,} → {macs:,} | "
                f"{run['val_error'][name]:.2f} | {run['file_bytes'][name]:,} |"
            )
    return "\n".join(lines)
