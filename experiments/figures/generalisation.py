"""Figure 3: test errors of three networks, each with four regularisers."""

from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from experiments.figures.style import Theme, canvas

NUMBER, STUDY = 3, "generalisation"
ALT = "Test errors of a convolutional, a locally connected and a fully connected network"
NETWORKS = {
    "lenet-5-full": "fully connected",
    "lenet-5-local": "locally connected",
    "lenet-5-caffe": "convolutional (LeNet-5-Caffe)",
}


Errors = dict[str, dict[str, list[float]]]


def errors_of(data: dict[str, Any]) -> Errors:
    """The test errors of each network's seeds, by regulariser; K grows."""
    table: Errors = {network: {} for network in NETWORKS}
    for row in sorted(data["runs"], key=lambda row: _place(row["title"])):
        if row["test"] and row["test_error"] is not None:
            table[row["network"]].setdefault(row["title"], []).append(row["test_error"])
    return table


def _place(title: str) -> tuple[int, int]:
    kind, _, k = title.partition("-")
    return ("none", "l1", "l2", "apt").index(kind), int(k or 0)


def draw(data: dict[str, Any], theme: Theme) -> Figure:
    """A line of means for each network, and a dot for each seed."""
    figure, ax = canvas(1, 1, 3.0)
    table = errors_of(data)
    titles = sorted({title for errors in table.values() for title in errors}, key=_place)
    looks = ((theme.d, "s"), (theme.a, "o"), (theme.b, "D"))
    for (network, errors), (colour, marker) in zip(table.items(), looks, strict=True):
        shown = [title for title in titles if title in errors]
        ax.plot(
            [titles.index(title) for title in shown],
            [fmean(errors[title]) for title in shown],
            color=colour,
            marker=marker,
            linewidth=0.8,
            label=NETWORKS[network],
        )
        dots = [(titles.index(title), error) for title in shown for error in errors[title]]
        if len(dots) > len(shown):
            places, seeds = zip(*dots, strict=True)
            ax.plot(places, seeds, color=colour, marker=".", markersize=3, linestyle="")
    ax.set_xticks(range(len(titles)), [_words(title) for title in titles])
    ax.set_ylim(bottom=0)
    ax.set_ylabel("test error, %")
    ax.legend()
    return figure


def _words(title: str) -> str:
    kind, _, k = title.partition("-")
    return {"none": "none", "l1": "L1", "l2": "L2"}.get(kind, f"APT\nK = {int(k or 0):,}")


def found(data: dict[str, Any]) -> str:
    """The errors in words."""
    told = []
    for network, errors in errors_of(data).items():
        listed = ", ".join(
            f"{_words(title)} {fmean(seeds):.2f}".replace("\n", " ")
            for title, seeds in errors.items()
        )
        told.append(f"{NETWORKS[network]}, {_seeds(errors)}: {listed}")
    return f"Test errors in percent, means. {'; '.join(told)}."


def _seeds(errors: dict[str, list[float]]) -> str:
    count = max(map(len, errors.values()), default=0)
    return "one seed" if count == 1 else f"{count} seeds"
