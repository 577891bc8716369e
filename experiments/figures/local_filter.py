"""Figure 7: one filter of the locally connected network, at each of its 24 x 24 positions."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.style import Theme, canvas, framed, show, signed, tiles

NUMBER, STUDY = 7, "generalisation"
ALT = (
    "A filter of the first locally connected layer with four values, 5 x 5 weights at 576 positions"
)


def filter_of(data: list[dict[str, Any]]) -> tuple[dict[str, Any], np.ndarray]:
    """The run that keeps its filter, and (576, 5, 5) weights."""
    row = next(row for row in data if "filter" in row)
    return row, np.array(row["filter"]).reshape(-1, 5, 5)


def draw(data: list[dict[str, Any]], theme: Theme) -> Figure:
    """The grid of positions; colour is sign, strength is magnitude."""
    figure, ax = canvas(1, 1, 4.4)
    _, weights = filter_of(data)
    sheet = tiles(weights / np.abs(weights).max(), 24)
    show(ax, signed(np.nan_to_num(sheet), theme))
    framed(ax, theme)
    return figure


def found(data: list[dict[str, Any]]) -> str:
    """The values, and where they are large."""
    row, weights = filter_of(data)
    values = np.unique(weights)
    strength = np.abs(weights).mean((1, 2)).reshape(24, 24)
    middle = strength[6:18, 6:18].mean()
    border = np.concatenate([strength[:3].ravel(), strength[-3:].ravel()]).mean()
    told = ", ".join(f"{value:.3f}" for value in values)
    return (
        f"Test error {row['test_error']:.2f} %. The filter has the values {told}. Its mean "
        f"magnitude is {middle:.3f} at the 12 x 12 positions in the middle and {border:.3f} in the "
        "three rows at the top and at the bottom."
    )
