"""Runs a study in processes: finished runs are kept, the others run, and the data collected.

Takes     a study, and a folder in which each finished run is one file.
Gives     the study's data file, and its table in a document if it has one.
Unaware   of what a study measures.
"""

import json
import multiprocessing
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from experiments.studies import training
from reefknot.files import write_atomically

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "experiments" / "records" / "figures"

Done = dict[str, Any]


def name_of(study: ModuleType) -> str:
    """The name of a study, and of its files."""
    return study.__name__.rpartition(".")[2]


def record_of(study: ModuleType) -> Path:
    """The data file of a study."""
    return RECORDS / f"{name_of(study)}.json"


def document_of(study: ModuleType) -> Path:
    """The document that has the study's table."""
    return ROOT / "docs" / str(getattr(study, "DOCUMENT", "method.md"))


def finished(study: ModuleType, folder: Path) -> Done:
    """The results of a study's finished runs, without those that it no longer needs.

    A run with other arguments, or of other settings of its study, is not one of them.
    """
    done: Done = {}
    while True:  # results may change which cases there are
        wanted = {name: case for name, case in study.cases(done).items() if name not in done}
        found = {name: _result(study, folder / f"{name}.json", wanted[name]) for name in wanted}
        found = {name: result for name, result in found.items() if result is not None}
        if not found:
            return done
        done |= found


def _result(study: ModuleType, path: Path, case: dict[str, Any]) -> Any:
    if not path.exists():
        return None
    kept = json.loads(path.read_text())
    asked = json.loads(json.dumps([case, settings_of(study)]))
    return kept["result"] if [kept["case"], kept["settings"]] == asked else None


def settings_of(study: ModuleType) -> dict[str, Any]:
    """What all runs of a study have in common."""
    return getattr(study, "SETTINGS", {})


def run(study: ModuleType, folder: Path, *, jobs: int, shorter: int = 1) -> Done:
    """Run the unfinished cases of a study, on `jobs` processes."""
    folder.mkdir(parents=True, exist_ok=True)
    done = finished(study, folder)
    running: dict[Future[Any], str] = {}
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, _one_thread, (shorter,))
    try:
        while True:
            cases: Mapping[str, dict[str, Any]] = study.cases(done)
            under_way = set(running.values())
            for name in (n for n in cases if n not in done and n not in under_way):
                running[pool.submit(_measure, study.__name__, cases[name])] = name
            if not running:
                return {name: done[name] for name in cases}
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name, kept = running.pop(future), future.result()
                text = json.dumps(kept, indent=1) + "\n"
                write_atomically(folder / f"{name}.json", text.encode())
                done[name] = json.loads(text)["result"]
                told = f"{name} in {kept['seconds']:.0f} s, {len(cases) - len(done)} left"
                print(f"{name_of(study)}: {told}", flush=True)
    finally:  # cases that are waiting are not started
        pool.shutdown(wait=False, cancel_futures=True)


def collect(study: ModuleType, done: Done, record: Path) -> None:
    """Write the data file."""
    record.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(record, (compact(study.data(done)) + "\n").encode())


def compact(value: Any, depth: int = 0) -> str:
    """JSON with one line for each entry of the outer two levels, so that diffs are readable."""
    if depth < 2 and isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else ((None, v) for v in value)
        lines = (
            (f"{json.dumps(k)}: " if k is not None else "") + compact(v, depth + 1)
            for k, v in pairs
        )
        opened, closed = "{}" if isinstance(value, dict) else "[]"
        indent = "\n" + " " * (depth + 1)
        return opened + indent + f",{indent}".join(lines) + "\n" + " " * depth + closed
    return json.dumps(value)


def written(study: ModuleType, text: str) -> str:
    """A document with the study's table between its marks, from its current data file."""
    before, found, rest = text.partition(f"<!-- {study.MARK} -->\n")
    after = rest.partition(f"<!-- /{study.MARK} -->")[2]
    table = study.table(json.loads(record_of(study).read_text()))
    return f"{before}{found}{table}\n<!-- /{study.MARK} -->{after}"


def _one_thread(shorter: int) -> None:
    """At the start of each process."""
    torch.set_num_threads(1)
    training.SHORTER = shorter


def _measure(module: str, case: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    study = __import__(module, fromlist=["measure"])
    result = study.measure(**case)
    return {
        "case": case,
        "settings": settings_of(study),
        "seconds": round(time.monotonic() - began, 1),
        "result": result,
    }
