"""Figure 1: where each weight began and where it ended, without tying and with it."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.style import Theme, canvas, tinted

NUMBER, STUDY = 1, "behaviour"
ALT = "Joint histograms of weights before and after training, without tying and with soft tying"


def draw(data: dict[str, Any], theme: Theme) -> Figure:
    """Two joint histograms on one scale; counts are logarithmic."""
    figure, axes = canvas(1, 2, 3.5, sharey=True)
    titles = {"dense": "without tying", "apt": "soft tying, K = 8"}
    span = max(abs(limit) for name in titles for limit in data["runs"][name]["end_range"])
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        run = data["runs"][name]
        counts = np.array(run["histogram"]).T[1:-1]  # the outermost bins hold all that is beyond
        shares = np.log1p(counts) / np.log1p(counts.max())
        colour = theme.a if name == "apt" else theme.d
        ax.imshow(
            tinted(shares, colour),
            origin="lower",
            aspect="auto",
            extent=(*run["start_range"], *_inside(run)),
        )
        ax.set_ylim(-span, span)
        ax.set_title(title)
        ax.set_xlabel("weight at the start")
        ax.grid(False)
    for center in _centers(data):
        axes[1].axhline(center, color=theme.b, linewidth=0.6, alpha=0.7)
    axes[0].set_ylabel("weight after 20,000 steps")
    return figure


def _inside(run: dict[str, Any]) -> tuple[float, float]:
    """The range of the end weights without the outermost bins."""
    low, high = run["end_range"]
    width = (high - low) / len(run["histogram"])
    return low + width, high - width


def _centers(data: dict[str, Any]) -> list[float]:
    rows = data["runs"]["apt"]["rows"]
    return next(row for row in rows if row["event"] == "leaving")["centers"]


def found(data: dict[str, Any]) -> str:
    """How near the weights are to their centers."""
    row = next(r for r in data["runs"]["apt"]["rows"] if r["event"] == "leaving")
    centers = np.array(row["centers"])
    widest, gap = max(row["spreads"]), float(np.diff(centers).mean())
    return (
        "At the end of soft tying the eight centers (lines at the right) lie from "
        f"{centers[0]:.2f} to {centers[-1]:.2f}, {gap:.3f} apart in the mean. The standard "
        f"deviation inside a cluster is at most {widest:.3f}."
    )
