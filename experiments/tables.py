"""Our results beside the paper's, from records only.

    python -m experiments.tables            # the table as Markdown
    python -m experiments.tables --write    # put the tables into docs/results.md and README.md
    python -m experiments.tables --check    # load every file, evaluate it again, compare

Takes     experiments/records/*/ with record.json, config.toml and model.reef.
Gives     one row per network and recipe, the mean over its seeds; or the records that do not hold.

A record is checked in float64, so that the number of wrong answers is the same on every machine.
"""

import argparse
import functools
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import reefknot
from reefknot.format import open_state
from reefknot.rates import rate_file, rate_paper
from reefknot.runs.config import Config, read_config
from reefknot.runs.training import error_percent
from reefknot.zoo import DATASETS, NETWORKS, Data, as_data, resolve

RECIPES = Path(__file__).parent
RECORDS = RECIPES / "records"
ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "docs" / "results.md", ROOT / "README.md")

# Table 1 of the paper: error %, non-zero %, "max. compression rate".
PAPER = {
    ("lenet-300-100", "deep_compression"): (1.6, 8.0, 40),
    ("lenet-300-100", "soft_weight_sharing"): (1.9, 4.3, 64),
    ("lenet-300-100", "sparse_vd"): (1.8, 2.2, 113),
    ("lenet-300-100", "bayesian_compression-gnj"): (1.8, 10.8, 58),
    ("lenet-300-100", "bayesian_compression-ghs"): (2.0, 10.6, 59),
    ("lenet-300-100", "sparse_apt"): (1.9, 2.1, 127),
    ("lenet-300-100", "sparse_apt-33"): (1.6, 3.6, 77),
    ("lenet-5-caffe", "deep_compression"): (0.7, 8.0, 39),
    ("lenet-5-caffe", "soft_weight_sharing"): (1.0, 0.5, 162),
    ("lenet-5-caffe", "sparse_vd"): (1.0, 0.7, 365),
    ("lenet-5-caffe", "bayesian_compression-gnj"): (1.0, 0.9, 572),
    ("lenet-5-caffe", "bayesian_compression-ghs"): (1.0, 0.6, 771),
    ("lenet-5-caffe", "sparse_apt"): (1.0, 0.5, 346),
    ("lenet-5-caffe", "sparse_apt-33"): (0.7, 6.9, 45),
    ("vgg-16", "bayesian_compression-gnj"): (8.6, 6.7, 95),
    ("vgg-16", "bayesian_compression-ghs"): (9.2, 5.5, 116),
    ("vgg-16", "sparse_apt"): (8.3, 4.6, 93),
}


# One recipe, the same to other sizes, and with a part of it taken away or changed.
ABLATED = "sparse_apt-300x"
SIZES = {
    "ablation-small": "to a smaller size, with more L1",
    "ablation-smallest": "to a still smaller size, with still more L1",
    "ablation-large": "to a larger size, with less L1",
}
ABLATIONS = {
    "ablation-labels": "bare labels instead of the teachers' opinions",
    "ablation-rate": "the same L1 strength for every weight, half as much",
    "ablation-bits": "centers in float32",
    "ablation-tensor": "a codebook for each tensor",
    "ablation-clusters": "K = 17",
    "ablation-size": "no size to end at: any zeros, the nearest value; twice the L1",
    "ablation-through": "K = 17, never on tied values: clusters frozen by distance, any size",
    "ablation-relax": "besides, no relaxing: L1 to the end",
}
SEEDS = (0, 1, 2)  # of a row; others show how well a recipe repeats
NUM_VALIDATION, NUM_TEST = 6_000, 10_000  # of MNIST


@dataclass(frozen=True)
class Run:
    """One committed record and where it lies."""

    folder: Path
    record: dict[str, Any]

    @property
    def name(self) -> str:
        """The recipe's file, without its ending; the folder is date_network_name_seed."""
        return self.folder.name.rpartition("_seed")[0].partition(f"_{self.record['network']}_")[2]

    @property
    def row(self) -> tuple[str, str]:
        """The row of the paper's table that this compares with."""
        settings = self.record["settings"]
        method = self.record["method"]
        many = method == "sparse_apt" and settings.get("num_clusters") == 33
        variant = settings.get("prior") or ("33" if many else None)
        return self.record["network"], f"{method}-{variant}" if variant else method


