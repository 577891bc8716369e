"""The paper's claims without a figure, checked in sentences from the data of a study.

Takes     the data files of the studies that no figure is made from, and of `pareto`.
Gives     a sentence or two for each.
"""

import json
from typing import Any

from experiments.figures.pareto import error_at, front, series_of
from experiments.studies import STUDIES
from experiments.studies.driver import record_of


def variants(data: dict[str, Any]) -> str:
    """Exact k-means and k-medians beside the fast refit."""

    def errors(row: dict[str, Any]) -> str:
        return f"{row['soft']:.2f}, {row['hardened']:.2f} and {row['hard']:.2f} %"

    medians = [row for name, row in data.items() if name.startswith("medians")]
    best = min(medians, key=lambda row: row["hard"])
    return (
        "LeNet-300-100, K = 8, one seed, validation errors after soft tying, right after hardening "
        f"and at the end. Fast refit: {errors(data['fast'])}. Exact dynamic programming at every "
        f'refit: {errors(data["exact"])}. k-medians (`distance="l1"`, tying strength '
        f"{best['settings']['tying_strength']:g}, the best of {len(medians)}): {errors(best)}."
    )


def autograd(data: dict[str, Any]) -> str:
    """How far apart the trajectories are."""
    away = data["difference_assigned"]
    same = f"no weight differs by more than {away:.1e}" if away else "no weight differs in any bit"
    return (
        f"After {data['steps']} steps of SGD in float64, with the penalty differentiated over the "
        f"clusters that k-means gave, {same} from those that our pull gives; the farthest has "
        f"moved by {data['largest_move']:.2f}. With the minimum over all centers instead, weights "
        "at the border of two clusters may be pulled to the other one, since our k-means works on "
        f"bins: then the largest difference is {data['difference_nearest']:.1e}."
    )


def pareto(data: dict[str, Any]) -> str:
    """A trained start, and L1 with a threshold, beside sparse APT from a random start."""
    series = series_of(data)
    own = {row["l1_strength"]: row for row in series["k17"]}
    starts = [
        f"{row['val_error']:.2f} % with {100 * row['density']:.2f} % non-zero (random start: "
        f"{own[row['l1_strength']]['val_error']:.2f} % with "
        f"{100 * own[row['l1_strength']]['density']:.2f} %)"
        for row in series["trained"]
    ]
    beside = []
    for row in front(series["threshold"]):
        error = error_at(series["k17"], row["density"])
        if error is not None:
            beside.append(
                f"at {100 * row['density']:.2f} % non-zero {row['val_error']:.2f} %, where the "
                f"front of sparse APT has {error:.2f} %"
            )
    told = "; ".join(beside) or "none of its runs lies within the densities of sparse APT's front"
    after = (
        "with training of what is left and K = 17"
        if data["settings"]["retrained"]
        else "not retrained and not tied"
    )
    return (
        f"A trained start at the same L1 strengths: {'; '.join(starts)}. L1 and then a threshold, "
        f"{after}: {told}."
    )


SENTENCES = {"pareto": pareto, "variants": variants, "autograd": autograd}


def sentence(study: str) -> str:
    """What a study says, or that it is open."""
    path = record_of(STUDIES[study])
    if not path.exists():
        return f"*Open: the study `{study}` has not been run.*"
    return SENTENCES[study](json.loads(path.read_text()))
