"""What a step costs over a run, with the whole network and without its dead units."""

from typing import Any

from matplotlib.figure import Figure

from experiments.figures.style import Theme, canvas
from experiments.studies.while_training import CASES

NUMBER, STUDY = None, "while_training"  # not a figure of the paper
ALT = "Time of a step over a run, for the whole network and with shrinking"
TITLES = {"lenet-300-100": "LeNet-300-100", "lenet-5-caffe": "LeNet-5"}


def draw(data: dict[str, Any], theme: Theme) -> Figure:
    """A panel for each network, with its phases."""
    figure, axes = canvas(1, len(CASES), 2.9)
    for ax, network in zip(axes, CASES, strict=True):
        run = data[network]
        for name, colour, label in (
            ("whole", theme.d, "the whole network"),
            ("shrunk", theme.a, "training.shrink"),
        ):
            ms = run["ms"][name]
            steps = [run["steps"] * (k + 0.5) / len(ms) for k in range(len(ms))]
            ax.plot(steps, ms, color=colour, label=label)
        most = max(max(ms) for ms in run["ms"].values())
        for number, phase in enumerate(run["phases"]):
            if phase["step"]:
                ax.axvline(phase["step"], color=theme.quiet, linewidth=0.7, linestyle="--")
            ends = [*(p["step"] for p in run["phases"]), run["steps"]]
            if ends[number + 1] - ends[number] > run["steps"] / 6:
                middle = (ends[number] + ends[number + 1]) / 2
                ax.text(
                    middle, 1.12 * most, phase["phase"], ha="center", color=theme.quiet, fontsize=8
                )
        ax.set_ylim(0, 1.25 * most)
        ax.set_xlim(0, run["steps"])
        ax.set_xticks([run["steps"] * k / 4 for k in range(5)])
        ax.set_title(f"{TITLES[network]}: ms a step")
        ax.set_xlabel("steps")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes[0].legend(loc="lower left")
    return figure


def found(data: dict[str, Any]) -> str:
    """The last tenth of each run."""
    parts = []
    for network, run in data.items():
        whole, shrunk = (sum(run["ms"][n][-6:]) for n in ("whole", "shrunk"))
        parts.append(f"{TITLES[network]}: {whole / shrunk:.1f} times faster at the end")
    return "; ".join(parts) + "."