def runs() -> Iterator[Run]:
    """Every committed record."""
    for path in sorted(RECORDS.glob("*/record.json")):
        yield Run(path.parent, json.loads(path.read_text()))


def recipes(*, new_seeds: bool = False) -> dict[tuple[str, str], list[Run]]:
    """The runs of each network and recipe with the seeds of a row, or with other ones."""
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs():
        if (run.record["seed"] not in SEEDS) == new_seeds:
            found.setdefault((run.record["network"], run.name), []).append(run)
    return dict(sorted(found.items()))


def table() -> str:
    """The comparison as Markdown."""
    columns = (
        "network | recipe | scope | K | error %, paper | error % | parent % | non-zero %, paper "
        "| non-zero % | rate, paper | `rate_paper` | `rate_file` | bytes | seeds"
    )
    rows = []
    for (network, name), group in recipes().items():
        if name in SIZES or name in ABLATIONS:
            continue
        first = group[0].record
        error, nonzero, rate = PAPER.get(group[0].row, ("", "", ""))
        dense = [run.record["dense_test_error"] for run in group]
        rows.append(
            [
                network,
                name,
                _scope(first),
                first["num_clusters"] or "",
                error,
                f"{_mean(group, 'test_error'):.2f}",
                "" if None in dense else f"{fmean(dense):.2f}",
                nonzero,
                f"{100 * _mean(group, 'density'):.2f}",
                rate,
                f"{_mean(group, 'rate_paper'):.0f}",
                f"{_mean(group, 'rate_file'):.0f}",
                f"{_mean(group, 'file_bytes'):,.0f}",
                len(group),
            ]
        )
    return _markdown(columns, rows)


def ablations() -> str:
    """What the recipe of LeNet-300-100 has with each of its parts taken away or changed."""
    columns = "recipe | error % | non-zero % | bytes | bytes of the recipe at that error | seeds"
    rows = []
    found = {name: group for (net, name), group in recipes().items() if net == "lenet-300-100"}
    whole = {
        fmean(map(_held_out, group)): _mean(group, "file_bytes")
        for name, group in found.items()
        if name == ABLATED or name in SIZES
    }
    for name, words in {ABLATED: "all of it", **SIZES, **ABLATIONS}.items():
        if name in found:
            group = found[name]
            error = fmean(map(_held_out, group))
            rows.append(
                [
                    words,
                    f"{error:.2f}",
                    f"{100 * _mean(group, 'density'):.2f}",
                    f"{_mean(group, 'file_bytes'):,.0f}",
                    _bytes_at(error, whole) if name in ABLATIONS else "",
                    len(group),
                ]
            )
    return _markdown(columns, rows)


def _bytes_at(error: float, sizes: dict[float, float]) -> str:
    """The bytes for an error between those of some runs, on straight lines of their logarithm."""
    errors, found = zip(*sorted(sizes.items()), strict=True)
    if error < errors[0]:
        return f"over {found[0]:,.0f}"
    if error > errors[-1]:
        return f"under {found[-1]:,.0f}"
    return f"{np.exp(np.interp(error, errors, np.log(found))):,.0f}"


# The recipes of the README's table, and what was aimed at: times less, at an error in percent.
SMALL = {
    ("lenet-300-100", "sparse_apt-150x"): (150, 1.6),
    ("lenet-300-100", "sparse_apt-300x"): (300, 1.9),
    ("lenet-300-100", "sparse_apt-600x"): (300, 1.9),
    ("lenet-5-caffe", "sparse_apt-555x"): (555, 0.7),
    ("lenet-5-caffe", "sparse_apt-1500x"): (1500, 1.0),
}


def small() -> str:
    """The smallest files, for the README."""
    columns = (
        "network | recipe | file bytes | times less | test error % | aimed at | warped images "
        "| dense parents % | seeds"
    )
    rows = []
    found = recipes()
    for (network, name), aim in SMALL.items():
        group = found[network, name]
        warped = group[0].record["data"] == "mnist-warped"
        parents = found[network, "dense-warped" if warped else "dense"]
        rows.append(
            [
                network,
                name,
                f"{_mean(group, 'file_bytes'):,.0f}",
                f"{_mean(group, 'rate_file'):,.0f}",
                f"{_mean(group, 'test_error'):.2f}",
                f"{aim[0]} at {aim[1]}",
                "yes" if warped else "no",
                f"{_mean(parents, 'test_error'):.2f}",
                len(group),
            ]
        )
    return _markdown(columns, rows)


