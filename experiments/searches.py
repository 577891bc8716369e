"""The searches for settings of the paper's recipes: a grid of each, on validation data alone.

    python -m experiments.searches                       # all of them, on two threads
    python -m experiments.searches 'lenet-300-100/*'     # those whose network/recipe matches
    python -m experiments.searches --list                # what is done and left; runs nothing
    python -m experiments.searches --adopt               # put the winners into the recipes

Takes     experiments/searches.toml, and the recipes that it names.
Gives     experiments/records/searches/NETWORK_RECIPE.json, a row for each setting that was tried.

A trial is a run of the recipe with one setting, one thread, a seed that no published row has, and
no test data. Its row is written when it ends; an interrupted one resumes from its checkpoint. With
a `first` look, all settings run at a part of the steps, and the best of them at full length.

The winner is the setting with the smallest validation error among those that reach the published
rate at full length.
"""

import argparse
import fnmatch
import itertools
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.run import RECIPES, RECORDS, Job, Queue
from experiments.tables import PAPER
from reefknot.files import write_atomically
from reefknot.lab.runs.config import read_config

SEED = 10  # of all trials
TABLES = RECORDS / "searches"
MEASURED = ("val_error_soft", "val_error_hardened", "val_error", "best_step", "density")
MEASURED += ("rate_paper", "file_bytes", "seconds")

Row = dict[str, Any]


@dataclass(frozen=True)
class Trial(Job):
    """A run of a recipe with other values of some entries, at a part of its steps."""

    values: tuple[tuple[str, float], ...] = ()
    part: float = 1.0

    @property
    def recipe(self) -> str:
        """The recipe's file, and what is tried."""
        found = "_".join(f"{value:g}" for _, value in self.values)
        return f"{self.file}_{found}" + (f"_{self.part:g}" if self.part < 1 else "")

    @property
    def changes(self) -> list[str]:
        """The overrides of the recipe for this trial."""
        plan = read_config(self.path).training
        steps = {"soft_steps": plan.soft_steps, "hard_steps": plan.hard_steps}
        changed = [f"training.{key}={round(self.part * (n or 0))}" for key, n in steps.items()]
        changed += [f"{key}={value}" for key, value in self.values]
        return [*super().changes, *changed, "evaluate_test=false", "training.threads=1"]

    @property
    def key(self) -> Row:
        """What identifies its row."""
        return dict(self.values) | {"steps": self.config.plan.steps}


@dataclass(frozen=True)
class Search:
    """A grid of settings of one recipe; the table of what was tried is its file."""

    network: str
    recipe: str
    minutes: float  # of a trial at full length
    grid: Mapping[str, Sequence[float]]
    first: Mapping[str, float] | None = None

    @property
    def file(self) -> Path:
        """Where its table is."""
        return TABLES / f"{self.network}_{self.recipe}.json"

    @property
    def least_rate(self) -> float:
        """The published rate."""
        return PAPER[self.network, self.recipe][2]

    @cached_property
    def settings(self) -> list[tuple[tuple[str, float], ...]]:
        """All settings of the grid."""
        pairs = ([(key, value) for value in values] for key, values in self.grid.items())
        return list(itertools.product(*pairs))

    def rows(self) -> list[Row]:
        """What was tried so far."""
        return json.loads(self.file.read_text()) if self.file.exists() else []

    def trials(self) -> list[Trial]:
        """All trials that are known by now: a first look at all settings, or at full length."""
        if self.first is None:
            return [self._trial(values) for values in self.settings]
        looks = [self._trial(values, self.first["part"]) for values in self.settings]
        seen = [row for row in map(self.row_of, looks) if row]
        if len(seen) < len(looks):
            return looks
        enough = [row for row in seen if row["rate_paper"] >= self.first["least_rate"]]
        best = sorted(enough, key=_by_error)[: int(self.first["keep"])]
        kept = [tuple((key, row[key]) for key in self.grid) for row in best]
        return looks + [self._trial(values) for values in kept]

    def row_of(self, trial: Trial) -> Row | None:
        """The row of a trial that has ended."""
        return next((row for row in self.rows() if trial.key.items() <= row.items()), None)

    def winner(self) -> Row | None:
        """The least validation error among the settings that reach the published rate."""
        whole = {self._trial(values).key["steps"] for values in self.settings}
        enough = (
            row
            for row in self.rows()
            if row["steps"] in whole and row["rate_paper"] >= self.least_rate
        )
        return min(enough, key=_by_error, default=None)

    def keep(self, trial: Trial, folder: Path) -> str:
        """Write the row of a trial that has ended; gives a line about it."""
        record = json.loads((folder / "record.json").read_text())
        row = trial.key | {key: record[key] for key in MEASURED}
        others = [other for other in self.rows() if not trial.key.items() <= other.items()]
        ordered = sorted([*others, row], key=lambda row: tuple(row[k] for k in trial.key))
        lines = ",\n ".join(json.dumps(row) for row in ordered)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.file, f"[\n {lines}\n]\n".encode())
        told = f"validation {row['val_error']:.2f} %, non-zero {100 * row['density']:.2f} %"
        return f"{trial.name}: {told}, rate {row['rate_paper']:.0f}"

    def _trial(self, values: tuple[tuple[str, float], ...], part: float = 1.0) -> Trial:
        minutes = part * self.minutes
        return Trial(self.network, self.recipe, SEED, minutes, values=values, part=part)


