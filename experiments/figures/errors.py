"""Figure 6: the error after tying, over K and over the steps between two runs of k-means."""

import json
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure

from experiments.figures.style import Theme, canvas
from experiments.studies import num_clusters, refits
from experiments.studies.driver import record_of

NUMBER, STUDY, STUDIES = 6, "num_clusters", ("num_clusters", "refits")
ALT = "Errors after soft and hard tying for K from 2 to 32, and for k-means more and more rarely"


def read() -> dict[str, Any] | None:
    """The data of both studies, or of the one that has been run."""
    paths = {name: record_of(study) for name, study in (("k", num_clusters), ("t", refits))}
    there = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    return there or None


def draw(data: dict[str, Any], theme: Theme) -> Figure:
    """K at the left, t at the right; only one of them if the other has no data."""
    figure, axes = canvas(1, len(data), 3.0, squeeze=False)
    for ax, half in zip(axes[0], data, strict=True):
        (_draw_k if half == "k" else _draw_t)(ax, data[half], theme)
        ax.set_yscale("log")
        ticks = [1, 2, 5, 10, 20, 50, 90]
        ax.set_yticks(ticks, [str(tick) for tick in ticks], minor=False)
        ax.set_yticks([], minor=True)
    return figure


def _draw_k(ax: Any, data: dict[str, Any], theme: Theme) -> None:
    table = by_k(data["runs"])
    for when, colour, words in (
        ("test_soft", theme.d, "after soft tying"),
        ("test_hard", theme.a, "after hard tying"),
    ):
        means = [fmean(table[k][when]) for k in table]
        bars = [stdev(table[k][when]) if len(table[k][when]) > 1 else 0.0 for k in table]
        places = range(len(table))
        ax.errorbar(
            places, means, bars, color=colour, marker="o", markersize=4, capsize=3, label=words
        )
    ax.set_xticks(range(len(table)), [str(k) for k in table])
    ax.set_xlabel("K")
    ax.set_title("test error %, mean and standard deviation")
    ax.legend()


def by_k(rows: list[dict[str, Any]]) -> dict[int, dict[str, list[float]]]:
    """The test errors of the seeds, for each K."""
    table: dict[int, dict[str, list[float]]] = {}
    for row in rows:
        if row["test"] and row["hard"] is not None:
            own = table.setdefault(row["num_clusters"], {"test_soft": [], "test_hard": []})
            for when in own:
                own[when].append(row[when])
    return dict(sorted(table.items()))


def _draw_t(ax: Any, data: dict[str, Any], theme: Theme) -> None:
    table = by_t(data["runs"])
    intervals = sorted({t for errors in table.values() for t in errors})
    colours = (theme.b, theme.a, theme.c, theme.d, theme.quiet)
    looks = zip(colours, ("s", "o", "^", "D", "v"), strict=True)
    for (k, errors), (colour, marker) in zip(table.items(), looks, strict=False):
        places = [intervals.index(t) for t in errors]
        ax.plot(
            places,
            list(errors.values()),
            color=colour,
            marker=marker,
            markersize=4,
            label=f"K = {k}",
        )
    ax.set_xticks(range(len(intervals)), [_short(t) for t in intervals])
    ax.set_xlabel("steps between two runs of k-means; 20k: none")
    ax.set_title("validation error % after hard tying")
    ax.legend()


def by_t(rows: list[dict[str, Any]]) -> dict[int, dict[int, float]]:
    """For each K and each interval the error with the best tying strength."""
    table: dict[int, dict[int, float]] = {}
    for row in rows:
        if row["hard"] is not None:
            own = table.setdefault(row["num_clusters"], {})
            own[row["refit_every"]] = min(row["hard"], own.get(row["refit_every"], 100.0))
    return {k: dict(sorted(own.items())) for k, own in sorted(table.items())}


def _short(steps: int) -> str:
    return f"{steps // 1000}k" if steps >= 1000 else str(steps)


def found(data: dict[str, Any]) -> str:
    """The errors in words."""
    parts = []
    if "k" in data:
        told = [
            f"K = {k}: {fmean(e['test_soft']):.2f} and {fmean(e['test_hard']):.2f} %"
            for k, e in by_k(data["k"]["runs"]).items()
        ]
        parts.append("Test errors after soft and after hard tying, means: " + "; ".join(told) + ".")
    if "t" in data:
        told = [
            f"K = {k}: " + ", ".join(f"{e:.2f} (t = {_short(t)})" for t, e in errors.items())
            for k, errors in by_t(data["t"]["runs"]).items()
        ]
        parts.append("Validation errors over t: " + "; ".join(told) + ".")
    missing = {"k": "num_clusters", "t": "refits"}
    parts += [f"(Open: the study `{missing[half]}`.)" for half in missing if half not in data]
    return " ".join(parts)
