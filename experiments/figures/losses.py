"""Figure 2: losses and errors over time, with APT and without, from the same start."""

from math import sqrt
from typing import Any

from matplotlib.figure import Figure

from experiments.figures.style import Theme, canvas

NUMBER, STUDY = 2, "behaviour"
ALT = "Losses and errors over 40,000 steps, with and without APT; hard tying begins half way"


def draw(data: dict[str, Any], theme: Theme) -> Figure:
    """Losses at the left, errors at the right."""
    figure, (left, right) = canvas(1, 2, 2.9)
    strength = data["settings"]["apt"]["tying_strength"]
    apt, dense = (data["runs"][name]["rows"] for name in ("apt", "dense"))
    for rows, colour, name in ((dense, theme.d, "without APT"), (apt, theme.a, "with APT")):
        steps = [row["step"] for row in rows if row["event"] == "step"]
        losses = [max(row["loss"], 1e-5) for row in rows if row["event"] == "step"]
        left.plot(steps, losses, color=colour, label=f"cross-entropy, {name}", linewidth=1)
        steps = [row["step"] for row in rows]
        right.plot(steps, [r["val_error"] for r in rows], color=colour, label=name, linewidth=1)
        errors = [row["train_error"] for row in rows]
        right.plot(steps, errors, color=colour, linewidth=0.7, linestyle=":")
    soft = [row for row in apt if row["event"] == "step" and row["step"] <= _switch(data)]
    penalties = [max(1e-5, strength * row["penalty"]) for row in soft]
    left.plot(
        [r["step"] for r in soft], penalties, color=theme.b, label="k-means penalty, weighted"
    )
    left.set_yscale("log")
    left.set_title("loss on training batches")
    right.set_title("error %: validation, and training (dotted)")
    right.set_ylim(0, 5)
    for ax in (left, right):
        ax.axvline(_switch(data), color=theme.quiet, linewidth=0.7, linestyle="--")
        ax.set_xlabel("steps")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        ax.set_xticks([0, 10_000, 20_000, 30_000, 40_000])
    left.legend(loc="upper right")
    right.legend(loc="center right")
    right.text(_switch(data) + 500, 4.75, "hard tying", color=theme.quiet, fontsize=8.5, va="top")
    return figure


def _switch(data: dict[str, Any]) -> int:
    rows = data["runs"]["apt"]["rows"]
    return next(int(row["step"]) for row in rows if row["event"] == "entered")


def _standard_error(error: float, images: int = 6_000) -> float:
    """Of an error in percent, over the validation images."""
    return sqrt(error * (100 - error) / images)


def found(data: dict[str, Any]) -> str:
    """The errors around hardening, beside those without APT."""
    apt, dense = (data["runs"][name]["errors"] for name in ("apt", "dense"))
    return (
        f"Validation errors: {apt['soft']:.2f} % after soft tying ({dense['soft']:.2f} % without "
        f"APT at that step), {apt['hardened']:.2f} % right after hardening, {apt['hard']:.2f} % at "
        f"the end of hard tying ({dense['hard']:.2f} % without). One seed; the standard error of "
        f"each is {_standard_error(apt['hard']):.2f}."
    )
