"""Figure 4: sparsity against error over strengths of L1."""

from itertools import pairwise
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from experiments.figures.style import Theme, canvas

NUMBER, STUDY = 4, "pareto"
ALT = "Non-zero share against validation error for sparse APT with K = 9 and 17, and for L1"
TITLES = {
    "k17": "sparse APT, K = 17",
    "k9": "sparse APT, K = 9",
    "trained": "K = 17 from a trained network",
    "threshold": "L1, then a threshold",
}


def series_of(data: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The points of each curve: means over the seeds of each strength (and threshold)."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in TITLES}
    same: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in data["runs"]:
        key = row["series"], row["l1_strength"], row.get("threshold")
        same.setdefault(key, []).append(row)
    for (series, strength, _), rows in same.items():
        means = {name: fmean(row[name] for row in rows) for name in ("density", "val_error")}
        found[series].append({"l1_strength": strength, **means})
    return found


def front(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The Pareto front: the runs that no other run beats in both, the sparsest first."""
    best: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda r: (r["density"], r["val_error"])):
        if not best or row["val_error"] < best[-1]["val_error"]:
            best.append(row)
    return best


def draw(data: dict[str, Any], theme: Theme) -> Figure:
    """A front for each series; runs behind it are hollow."""
    figure, ax = canvas(1, 1, 3.3)
    looks = {
        "k17": (theme.a, "o", "-"),
        "k9": (theme.b, "s", "-"),
        "trained": (theme.d, "^", "--"),
        "threshold": (theme.c, "D", "-"),
    }
    for name, rows in series_of(data).items():
        colour, marker, line = looks[name]
        best = front(rows)
        x, y = ([f(row) for row in best] for f in (_percent, _error))
        ax.plot(x, y, color=colour, marker=marker, linestyle=line, markersize=5, label=TITLES[name])
        behind = [row for row in rows if row not in best]
        x, y = ([f(row) for row in behind] for f in (_percent, _error))
        ax.plot(x, y, color=colour, marker=marker, linestyle="", markersize=5, fillstyle="none")
    ax.set_xscale("log")
    ticks = [0.5, 1, 2, 5, 10, 20]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xlabel("non-zero weights, %")
    ax.set_ylabel("validation error, %")
    ax.legend()
    return figure


def _percent(row: dict[str, Any]) -> float:
    return 100 * row["density"]


def _error(row: dict[str, Any]) -> float:
    return row["val_error"]


def error_at(rows: list[dict[str, Any]], density: float) -> float | None:
    """The error of a front at a density, on straight lines between its runs."""
    best = front(rows)
    for sparse, dense in pairwise(best):
        if sparse["density"] <= density <= dense["density"]:
            share = (density - sparse["density"]) / (dense["density"] - sparse["density"])
            return sparse["val_error"] + share * (dense["val_error"] - sparse["val_error"])
    return None


def found(data: dict[str, Any]) -> str:
    """The ends of each front."""
    parts = []
    for name, rows in series_of(data).items():
        if not rows:
            continue
        best = front(rows)
        first, last = best[0], best[-1]
        parts.append(
            f"{TITLES[name]}: {last['val_error']:.2f} % with {_percent(last):.1f} % non-zero to "
            f"{first['val_error']:.2f} % with {_percent(first):.2f} %"
        )
    return "Ends of the fronts, in validation error: " + "; ".join(parts) + "."