def repeats() -> str:
    """What a recipe gave for each new seed, beside its row."""
    columns = (
        "network | recipe | bytes | error % | new seed | bytes | difference | error % | difference"
    )
    rows = []
    usual = recipes()
    for key, group in recipes(new_seeds=True).items():
        size, error = _mean(usual[key], "file_bytes"), _mean(usual[key], "test_error")
        for run in group:
            found = run.record
            rows.append(
                [
                    *key,
                    f"{size:,.0f}",
                    f"{error:.2f}",
                    found["seed"],
                    f"{found['file_bytes']:,}",
                    f"{100 * (found['file_bytes'] / size - 1):+.1f} %",
                    f"{found['test_error']:.2f}",
                    f"{found['test_error'] - error:+.2f}",
                ]
            )
    return _markdown(columns, rows)


def written(text: str) -> str:
    """A document with each table between its marks as the records have it now."""
    for mark, make in MARKS.items():
        before, found, rest = text.partition(f"<!-- {mark} -->\n")
        if found:
            after = rest.partition(f"<!-- /{mark} -->")[2]
            text = f"{before}{found}{make()}\n<!-- /{mark} -->{after}"
    return text


MARKS = {"table": table, "ablations": ablations, "small": small, "repeats": repeats}


def _held_out(run: Run) -> float:
    """The error on validation and test images together: less noise than on either."""
    wrong = NUM_VALIDATION * run.record["val_error"] + NUM_TEST * run.record["test_error"]
    return wrong / (NUM_VALIDATION + NUM_TEST)


def _scope(record: dict[str, Any]) -> str:
    scope = record["settings"].get("scope", "network")
    return "" if not record["num_clusters"] else scope if isinstance(scope, str) else "groups"


def _mean(group: list[Run], key: str) -> float:
    return fmean(run.record[key] for run in group)


def strays() -> Iterator[str]:
    """Records that were not trained as the recipe of their name says, but for the seed."""
    for run in runs():
        recipe = Path(run.record["network"]) / f"{run.name}.toml"
        if _without_seed(run.folder / "config.toml") != _without_seed(RECIPES / recipe):
            yield f"{run.folder.name}: not the configuration of experiments/{recipe}"


def _without_seed(path: Path) -> Config:
    """What decides the outcome of a run, but for its seed; each seed has its own parent."""
    config = read_config(path)
    start = config.start and re.sub(r"seed\d+", "", os.path.normpath(config.start))
    teachers = [os.path.normpath(teacher) for teacher in config.distillation.teachers]
    return replace(
        config,
        seed=0,
        start=start,
        training=replace(config.training, checkpoint_every=0),
        distillation=replace(config.distillation, teachers=teachers),
    )


def check() -> Iterator[str]:
    """Evaluate every committed file again; gives what differs."""
    yield from strays()
    for run in runs():
        config = read_config(run.folder / "config.toml")
        file = run.folder / "model.reef"
        state = open_state(file)
        model = resolve(config.model, NETWORKS, "network")()
        model.load_state_dict(reefknot.load(file))
        data = _data(config.data)
        found = {
            "test_error": error_percent(model, *data.test, exact=True) if data.test else None,
            "val_error": error_percent(model, *data.validation, exact=True),
            "density": state.density,
            "num_clusters": state.num_clusters,
            "file_bytes": file.stat().st_size,
            "rate_file": rate_file(state, file.stat().st_size),
            "rate_paper": rate_paper(state),
        }
        for key, value in found.items():
            if value != run.record[key]:
                yield f"{run.folder.name}: {key} is {value}, the record says {run.record[key]}"


def _markdown(columns: str, rows: list[list[Any]]) -> str:
    lines = [columns, " | ".join("---" for _ in columns.split(" | "))]
    lines += [" | ".join(map(str, cells)) for cells in rows]
    return "\n".join(f"| {line} |" for line in lines)


@functools.cache
def _data(name: str) -> Data:
    return as_data(resolve(name, DATASETS, "data set")(), name)


def main() -> int:
    """Print the table, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="evaluate every committed file again")
    parser.add_argument("--write", action="store_true", help="put the tables into the documents")
    options = parser.parse_args()
    if options.write:
        for document in DOCUMENTS:
            document.write_text(written(document.read_text()))
    if not options.check:
        print(table())
        return 0
    differences = list(check())
    print("\n".join(differences) or f"all {len(list(runs()))} records hold")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