def _by_error(row: Row) -> tuple[float, float]:
    """Of equal errors, the higher rate is better."""
    return row["val_error"], -row["rate_paper"]


def searches(pattern: str = "*") -> Iterator[Search]:
    """Every search whose network/recipe matches the pattern."""
    found = tomllib.loads((RECIPES / "searches.toml").read_text())
    for network, recipes in found.items():
        for recipe, entry in recipes.items():
            if fnmatch.fnmatch(f"{network}/{recipe}", pattern):
                yield Search(network, recipe, **entry)


def adopted(search: Search, text: str) -> str:
    """A recipe with the winner's values; every entry that is searched has a line of its own."""
    winner = search.winner()
    if winner is not None:
        for key in search.grid:
            name = key.rpartition(".")[2]
            line = re.compile(rf"^{name} = .*$", re.MULTILINE)
            text = line.sub(f"{name} = {_toml(winner[key])}", text)
    return text


def _toml(value: float) -> str:
    """A number as people write it.

    >>> [_toml(value) for value in (1e-05, 0.00014, 1.0)]
    ['1e-5', '1.4e-4', '1.0']
    """
    if value >= 0.01:
        return repr(float(value))
    digits, _, exponent = f"{value:e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"


def go(search: Search, runs: Path, threads: int) -> int:
    """Run what is left of a search; gives how many trials failed."""
    while left := [trial for trial in search.trials() if not search.row_of(trial)]:
        failed = Queue(left, runs, threads, search.keep).go()
        if failed or any(not search.row_of(trial) for trial in left):
            return max(1, failed)
    return 0


def main() -> int:
    """Run searches, list them, or adopt what they found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pattern", nargs="?", default="*", help="network/recipe, with * and ?")
    parser.add_argument("--jobs", type=int, default=2, help="threads to keep busy [2]")
    parser.add_argument(
        "--runs",
        type=Path,
        default=RECIPES.parents[1] / "runs" / "searches",
        help="folder of run folders",
    )
    parser.add_argument("--list", action="store_true", help="say what is done and left")
    parser.add_argument("--adopt", action="store_true", help="put the winners into the recipes")
    options = parser.parse_args()
    for search in searches(options.pattern):
        if not options.list and not options.adopt and go(search, options.runs, options.jobs):
            return 1
        trials = search.trials()
        left = [trial for trial in trials if not search.row_of(trial)]
        hours = sum(trial.minutes for trial in left) / 60
        told = f"{len(trials) - len(left)} of {len(trials)} trials done, {hours:.1f} hours left"
        print(f"{search.network}/{search.recipe}: {told}; winner: {search.winner()}")
        if options.adopt and not left:
            path = RECIPES / search.network / f"{search.recipe}.toml"
            path.write_text(adopted(search, path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
