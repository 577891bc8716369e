"""Our results beside the paper's, from records only.

    python -m experiments.tables            # the table as Markdown
    python -m experiments.tables --write    # put all tables into README.md and docs/
    python -m experiments.tables --check    # load every file, evaluate it again, compare
    python -m experiments.tables --renew    # the same, and write errors that differ into records

Takes     experiments/records/*/ with record.json, config.toml and model.reef.
Gives     one row per network and recipe, the mean over its seeds; or records that do not reproduce.

A row appears when its first record does. Records are checked in float64, and an answer counts as
wrong if another output equals the right one but for rounding, so that the number of wrong answers
is the same on every machine.
"""

import argparse
import functools
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

import reefknot
from experiments.run import comparable, jobs
from reefknot.format import encode, open_state
from reefknot.lab.baselines import BASELINE
from reefknot.lab.runs.config import read_config
from reefknot.lab.runs.training import error_percent
from reefknot.lab.zoo import DATASETS, INPUTS, NETWORKS, Data, as_data
from reefknot.methods.settings import settings_of
from reefknot.rates import rate_file, rate_live, rate_paper
from reefknot.reference import resolve
from reefknot.shrinking.graph import dead_elements

RECORDS = Path(__file__).parent / "records"
ROOT = Path(__file__).parents[1]
VGG_RUNS = RECORDS / "figures" / "vgg-16.json"
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "method.md")

LENETS = ("lenet-300-100", "lenet-5-caffe")

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
WITHOUT_DEAD = {"bayesian_compression", "sparse_vd"}  # published by Louizos et al.

# VGG-16 on CIFAR-10 elsewhere: error % of the parent and of the result, non-zero %, rate.
VGG_ELSEWHERE = {
    "Sparse APT, K = 31 (the paper)": (7.3, 8.3, 4.6, "93 (the paper's count)"),
    "BC-GNJ (quoted by the paper)": ("", 8.6, 6.7, "95 (the paper's count)"),
    "BC-GHS (quoted by the paper)": ("", 9.2, 5.5, "116 (the paper's count)"),
    "LilNetX (2023)": ("", 7.4, "", "465, without BatchNorm"),
    "EPR (2020)": ("", 10.0, "", "590"),
}


class HandMade(NamedTuple):
    """A recipe of version 0.1, means of its seeds 0 to 2. Its records are in the git history."""

    name: str
    file_bytes: int
    test_error: float


# The recipes that give only a size and a number of steps, and the hand-tuned recipes with many
# settings that they replace.
BUDGETS: dict[tuple[str, str], HandMade | None] = {
    ("lenet-300-100", "sparse_apt-6900"): HandMade("sparse_apt-150x", 6_886, 0.96),
    ("lenet-300-100", "sparse_apt-3300"): HandMade("sparse_apt-300x", 3_303, 1.65),
    ("lenet-300-100", "sparse_apt-3300-alone"): None,
    ("lenet-300-100", "sparse_apt-1770"): HandMade("sparse_apt-600x", 1_757, 1.60),
    ("lenet-5-caffe", "sparse_apt-3050"): HandMade("sparse_apt-555x", 3_041, 0.63),
    ("lenet-5-caffe", "sparse_apt-1140"): HandMade("sparse_apt-1500x", 1_140, 0.90),
    ("lenet-5-caffe", "sparse_apt-1140-alone"): None,
}
CURVE = "byte_curve-"
# Recipes that were replaced or changed: their records stay until those of the new ones are there.
REPLACED = {
    *((net, f"sparse_apt{kind}") for net in LENETS for kind in ("", "-33", "-paper", "-literal")),
    *((net, "soft_weight_sharing") for net in LENETS),
    *(("lenet-5-caffe", f"bayesian_compression-{prior}") for prior in ("gnj", "ghs")),
    ("lenet-300-100", "sparse_apt-adadelta"),
    ("lenet-5-caffe", "deep_compression"),
    *(("vgg-16", f"sparse_apt-{kind}") for kind in ("129000", "129000-longer", "250000")),
    ("vgg-16", "sparse_apt-645000-31"),  # the JPEG copy's
}
GOALS = {  # bytes and accuracy to be reached from a size alone
    ("lenet-5-caffe", 512): 95.0,
    ("lenet-5-caffe", 575): 98.0,
    ("lenet-5-caffe", 862): 99.0,
    ("lenet-5-caffe", 3_072): 99.4,
    ("lenet-5-caffe", 11_000): 99.55,
    ("lenet-300-100", 1_066): 98.1,
}
SEEDS = (0, 1, 2)  # of a row
UNSEEN = {  # how many validation and test images there are
    "mnist": (6_000, 10_000),
    "mnist-unit": (6_000, 10_000),
    "mnist-warped": (6_000, 10_000),
    "cifar10": (5_000, 10_000),
    "cifar10-cutout": (5_000, 10_000),
}


