"""Figure 3: test errors of three networks, each with four regularisers."""

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


def errors_of(data: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The test errors of each network, by regulariser."""
    return {
        network: {
            r["title"]: r["test_error"] for r in data if r["network"] == network and r["test"]
        }
        for network in NETWORKS
    }


def draw(data: list[dict[str, Any]], theme: Theme) -> Figure:
    """A line of points for each network."""
    figure, ax = canvas(1, 1, 3.0)
    table = errors_of(data)
    titles = list(max(table.values(), key=len))
    looks = ((theme.d, "s"), (theme.a, "o"), (theme.b, "D"))
    for (network, errors), (colour, marker) in zip(table.items(), looks, strict=True):
        shown = [title for title in titles if title in errors]
        ax.plot(
            [titles.index(title) for title in shown],
            [errors[title] for title in shown],
            color=colour,
            marker=marker,
            linewidth=0.8,
            label=NETWORKS[network],
        )
    ax.set_xticks(range(len(titles)), [_words(title) for title in titles])
    ax.set_ylim(bottom=0)
    ax.set_ylabel("test error, %")
    ax.legend()
    return figure


def _words(title: str) -> str:
    kind, _, k = title.partition("-")
    return {"none": "none", "l1": "L1", "l2": "L2"}.get(kind, f"APT\nK = {k}")


def found(data: list[dict[str, Any]]) -> str:
    """The errors in words."""
    told = []
    for network, errors in errors_of(data).items():
        listed = ", ".join(
            f"{_words(title)} {error:.2f}".replace("\n", " ") for title, error in errors.items()
        )
        told.append(f"{NETWORKS[network]}: {listed}")
    return f"Test errors in percent. {'; '.join(told)}."
