"""Figure 7: one filter of the locally connected network, at each of its 24 x 24 positions."""

import json
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.style import Theme, canvas, framed, show, signed, tiles
from experiments.studies import generalisation
from experiments.studies.driver import record_of

NUMBER, STUDY = 7, "generalisation"
ALT = (
    "A filter of the first locally connected layer with four values, 5 x 5 weights at 576 positions"
)


def read() -> dict[str, Any] | None:
    """The data of the study, if the run that keeps its filter is among them."""
    path = record_of(generalisation)
    data = json.loads(path.read_text()) if path.exists() else {"runs": []}
    return data if any("filter" in row for row in data["runs"]) else None


def filter_of(data: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    """The run that keeps its filter, and (576, 5, 5) weights."""
    row = next(row for row in data["runs"] if "filter" in row)
    return row, np.array(row["filter"]).reshape(-1, 5, 5)


def draw(data: dict[str, Any], theme: Theme) -> Figure:
    """The grid of positions; colour is sign, strength is magnitude."""
    figure, ax = canvas(1, 1, 4.4)
    _, weights = filter_of(data)
    sheet = tiles(weights / np.abs(weights).max(), 24)
    show(ax, signed(np.nan_to_num(sheet), theme))
    framed(ax, theme)
    return figure


def strengths(weights: np.ndarray) -> tuple[float, float]:
    """The mean magnitude at the 12 x 12 positions in the middle, and in the six outer rows."""
    strength = np.abs(weights).mean((1, 2)).reshape(24, 24)
    border = np.concatenate([strength[:3].ravel(), strength[-3:].ravel()])
    return float(strength[6:18, 6:18].mean()), float(border.mean())


def found(data: dict[str, Any]) -> str:
    """The values, and where they are large."""
    row, weights = filter_of(data)
    values = np.unique(weights)
    middle, border = strengths(weights)
    told = ", ".join(f"{value:.3f}" for value in values)
    return (
        f"Test error {row['test_error']:.2f} %. The filter has the values {told}. Its mean "
        f"magnitude is {middle:.3f} at the 12 x 12 positions in the middle and {border:.3f} in the "
        "three rows at the top and at the bottom."
    )
