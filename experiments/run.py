"""The queue: every recipe that has no record yet, the longest first.

    python -m experiments.run                     # all of them, on two threads
    python -m experiments.run 'lenet-5*/sparse*'  # those whose network/recipe matches a pattern
    python -m experiments.run --list              # what is done, started and left; runs nothing

Takes     experiments/NETWORK/RECIPE.toml, and experiments/queue.toml for seeds, sizes and minutes.
Gives     a record under experiments/records for each run that ends.

Run folders are outside the checkout (--runs). An interrupted run resumes from its checkpoint. A
recipe that needs another record, as its start or as a teacher, waits for it; the record gets the
name that the recipe gives, date and all. A record of a recipe as it was before a change does not
count, and makes way for the new one. A dense file too large to be committed is packed.
"""

import argparse
import datetime
import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.packed import pack
from reefknot.lab.runs.config import Config, read_config
from reefknot.lab.runs.folder import config_text

RECIPES = Path(__file__).parent
RECORDS = RECIPES / "records"
KEPT = ("record.json", "model.reef")
MOST_BYTES = 20_000_000  # of a file that is committed as it is; a larger one is packed
DEFAULT = {"seeds": [0], "minutes": 10, "target_bytes": [None]}
POLL_SECONDS = 2.0
# Memory of large tensors is kept, not given back: a tenth of a step of VGG-16.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "16000000000"}


@dataclass(frozen=True)
class Job:
    """One recipe with one seed, and with one size if the queue names several."""

    network: str
    file: str
    seed: int
    minutes: float
    target_bytes: int | None = None

    @property
    def recipe(self) -> str:
        """The name of its records: the recipe's file, and the size if the queue gives one."""
        return self.file if self.target_bytes is None else f"{self.file}-{self.target_bytes}"

    @property
    def name(self) -> str:
        """The name of its folder, also in messages."""
        return f"{self.network}_{self.recipe}_seed{self.seed}"

    @property
    def path(self) -> Path:
        """The recipe's file."""
        return RECIPES / self.network / f"{self.file}.toml"

    @property
    def changes(self) -> list[str]:
        """The overrides of the recipe for this job."""
        size = self.target_bytes
        return [f"seed={self.seed}"] + ([f"settings.target_bytes={size}"] if size else [])

    @cached_property
    def config(self) -> Config:
        """The recipe as this job runs it."""
        return read_config(self.path, self.changes)

    @property
    def threads(self) -> int:
        """How many threads it uses."""
        return max(1, self.config.training.threads)

    @property
    def is_done(self) -> bool:
        """Whether a record of this recipe as it is now is committed, of any date."""
        found = RECORDS.glob(f"*_{self.name}/config.toml")
        return any(comparable(read_config(path)) == comparable(self.config) for path in found)

    @property
    def needs(self) -> list[Path]:
        """Files of other records that must be there first."""
        config = self.config
        return [Path(p) for p in (config.start, *config.distillation.teachers) if p is not None]


def jobs(pattern: str = "*") -> Iterator[Job]:
    """Every job whose network/recipe matches the pattern."""
    queue: dict[str, dict[str, Any]] = tomllib.loads((RECIPES / "queue.toml").read_text())
    for path in sorted(RECIPES.glob("*/*.toml")):
        network = path.parent.name
        entry = DEFAULT | queue.get(network, {}).get(path.stem, {})
        for size in entry["target_bytes"]:
            for seed in entry["seeds"]:
                job = Job(network, path.stem, seed, entry["minutes"], size)
                if fnmatch.fnmatch(f"{network}/{job.recipe}", pattern) and network != "records":
                    yield job


def comparable(config: Config) -> Config:
    """The configuration without the seed, and without the parent, which differs between seeds."""
    start = config.start and re.sub(r"seed\d+", "", os.path.normpath(config.start))
    teachers = [os.path.normpath(teacher) for teacher in config.distillation.teachers]
    return replace(
        config,
        seed=0,
        start=start,
        training=replace(config.training, checkpoint_every=0),
        optimizer=replace(config.optimizer, decay=config.plan.decay),  # its default, where unset
        distillation=replace(config.distillation, teachers=teachers),
    )


