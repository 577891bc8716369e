"""The byte curve: test error against the bytes of the file, beside what others published."""

from typing import Any, NamedTuple

from matplotlib.figure import Figure

from experiments.figures.style import Theme, canvas
from experiments.tables import BUDGETS, CURVE, recipes

NUMBER, STUDY = None, None  # not a figure of the paper
ALT = "Test error on MNIST against bytes on disk, for LeNet-5 and LeNet-300-100"
TITLES = {"lenet-5-caffe": "LeNet-5", "lenet-300-100": "LeNet-300-100"}
KIND = {"lenet-5-caffe": "convolutional", "lenet-300-100": "LeNet-300-100"}  # BitNetMCU is its own


class Published(NamedTuple):
    """A published result: bytes, with positions counted, and error in percent on MNIST."""

    name: str
    file_bytes: int
    error: float
    side: str = "above"  # where its name is


# Sizes are 4·N over the rate where only a rate was published.
OTHERS = {
    "lenet-5-caffe": [
        Published("BitNetMCU", 1_100, 5.78),
        Published("", 3_200, 1.08),
        Published("", 5_400, 0.94),
        Published("", 7_300, 0.72),
        Published("BitNetMCU", 9_300, 0.56, "below"),
        Published("", 11_000, 0.45),
        Published("MIRACLE", 1_520, 0.96),
        Published("MIRACLE", 3_030, 0.69, "below"),
        Published("Bayesian Compression", 2_240, 1.0, "right"),
        Published("sparse APT, the paper", 4_984, 1.0, "below"),
    ],
    "lenet-300-100": [
        Published("sparse APT, the paper", 8_397, 1.9),
        Published("Soft Weight Sharing", 16_700, 1.94, "below left"),
    ],
}
PLACES = {  # offset in points, and alignment
    "above": ((0, 5), "center"),
    "below": ((0, -12), "center"),
    "below left": ((4, -12), "right"),
    "right": ((5, -3), "left"),
}


def read() -> dict[str, Any] | None:
    """For each network the curve, one seed a size, and the rows of three seeds."""
    found: dict[str, Any] = {}
    for (network, recipe), runs in recipes().items():
        sizes = [run.record["file_bytes"] for run in runs]
        errors = [run.record["test_error"] for run in runs]
        point = sum(sizes) / len(runs), sum(errors) / len(runs)
        place = found.setdefault(network, {"curve": [], "rows": []})
        if recipe.startswith(CURVE):
            place["curve"].append(point)
        elif (network, recipe) in BUDGETS and BUDGETS[network, recipe] is not None:
            place["rows"].append(point)
    curves = {network: found[network] for network in TITLES if found.get(network, {}).get("curve")}
    return {n: {k: sorted(v) for k, v in c.items()} for n, c in curves.items()} or None


def draw(data: dict[str, Any], theme: Theme) -> Figure:
    """Both axes are logarithmic; a curve for each network, dots for the rows of three seeds."""
    figure, ax = canvas(1, 1, 4.3)
    for (network, title), colour, marker in zip(
        TITLES.items(), (theme.a, theme.b), "os", strict=True
    ):
        ours = data.get(network, {"curve": [], "rows": []})
        ax.plot(*_columns(ours["curve"]), color=colour, marker=marker, markersize=4, label=title)
        ax.plot(
            *_columns(ours["rows"]), color=colour, marker=marker, markersize=8, linestyle="",
            fillstyle="none", label=f"{title}, means of three seeds",
        )  # fmt: skip
        others = OTHERS[network]
        ax.plot(
            [p.file_bytes for p in others], [p.error for p in others], color=colour, alpha=0.75,
            marker="x", markersize=5, linestyle="", label=f"{KIND[network]}, published by others",
        )  # fmt: skip
        for p in others:
            offset, align = PLACES[p.side]
            ax.annotate(
                p.name, (p.file_bytes, p.error), offset, ha=align, textcoords="offset points",
                fontsize=7.5, color=theme.quiet,
            )  # fmt: skip
    ax.set_xscale("log", base=2)
    ticks = [256 << n for n in range(7)]
    ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    ax.set_yscale("log")
    levels = [0.5, 1, 2, 5, 10, 20]
    ax.set_yticks(levels, [f"{level:g}" for level in levels])
    ax.minorticks_off()
    ax.set_xlabel("bytes of the whole file")
    ax.set_ylabel("test error, %")
    ax.legend(loc="upper right")
    return figure


def found(data: dict[str, Any]) -> str:
    """The ends of each curve."""
    return "; ".join(
        f"{TITLES[network]}: {curve['curve'][0][1]:.2f} % in {curve['curve'][0][0]:,.0f} bytes to "
        f"{curve['curve'][-1][1]:.2f} % in {curve['curve'][-1][0]:,.0f}"
        for network, curve in data.items()
    )


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [size for size, _ in points], [error for _, error in points]
