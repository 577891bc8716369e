"""Figure 9: which input pixels LeNet-300-100 uses, under three penalties."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.style import Theme, canvas, framed, show, tinted

NUMBER, STUDY = 9, "first_layer"
ALT = "How many connections each of the 784 input pixels keeps under L2, L1 and sparse APT"
METHODS = {"l2": "L2", "l1": "L1", "sparse_apt": "sparse APT, K = 17"}


def draw(data: dict[str, Any], theme: Theme) -> Figure:
    """Connections of each pixel, as the share of the largest count of its map."""
    figure, axes = canvas(1, 3, 2.9)
    for ax, (name, words) in zip(axes, METHODS.items(), strict=True):
        counts = np.array(data["runs"][name]["connections"]).reshape(28, 28)
        shares = counts / counts.max()
        show(ax, tinted(np.where(counts, 0.12 + 0.88 * shares, 0), theme.a))
        framed(ax, theme)
        ax.set_title(
            f"{words}\n{data['runs'][name]['live_pixels']} live pixels, at most {counts.max()} each"
        )
    return figure


def found(data: dict[str, Any]) -> str:
    """Live and pruned pixels."""
    told = [
        f"{METHODS[name]}: {run['live_pixels']} live, {784 - run['live_pixels']} pruned "
        f"(test error {run['test_error']:.2f} %)"
        for name, run in data["runs"].items()
        if name in METHODS
    ]
    return "Of 784 pixels, " + "; ".join(told) + "."