@dataclass(frozen=True)
class Run:
    """One committed record and its folder."""

    folder: Path
    record: dict[str, Any]

    @property
    def name(self) -> str:
        """The recipe's file, without its ending; the folder is date_network_name_seed."""
        return self.folder.name.rpartition("_seed")[0].partition(f"_{self.record['network']}_")[2]

    @property
    def num_teachers(self) -> int:
        """How many teachers there are."""
        return len(read_config(self.folder / "config.toml").distillation.teachers)

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
        record = json.loads(path.read_text())
        record["network"] = path.parent.name.split("_")[1]  # whatever its dropout in training
        record["dense_test_error"] = _dense_error(path.parent)
        yield Run(path.parent, record)


@functools.cache
def _dense_error(folder: Path) -> float | None:
    """The test error of its parent; of a run that continues another one, the parent of that one."""
    start = read_config(folder / "config.toml").start
    first = Path(start).parent if start else folder
    before = _dense_error(first) if start and (first / "record.json").exists() else None
    if before is not None:
        return before
    found: float | None = json.loads((folder / "record.json").read_text())["dense_test_error"]
    return found


def recipes() -> dict[tuple[str, str], list[Run]]:
    """The runs of each network and recipe."""
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs():
        if run.record["seed"] in SEEDS:
            found.setdefault((run.record["network"], run.name), []).append(run)
    return dict(sorted(found.items()))


