"""Other ways to fit the clusters: the exact optimum of k-means, and k-medians.

Takes     LeNet-300-100, K = 8, 20,000 soft and 20,000 hard steps of SGD, one seed; the strength of
          the pull to medians, whose gradient has another scale, is searched on validation.
Gives     validation errors around hardening for each way.
Paper     section 3.3 (no significant difference between dynamic programming and the fast refit) and
          section 5 (k-medians, left for later).
"""

from typing import Any

import reefknot
from experiments.studies.training import SGD, lenet_300_100, scaled, trained
from reefknot.lab.runs.parts import Parts
from reefknot.lab.runs.training import Progress

MINUTES = 1.5
REFIT_EVERY = 1_000
MEDIANS = (1e-6, 1e-5, 1e-4)
MEANS = {"num_clusters": 8, "tying_strength": 1e-3, "refit_every": REFIT_EVERY}


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """Fast and exact k-means, and k-medians of some strengths."""
    fits = {"fast": {"exact": False, **MEANS}, "exact": {"exact": True, **MEANS}}
    medians = {"exact": False, **MEANS, "distance": "l1"}
    return fits | {f"medians-{s:g}": medians | {"tying_strength": s} for s in MEDIANS}


def measure(exact: bool, **settings: Any) -> dict[str, Any]:
    """One run; with `exact` each refit is done again by dynamic programming."""

    def watch(progress: Progress, found: Any) -> None:
        due = progress.step % scaled(REFIT_EVERY) == 0 and not found.parts.method.phase.is_last
        if exact and progress.event == "step" and due:
            refit_exactly(found.parts)

    def prepare(parts: Parts) -> None:
        if exact:  # also the refit at hardening
            parts.method.phases[-1].prepare = lambda: refit_exactly(parts)

    table = lenet_300_100("apt", settings, 20_000, 20_000, **SGD)
    found = trained(table, watch=watch, prepare=prepare)
    return {"exact": exact, "settings": settings, **found.errors}


def refit_exactly(parts: Parts) -> None:
    """Give the one group of a method the clusters that minimise the k-means penalty."""
    (group,) = parts.method.tying.groups
    best = reefknot.kmeans1d(group.members.weights(), group.num_clusters, exact=True)
    group.set_centers(group.members.rounded(best.centers))
    group.assign(group.centers, best.assignment)


def data(done: dict[str, Any]) -> dict[str, Any]:
    """The runs as they are."""
    return done
