"""Figure 8: the first convolution of LeNet-5, trained plainly and by sparse APT, from one start."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import reefknot
from experiments.figures.style import Theme, canvas, outlined, show, signed, tiles
from experiments.studies.training import ROW, parent_of
from reefknot.lab.report import read_record

NUMBER, STUDY = 8, None
ALT = "The 20 filters of LeNet-5's first convolution, trained plainly and by sparse APT"
RECIPES = {"dense": "without compression", ROW: "sparse APT, K = 17"}


def read() -> dict[str, Any]:
    """The filters of both records, seed 0."""
    found = {}
    for recipe in RECIPES:
        file = parent_of("lenet-5-caffe", recipe)
        record = read_record(Path(file).parent)
        filters = reefknot.load(file, names=["conv1.weight"])["conv1.weight"].numpy()[:, 0]
        found[recipe] = {"filters": filters, "record": record}
    return found


def draw(data: dict[str, Any], theme: Theme) -> Figure:
    """Two rows of ten for each."""
    figure, axes = canvas(2, 1, 3.5)
    for ax, (recipe, words) in zip(axes, RECIPES.items(), strict=True):
        filters = data[recipe]["filters"]
        sheet = tiles(filters / np.abs(filters).max(), 10)
        show(ax, signed(np.nan_to_num(sheet), theme))
        outlined(ax, len(filters), 10, 5, theme)
        record = data[recipe]["record"]
        ax.set_title(
            f"{words}: test error {record['test_error']:.2f} %, "
            f"{_percent(record['density'])} of all weights left"
        )
    return figure


def _percent(share: float) -> str:
    return "100 %" if share == 1 else f"{100 * share:.2g} %"


def found(data: dict[str, Any]) -> str:
    """How many filters are empty."""
    filters = data[ROW]["filters"]
    empty = int((~filters.any((1, 2))).sum())
    record = data[ROW]["record"]
    left = int(np.count_nonzero(filters))
    return (
        f"{empty} of 20 filters are empty, and {left} of 500 weights are left in the "
        f"others. The network has a test error of {record['test_error']:.2f} % and "
        f"{100 * (1 - record['density']):.1f} % zeros."
    )