def table() -> str:
    """The comparison with the paper's table, as Markdown."""
    columns = (
        "network | recipe | scope | K | error %, paper | error % | validation and test % "
        "| parent % | non-zero %, paper | non-zero % | rate, paper | `rate_paper` | `rate_file` "
        "| bytes | seeds"
    )
    rows = []
    for (network, name), group in recipes().items():
        if name.startswith(CURVE):
            continue
        first = group[0].record
        error, nonzero, rate = PAPER.get(group[0].row, ("", "", ""))
        dense = [run.record["dense_test_error"] for run in group]
        rows.append(
            [
                network,
                name,
                _scope(first),
                _clusters(group),
                error,
                f"{_mean(group, 'test_error'):.2f}",
                _with_interval(group),
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


def small() -> str:
    """The smallest files, for the README."""
    columns = (
        "network | file bytes | times smaller | test error % | warped images | teachers "
        "| dense parents % | seeds"
    )
    rows = []
    found = recipes()
    large = (
        (key, group)
        for key, group in found.items()
        if key[0] == "vgg-16" and group[0].record["method"] != BASELINE
    )
    for (network, _), group in (*_budget_rows(found), *large):
        warped = group[0].record["data"] == "mnist-warped"
        if group[0].record["dense_test_error"] is None:
            parents = _mean(found[network, "dense-warped" if warped else "dense"], "test_error")
        else:
            parents = _mean(group, "dense_test_error")
        rows.append(
            [
                network,
                f"{_mean(group, 'file_bytes'):,.0f}",
                f"{_mean(group, 'rate_file'):,.0f}",
                f"{_mean(group, 'test_error'):.2f}",
                "yes" if warped else "no",
                group[0].num_teachers or "no",
                f"{parents:.2f}",
                _seeds(group),
            ]
        )
    return _markdown(columns, rows)


def budgets() -> str:
    """What a size and a number of steps give, seed by seed, beside the hand-made recipes."""
    columns = (
        "network | recipe | target | bytes of each seed | K | test error % of each seed | mean "
        "| validation and test % | by hand: bytes | test error % | difference | seeds"
    )
    rows = []
    for key, group in _budget_rows(recipes()):
        rows.append(
            [
                *key,
                f"{group[0].record['settings']['target_bytes']:,}",
                ", ".join(f"{run.record['file_bytes']:,}" for run in group),
                _clusters(group),
                ", ".join(f"{run.record['test_error']:.2f}" for run in group),
                f"{_mean(group, 'test_error'):.2f}",
                _with_interval(group),
                *_beside(BUDGETS[key], _mean(group, "test_error")),
                _seeds(group),
            ]
        )
    return _markdown(columns, rows)


def vgg() -> str:
    """VGG-16: ours, each with its parent and the time it took, and others beside it."""
    columns = (
        "what | K | parent % | error % | above its parent | non-zero % | `rate_file` | bytes "
        "| `rate_paper` | hours, one thread"
    )
    rows: list[list[Any]] = []
    for (network, name), group in recipes().items():
        if network == "vgg-16":
            error, parent, above = _mean(group, "test_error"), "", ""
            if group[0].record["dense_test_error"] is not None:
                dense = _mean(group, "dense_test_error")
                parent, above = f"{dense:.2f}", f"{error - dense:+.2f}"
            cells = [f"`{name}`", _clusters(group), parent, f"{error:.2f}"]
            cells += [above, f"{100 * _mean(group, 'density'):.2f}"]
            cells += [f"{_mean(group, 'rate_file'):.0f}", f"{_mean(group, 'file_bytes'):,.0f}"]
            cells += [f"{_mean(group, 'rate_paper'):.0f}", f"{_mean(group, 'seconds') / 3600:.1f}"]
            rows.append(cells)
    for what, (parent, error, nonzero, rate) in VGG_ELSEWHERE.items():
        above = f"{error - parent:+.1f}" if parent else ""
        rows.append([what, "", parent, error, above, nonzero, rate, "", "", ""])
    return _markdown(columns, rows)


def vgg_runs() -> str:
    """How the runs of VGG-16 went, row by row; a step's time includes measuring and refits."""
    if not VGG_RUNS.exists():
        return "(no records yet)"
    columns = (
        "recipe | steps | phase | seconds a step | non-zero % | K | predicted bytes "
        "| validation error %"
    )
    rows: list[list[Any]] = []
    for recipe, lines in sorted(json.loads(VGG_RUNS.read_text()).items()):
        before = {"step": 0, "seconds": 0.0}
        for line in lines:
            steps = line["step"] - before["step"]
            each = (line["seconds"] - before["seconds"]) / steps
            cells = [f"`{recipe}`", f"{line['step']:,}", line["phase"], f"{each:.2f}"]
            cells += [f"{100 * line['density']:.2f}", line["num_clusters"]]
            rows.append([*cells, f"{line['predicted_bytes']:,}", f"{line['val_error']:.2f}"])
            before = line
    return _markdown(columns, rows)


def curve() -> str:
    """Error against bytes: a run for each size, one seed."""
    rows = []
    for (network, name), group in recipes().items():
        if name.startswith(CURVE):
            target = group[0].record["settings"]["target_bytes"]
            size, error = _mean(group, "file_bytes"), _mean(group, "test_error")
            cells = [f"{size:,.0f}", _clusters(group), f"{error:.2f}", _with_interval(group)]
            rows.append((network, target, cells))
    columns = "network | target | bytes | K | test error % | validation and test %"
    return _markdown(columns, [[n, f"{t:,}", *cells] for n, t, cells in sorted(rows)])


def goals() -> str:
    """The records to beat, each with the largest network of ours within its size."""
    rows = []
    for (network, size), accuracy in GOALS.items():
        fitting = [
            (_mean(group, "file_bytes"), 100 - _mean(group, "test_error"), len(group))
            for (other, name), group in recipes().items()
            if other == network and (name.startswith(CURVE) or BUDGETS.get((other, name)))
        ]
        ours = max((row for row in fitting if row[0] <= size), default=None)
        if ours is not None:
            told = [f"{ours[0]:,.0f}", f"{ours[1]:.2f}", ours[2]]
            fell = "yes" if ours[1] >= accuracy else "no"
            rows.append([network, f"{size:,}", f"{accuracy:g}", *told, fell])
    return _markdown("network | at most | accuracy % | bytes | accuracy % | seeds | fell", rows)


def _beside(hand: HandMade | None, error: float) -> list[str]:
    """Bytes and error of the hand-made recipe, and how far the budget recipe is above it."""
    if hand is None:
        return [""] * 3
    return [f"{hand.file_bytes:,}", f"{hand.test_error:.2f}", f"{error - hand.test_error:+.2f}"]


def by_hand() -> str:
    """The recipes of 0.1 that two numbers replace."""
    rows = [
        [network, f"`{hand.name}`", f"{hand.file_bytes:,}", f"{hand.test_error:.2f}", f"`{recipe}`"]
        for (network, recipe), hand in BUDGETS.items()
        if hand
    ]
    return _markdown("network | recipe of 0.1 | bytes | test error % | replaced by", rows)


def _budget_rows(
    found: dict[tuple[str, str], list[Run]],
) -> Iterator[tuple[tuple[str, str], list[Run]]]:
    """The budget recipes that have a record, in the order in which people read them."""
    return ((key, found[key]) for key in BUDGETS if key in found)


def live() -> str:
    """The rates without dead rows and columns, where those who published a row left them out."""
    rows = []
    for (network, name), group in recipes().items():
        if group[0].row not in PAPER or group[0].record["method"] not in WITHOUT_DEAD:
            continue
        states = [open_state(run.folder / "model.reef") for run in group]
        rows.append(
            [
                network,
                name,
                PAPER[group[0].row][2],
                f"{_mean(group, 'rate_paper'):.0f}",
                f"{fmean(map(rate_live, states)):.0f}",
            ]
        )
    return _markdown("network | recipe | rate, paper | `rate_paper` | `rate_live`", rows)


def dead() -> str:
    """The share of dead weights of sparse APT on MNIST, and the size of files without them."""
    shares, savings = [], []
    for (network, name), group in recipes().items():
        first = group[0].record
        on_mnist = first["data"].startswith("mnist")
        if first["method"] != "sparse_apt" or not on_mnist or name.startswith(CURVE):
            continue
        stored = reefknot.load(group[0].folder / "model.reef")
        model = NETWORKS[network]()
        model.load_state_dict(stored)
        masks = dead_elements(model, torch.zeros(1, *INPUTS[network].shape))
        needed = {
            key: value.masked_fill(masks[key], 0) if key in masks else value
            for key, value in stored.items()
        }
        before, after = (
            sum(map(int, map(torch.count_nonzero, s.values()))) for s in (stored, needed)
        )
        sizes = [len(encode(reefknot.cluster(state))) for state in (stored, needed)]
        shares.append(100 * (1 - after / before))
        savings.append(100 * (1 - sizes[1] / sizes[0]))
    if not shares:
        return "(no records yet)"
    return (
        f"Of the non-zero weights of the {len(shares)} recipes of sparse APT on MNIST above (their "
        f"first seeds) at most {max(shares):.1f} % are dead, and the files are {min(savings):.1f} "
        f"to {max(savings):.1f} % smaller without them."
    )


def settings() -> str:
    """The settings of sparse APT, as they are declared."""
    rows = [
        [f"`{f.name}`", f"`{json.dumps(f.default)}`" if f.default else "", f.metadata["doc"]]
        for f in settings_of(reefknot.SparseAPT)
    ]
    return _markdown("setting | default | meaning", rows)


def written(text: str) -> str:
    """A document with each table between its marks, made from the current records."""
    for mark, make in MARKS.items():
        before, found, rest = text.partition(f"<!-- {mark} -->\n")
        if found:
            after = rest.partition(f"<!-- /{mark} -->")[2]
            text = f"{before}{found}{make()}\n<!-- /{mark} -->{after}"
    return text


MARKS = {
    "table": table,
    "budgets": budgets,
    "curve": curve,
    "vgg": vgg,
    "vgg-runs": vgg_runs,
    "goals": goals,
    "by-hand": by_hand,
    "small": small,
    "live": live,
    "dead": dead,
    "settings": settings,
}


def _with_interval(group: list[Run]) -> str:
    """The error over validation and test images together, and its binomial standard error.

    Together they have less noise than either. Answers of different seeds to the same image are
    counted as independent, which they are not quite.
    """
    validation, test = UNSEEN[group[0].record["data"]]
    answers = (validation + test) * len(group)
    wrong = sum(
        validation * run.record["val_error"] + test * run.record["test_error"] for run in group
    )
    share = wrong / 100 / answers
    return f"{100 * share:.2f} ± {100 * math.sqrt(share * (1 - share) / answers):.2f}"


def _seeds(group: list[Run]) -> str:
    """How many seeds there are, of those that a row should have."""
    return str(len(group)) if len(group) == len(SEEDS) else f"{len(group)} of {len(SEEDS)}"


def _clusters(group: list[Run]) -> str:
    """K, or the range where each seed chose its own; empty where nothing is tied."""
    found = sorted({run.record["num_clusters"] for run in group} - {0, None})
    return "" if not found else f"{found[0]}" if len(found) == 1 else f"{found[0]}–{found[-1]}"


def _scope(record: dict[str, Any]) -> str:
    default = "tensor" if record["method"] == BASELINE else "network"  # which was packed at its end
    scope = record["settings"].get("scope", default)
    return "" if not record["num_clusters"] else scope if isinstance(scope, str) else "groups"


def _mean(group: list[Run], key: str) -> float:
    return fmean(run.record[key] for run in group)


def strays() -> Iterator[str]:
    """Records whose configuration is not their recipe's, apart from the seed; REPLACED may stay."""
    found = {(job.network, job.recipe): job for job in jobs()}
    for run in runs():
        job = found.get((run.record["network"], run.name))
        if (run.record["network"], run.name) in REPLACED:
            continue
        trained = comparable(read_config(run.folder / "config.toml"))
        if job is None or trained != comparable(job.config):
            yield f"{run.folder.name}: not the configuration of a recipe of this name"


def check(*, renew: bool = False) -> Iterator[str]:
    """Evaluate every committed file again; gives the differences."""
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
                if renew and key.endswith("_error"):
                    _renew(run.folder / "record.json", key, value)


def _renew(path: Path, key: str, value: float) -> None:
    record = json.loads(path.read_text()) | {key: value}
    path.write_text(json.dumps(record, indent=2) + "\n")


def _markdown(columns: str, rows: list[list[Any]]) -> str:
    if not rows:
        return "(no records yet)"
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
    parser.add_argument("--renew", action="store_true", help="the same; write errors that differ")
    parser.add_argument("--write", action="store_true", help="put the tables into the documents")
    options = parser.parse_args()
    if options.write:
        for document in DOCUMENTS:
            document.write_text(written(document.read_text()))
    if not (options.check or options.renew):
        print(table())
        return 0
    differences = list(check(renew=options.renew))
    print("\n".join(differences) or f"all {len(list(runs()))} records hold")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
