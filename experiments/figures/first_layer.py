"""Figure 10: the first layer of LeNet-300-100 as 300 small images, four methods, one start."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.style import Theme, canvas, framed, show, signed, tiles
from experiments.studies.first_layer import unpacked

NUMBER, STUDY = 10, "first_layer"
ALT = "The 300 x 784 weights of the first layer as small images, under L2, APT, L1 and sparse APT"
METHODS = {"l2": "L2", "apt": "APT, K = 8", "l1": "L1", "sparse_apt": "sparse APT, K = 17"}


def draw(data: dict[str, Any], theme: Theme) -> Figure:
    """Four sheets of 300 images, on the paper's scale from -0.3 to 0.3.

    The opacity of a pixel is the root of its weight's magnitude, so that small ones are seen.
    """
    figure, axes = canvas(4, 1, 11.0)
    for ax, (name, words) in zip(axes.flat, METHODS.items(), strict=True):
        images = unpacked(data["runs"][name]["layer"], (300, 28, 28))
        strengths = np.sign(images) * np.sqrt(np.abs(images))
        show(ax, signed(np.nan_to_num(tiles(strengths, 30)), theme))
        framed(ax, theme)
        ax.set_title(words)
    return figure


def found(data: dict[str, Any]) -> str:
    """Hidden units without any input, and errors."""
    told = [
        f"{words}: {300 - data['runs'][name]['live_units']} of 300 units have no input left "
        f"({100 * (1 - data['runs'][name]['live_units'] / 300):.1f} % row sparsity), test error "
        f"{data['runs'][name]['test_error']:.2f} %"
        for name, words in METHODS.items()
    ]
    return "; ".join(told) + "."
