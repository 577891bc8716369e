"""Figure 5: the centers over time, and how many weights change their cluster."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.style import Theme, canvas

NUMBER, STUDY = 5, "behaviour"
ALT = "Cluster centers over 40,000 steps, and the share of weights that change their cluster"


def draw(data: dict[str, Any], theme: Theme) -> Figure:
    """Centers with one standard deviation, beside a mixture's; shares at each run of k-means."""
    is_beside = "mixture" in data["runs"]
    figure, axes = canvas(1, 3, 2.9) if is_beside else canvas(1, 2, 2.9, width_ratios=(3, 2))
    left, right = axes[0], axes[-1]
    rows = data["runs"]["apt"]["rows"]
    rows = [row for row in rows if row["event"] != "step" or row["step"] % 400 == 0]
    _draw_centers(left, rows, theme)
    if is_beside:
        _draw_centers(axes[1], data["runs"]["mixture"]["rows"], theme)
        axes[1].set_title("a mixture of Gaussians")
        axes[1].set_ylim(left.get_ylim())
    switch = next(row["step"] for row in rows if row["event"] == "entered")
    left.axvline(switch, color=theme.quiet, linewidth=0.7, linestyle="--")
    left.set_title("centers, ± one standard deviation")
    left.set_ylabel("weight")
    when, shares = changes(data)
    right.plot(when, [100 * share for share in shares], color=theme.a, marker="o", markersize=3)
    right.set_yscale("symlog", linthresh=1e-3)  # there may be none
    ticks = [0, 1e-3, 1e-2, 0.1, 1, 10, 100]
    right.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    right.set_ylim(0, 100)
    right.set_title("weights that changed cluster, %")
    for ax in axes:
        ax.set_xlabel("steps")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for ax in axes[:-1]:
        ax.set_xticks([0, 20_000, 40_000] if is_beside else range(0, 50_000, 10_000))
    right.set_xticks([0, 10_000, 20_000] if is_beside else range(0, 25_000, 5_000))
    return figure


def _draw_centers(ax: Any, rows: list[dict[str, Any]], theme: Theme) -> None:
    steps = np.array([row["step"] for row in rows])
    centers = np.array([row["centers"] for row in rows])
    spreads = np.array([row["spreads"] for row in rows])
    for k in range(centers.shape[1]):
        colour = theme.b if centers[-1, k] > 0 else theme.a
        low, high = centers[:, k] - spreads[:, k], centers[:, k] + spreads[:, k]
        ax.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(steps, centers[:, k], color=colour, linewidth=1)


def changes(data: dict[str, Any]) -> tuple[list[int], list[float]]:
    """At which steps k-means ran in soft tying, and the share of assignments that it changed."""
    rows = [row for row in data["runs"]["apt"]["rows"] if row["event"] == "step"]
    every = data["settings"]["apt"]["refit_every"]
    found = [(r["step"], r["changed"]) for r in rows if r["step"] % every == 0]
    switch = next(r["step"] for r in data["runs"]["apt"]["rows"] if r["event"] == "entered")
    found = [(step, share) for step, share in found if share is not None and step <= switch]
    return [step for step, _ in found], [share for _, share in found]


def found(data: dict[str, Any]) -> str:
    """The first and last changes, and how the extremes move in hard tying."""
    when, shares = changes(data)
    rows = data["runs"]["apt"]["rows"]
    entered = next(row for row in rows if row["event"] == "entered")["centers"]
    last = rows[-1]["centers"]
    mixture = data["runs"].get("mixture")
    beside = (
        ""
        if mixture is None
        else f" Of the {len(mixture['rows'][-1]['centers'])} components of the mixture "
        f"{mixture['values_left']} values are left."
    )
    return (
        f"k-means changes {100 * shares[0]:.1f} % of the assignments after {when[0]:,} steps and "
        f"{100 * shares[-1]:.2f} % after {when[-1]:,}. The outermost centers go from "
        f"{entered[0]:.2f} and {entered[-1]:.2f} to {min(last):.2f} and {max(last):.2f} in hard "
        f"tying.{beside}"
    )