class Queue:
    """Runs jobs in parallel, on a number of threads in all; `keep` takes what a run has left."""

    def __init__(
        self,
        waiting: list[Job],
        runs: Path,
        threads: int,
        keep: Callable[[Job, Path], object] | None = None,
    ) -> None:
        self.waiting = sorted(waiting, key=lambda job: -job.minutes)
        self.keep = keep or record
        self.runs, self.threads = runs, threads
        self.running: dict[Job, subprocess.Popen[bytes]] = {}
        self.failed: list[str] = []

    def go(self) -> int:
        """Run until nothing is left, or nothing can start; gives how many runs failed."""
        self.runs.mkdir(parents=True, exist_ok=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM acts like Ctrl-C
        try:
            while self.waiting or self.running:
                if not self._begin_what_fits() and not self.running:
                    for job in self.waiting:
                        missing = [str(p) for p in job.needs if not p.exists()]
                        self.failed.append(f"{job.name} needs {', '.join(missing)}")
                    break
                time.sleep(POLL_SECONDS)
                self._collect()
        except KeyboardInterrupt:
            for process in self.running.values():
                process.terminate()  # each writes a checkpoint and stops
            for process in self.running.values():
                process.wait()
            print("stopped; the same command continues")
        for line in self.failed:
            print(f"failed: {line}")
        return len(self.failed)

    def _begin_what_fits(self) -> bool:
        begun = False
        for job in list(self.waiting):
            free = self.threads - sum(other.threads for other in self.running)
            if min(job.threads, self.threads) <= free and all(p.exists() for p in job.needs):
                self.waiting.remove(job)
                self.running[job] = self._begin(job)
                begun = True
        if begun:
            self._tell()
        return begun

    def _begin(self, job: Job) -> subprocess.Popen[bytes]:
        folder = self.runs / job.name
        command = [sys.executable, "-m", "reefknot.cli", "run", str(job.path)]
        command += ["--out", str(folder)]
        command += [word for change in job.changes for word in ("--set", change)]
        command += ["--resume"] if folder.exists() else []
        with (self.runs / f"{job.name}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | ALLOCATOR)

    def _collect(self) -> None:
        for job, process in list(self.running.items()):
            if process.poll() is None:
                continue
            del self.running[job]
            if process.returncode == 0:
                print(f"done: {self.keep(job, self.runs / job.name)}", flush=True)
            else:
                log = (self.runs / f"{job.name}.log").read_text(errors="replace")
                last = log.strip().rpartition("\n")[2]
                self.failed.append(f"{job.name}: exit code {process.returncode}: {last}")
            self._tell()

    def _tell(self) -> None:
        names = ", ".join(job.name for job in self.running) or "nothing"
        left = sum(job.minutes * job.threads for job in (*self.waiting, *self.running))
        hours = left / 60 / self.threads
        print(f"running: {names}; {len(self.waiting)} waiting, about {hours:.1f} hours", flush=True)


def record(job: Job, folder: Path) -> Path:
    """Copy the published files of a finished run to the records; gives the record's folder.

    Records of the same name from before the recipe was changed are deleted.
    """
    place = RECORDS / _record_name(job)
    place.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        shutil.copyfile(folder / name, place / name)
    # Paths in it are relative to its folder.
    config = read_config(folder / "config.toml")
    (place / "config.toml").write_text(config_text(place, config))
    if (place / "model.reef").stat().st_size > MOST_BYTES:
        pack(place)
    for before in set(RECORDS.glob(f"*_{job.name}")) - {place}:
        shutil.rmtree(before)
    return place


def _record_name(job: Job) -> str:
    """The name by which another recipe needs this record, otherwise one with today's date."""
    known = (path.parent.name for other in jobs() for path in other.needs)
    named = (name for name in known if name.partition("_")[2] == job.name)
    return next(named, f"{datetime.date.today().isoformat()}_{job.name}")


def main() -> int:
    """Run the queue, or list it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pattern", nargs="?", default="*", help="network/recipe, with * and ?")
    parser.add_argument("--jobs", type=int, default=2, help="threads to keep busy [2]")
    parser.add_argument(
        "--runs", type=Path, default=RECIPES.parents[1] / "runs", help="folder of run folders"
    )
    parser.add_argument("--list", action="store_true", help="say what is done and left")
    options = parser.parse_args()
    found = list(jobs(options.pattern))
    left = [job for job in found if not job.is_done]
    if options.list:
        for job in found:
            begun = (options.runs / job.name).exists()
            state = "done" if job.is_done else "begun" if begun else "left"
            print(f"{state:6} {job.minutes:6.0f} min  {job.name}")
    hours = sum(job.minutes * job.threads for job in left) / 60 / options.jobs
    print(f"{len(found) - len(left)} of {len(found)} done; about {hours:.1f} hours left")
    return 0 if options.list else min(1, Queue(left, options.runs, options.jobs).go())


if __name__ == "__main__":
    sys.exit(main())
