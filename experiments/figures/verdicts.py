"""What becomes of each claim of the paper: a word, computed from data by the rules below.

Takes     the data of a figure or of a study.
Gives     for each claim its checks, each of which is a sentence that is true, false or not
          measured, and from them "holds", "holds in part" or "does not hold here".
Unaware   of pictures and of the page.

The first check of a claim is what it says above all: if that is false, the claim does not hold.
A difference is noticeable from twice the 0.1 points that the paper calls insignificant.
"""

from itertools import pairwise
from math import sqrt
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from experiments.figures import clusters, conv_filters, errors, generalisation, local_filter
from experiments.figures.pareto import error_at, front, series_of

NOTICEABLE = 0.2  # points of error
VALIDATION, INPUTS, UNITS = 6_000, 784, 300  # images; of LeNet-300-100's first layer


class Check(NamedTuple):
    """A sentence, and whether it is true; None where there are no data."""

    words: str
    holds: bool | None


def verdict(checks: list[Check]) -> str:
    """The word for a claim."""
    found = [check.holds for check in checks]
    if all(found):
        return "holds"
    if found[0] is False or not any(found):
        return "is open" if set(found) == {None} else "does not hold here"
    return "holds in part"


def told(checks: list[Check]) -> str:
    """The verdict and what it is made of."""
    parts = [f"**Verdict: {verdict(checks)}.**"]
    for value, name in ((True, "True"), (False, "Not true"), (None, "Not measured")):
        words = [check.words for check in checks if check.holds is value]
        if words:
            parts.append(f"{name}: {'; '.join(words)}.")
    return " ".join(parts)


def noise(first: float, second: float, images: int = VALIDATION) -> float:
    """Two standard errors of the difference of two errors in percent."""
    return 2 * sqrt(sum(error * (100 - error) for error in (first, second)) / images)


# -- section 2 --------------------------------------------------------------------------------


def variants(data: dict[str, Any]) -> list[Check]:
    """Exact k-means makes no significant difference."""
    fast, exact = data["fast"]["hard"], data["exact"]["hard"]
    words = "the errors with exact and with fast k-means are within two standard errors"
    return [Check(words, abs(fast - exact) <= noise(fast, exact))]


def autograd(data: dict[str, Any]) -> list[Check]:
    """Differentiating the k-means loss has comparable results."""
    least = data["largest_move"] / 100
    return [
        Check(
            "with either form of the loss no weight differs by more than a hundredth of the "
            "largest move",
            max(data["difference_assigned"], data["difference_nearest"]) <= least,
        )
    ]


# -- section 3 --------------------------------------------------------------------------------


def histogram(data: dict[str, Any]) -> list[Check]:
    """Figure 1: tying divides the weights into clusters."""
    runs = data["runs"]
    leaving = next(row for row in runs["apt"]["rows"] if row["event"] == "leaving")
    tied, free = (divided(runs[name], leaving["centers"]) for name in ("apt", "dense"))
    return [
        Check(
            "with tying there are fewer than half as many weights between any two neighbouring "
            "centers as at the rarer of them",
            all(tied),
        ),
        Check("without tying, that is so nowhere", not any(free)),
    ]


def divided(run: dict[str, Any], centers: list[float]) -> list[bool]:
    """Whether the histogram falls to less than a half between two neighbouring values."""
    counts = np.array(run["histogram"]).sum(0)
    low, high = run["end_range"]
    bins = ((np.array(centers) - low) / (high - low) * len(counts)).astype(int)
    bins = bins.clip(0, len(counts) - 1)
    return [
        bool(counts[a : b + 1].min() < min(counts[a], counts[b]) / 2) for a, b in pairwise(bins)
    ]


def losses(data: dict[str, Any]) -> list[Check]:
    """Figure 2: soft tying changes neither speed nor result; hardening costs and recovers."""
    apt, dense = data["runs"]["apt"], data["runs"]["dense"]
    own, other = apt["errors"], dense["errors"]
    steps = [_first_below(run["rows"], 2.5) for run in (apt, dense)]
    return [
        Check(
            "the errors after soft tying and without it are within two standard errors",
            abs(own["soft"] - other["soft"]) <= noise(own["soft"], other["soft"]),
        ),
        Check(
            "with soft tying the first error below 2.5 % takes at most 1.5 times as many steps",
            None not in steps and steps[0] <= 1.5 * steps[1],  # type: ignore[operator]
        ),
        Check("hardening costs accuracy", own["hardened"] > own["soft"]),
        Check("hard tying recovers from it", own["hard"] < own["hardened"]),
    ]


def _first_below(rows: list[dict[str, Any]], error: float) -> int | None:
    return next((row["step"] for row in rows if row["val_error"] < error), None)


def centers(data: dict[str, Any]) -> list[Check]:
    """Figure 5: centers repel each other, those of a mixture merge."""
    rows = data["runs"]["apt"]["rows"]
    entered = next(row for row in rows if row["event"] == "entered")["centers"]
    _, shares = clusters.changes(data)
    mixture = data["runs"].get("mixture")
    merged = None if mixture is None else near(mixture["rows"][-1]["centers"]) > 0
    return [
        Check(
            "after soft tying no two neighbouring centers are nearer than a tenth of their mean "
            "distance",
            near(entered) == 0,
        ),
        Check("in a mixture of Gaussians some are", merged),
        Check(
            "the most extreme center is farther out after hard tying than before",
            max(map(abs, rows[-1]["centers"])) > max(map(abs, entered)),
        ),
        Check("the last k-means changes less than 1 % of the assignments", shares[-1] < 0.01),
    ]


def near(values: list[float]) -> int:
    """How many neighbouring values are nearer than a tenth of the mean distance."""
    gaps = np.diff(np.sort(values))
    return int((gaps < gaps.mean() / 10).sum())


# -- sections 4 and 5 -------------------------------------------------------------------------


def over_k_and_t(data: dict[str, Any]) -> list[Check]:
    """Figure 6: K matters for hardening alone; t matters little."""
    return [*_over_k(data.get("k")), *_over_t(data.get("t"))]


def _over_k(data: dict[str, Any] | None) -> list[Check]:
    words = (
        "what hardening costs falls with every larger K",
        f"with the largest K it is below {NOTICEABLE:g} points",
        f"after soft tying the errors of all K are within {NOTICEABLE:g} points",
    )
    if data is None:
        return [Check(word, None) for word in words]
    table = errors.by_k(data["runs"])
    soft, hard = ([fmean(e[f"test_{when}"]) for e in table.values()] for when in ("soft", "hard"))
    costs = [after - before for before, after in zip(soft, hard, strict=True)]
    found = (
        all(less < more for more, less in pairwise(costs)),
        costs[-1] < NOTICEABLE,
        max(soft) - min(soft) <= NOTICEABLE,
    )
    return [Check(*pair) for pair in zip(words, found, strict=True)]


def _over_t(data: dict[str, Any] | None) -> list[Check]:
    words = (
        f"with the largest K, no t up to 5,000 is more than {NOTICEABLE:g} points worse than t = 1",
        "from t = 1 to the largest at which k-means runs the smallest K loses most",
        "without any k-means the smallest K does not learn (error above 50 %)",
        "without any k-means the largest K learns (error below 5 %)",
    )
    if data is None:
        return [Check(word, None) for word in words]
    table = errors.by_t(data["runs"])
    if any(own.keys() != set(data["settings"]["intervals"]) for own in table.values()):
        return [Check(word, None) for word in words]
    never = data["settings"]["soft_steps"]
    last = max(t for t in data["settings"]["intervals"] if t < never)
    few, many = table[min(table)], table[max(table)]
    losses = {k: own[last] - own[1] for k, own in table.items()}
    found = (
        max(error for t, error in many.items() if t <= 5_000) <= many[1] + NOTICEABLE,
        losses[min(losses)] == max(losses.values()),
        few[never] > 50,
        many[never] < 5,
    )
    return [Check(*pair) for pair in zip(words, found, strict=True)]


def networks(data: dict[str, Any]) -> list[Check]:
    """Figure 3: the architecture regularises, penalties and tying do not."""
    table = {
        name: {title: fmean(seeds) for title, seeds in own.items()}
        for name, own in generalisation.errors_of(data).items()
    }
    full, local, shared = (table[name] for name in generalisation.NETWORKS)
    if not all("none" in own for own in (full, local, shared)):
        return [Check("|LCN − CNN| < |MLP − LCN|", None)]
    penalties = [
        abs(own[title] - own["none"]) if title in own else None
        for own in (full, local, shared)
        for title in ("l1", "l2")
    ]
    by_k = {int(title[4:]): error for title, error in local.items() if title.startswith("apt-")}
    above_2 = [error for k, error in by_k.items() if k > 2]
    return [
        Check(
            "|LCN − CNN| < |MLP − LCN|",
            abs(local["none"] - shared["none"]) < abs(full["none"] - local["none"]),
        ),
        Check("CNN < LCN < MLP", shared["none"] < local["none"] < full["none"]),
        Check(
            f"L1 and L2 change no network by more than {NOTICEABLE:g} points",
            _all_within(penalties),
        ),
        Check(
            f"APT with K above 2 costs the LCN at most {NOTICEABLE:g} points",
            all(error - local["none"] <= NOTICEABLE for error in above_2) if above_2 else None,
        ),
        Check(
            f"from K = 4 to 25,570 the errors of the LCN are within {NOTICEABLE:g} points",
            max(above_2) - min(above_2) <= NOTICEABLE if {4, 25_570} <= by_k.keys() else None,
        ),
    ]


def _all_within(differences: list[float | None]) -> bool | None:
    there = [difference for difference in differences if difference is not None]
    if any(difference > NOTICEABLE for difference in there):
        return False
    return True if len(there) == len(differences) else None


def local(data: dict[str, Any]) -> list[Check]:
    """Figure 7: APT does not find the weight sharing of a convolution."""
    _, weights = local_filter.filter_of(data)
    middle, border = local_filter.strengths(weights)
    return [
        Check(
            "the filters at the 12 x 12 positions in the middle have a mean correlation below 0.5",
            common_shape(weights) < 0.5,
        ),
        Check(
            "in the rows at the top and at the bottom the mean magnitude is less than half of that "
            "in the middle",
            border < middle / 2,
        ),
    ]


def common_shape(weights: np.ndarray) -> float:
    """The mean correlation between two filters in the middle, of (576, 5, 5) weights."""
    inner = weights.reshape(24, 24, 25)[6:18, 6:18].reshape(-1, 25)
    inner = inner[inner.std(1) > 0]  # a constant has no shape
    if len(inner) < 2:
        return 0.0
    pairs = np.corrcoef(inner)[np.triu_indices(len(inner), 1)]
    return float(pairs.mean())


# -- sections 6 and 7 -------------------------------------------------------------------------


def sparsity(data: dict[str, Any]) -> list[Check]:
    """Figure 4: K = 9 costs accuracy; a trained start gains nothing; L1 alone is less sparse."""
    series = series_of(data)
    images = VALIDATION * data["settings"]["seeds"]

    def beside(name: str) -> list[tuple[float, float]]:
        """Errors of the front of `name`, and of K = 17 from a random start at these densities."""
        own = [(row, error_at(series["k17"], row["density"])) for row in front(series[name])]
        return [(row["val_error"], error) for row, error in own if error is not None]

    k9, trained, threshold = (beside(name) for name in ("k9", "trained", "threshold"))
    return [
        Check(
            "at every density of its front K = 9 has a larger error than K = 17",
            all(own > other for own, other in k9) if k9 else None,
        ),
        Check(
            "at no density of its front a trained start is better by two standard errors",
            all(other - own < noise(own, other, images) for own, other in trained)
            if trained
            else None,
        ),
        Check(
            "L1 and a threshold, not retrained, has a larger error at every density of its front",
            all(own > other for own, other in threshold)
            if threshold and not data["settings"]["retrained"]
            else None,
        ),
    ]


def filters(data: dict[str, Any]) -> list[Check]:
    """Figure 8: at 1 % error and 99.5 % zeros 11 of 20 filters are empty."""
    values, record = data[conv_filters.ROW]["filters"], data[conv_filters.ROW]["record"]
    empty = int((~values.any((1, 2))).sum())
    return [
        Check("at least half of the 20 filters are empty", empty >= 10),
        Check("at least 11 of them are", empty >= 11),
        Check("the test error rounds to at most 1.0 %", record["test_error"] < 1.05),
        Check("at least 99.5 % of the weights are zero", record["density"] <= 0.005),
    ]


def pixels(data: dict[str, Any]) -> list[Check]:
    """Figure 9: sparse APT prunes half of the inputs, more than L1 and L2 at the same error."""
    runs, words = data["runs"], "sparse APT prunes more inputs than L1 and L2"
    if not {"l1", "l2", "sparse_apt"} <= runs.keys():
        return [Check(words, None)]
    pruned = {name: INPUTS - run["live_pixels"] for name, run in runs.items()}
    own = pruned["sparse_apt"]
    return [
        Check(
            "sparse APT prunes more inputs than L1 and L2", own > max(pruned["l1"], pruned["l2"])
        ),
        Check("it prunes at least 381 of them", own >= 381),
        Check(*_similar(runs, ("l1", "l2", "sparse_apt"))),
    ]


def units(data: dict[str, Any]) -> list[Check]:
    """Figure 10: sparse APT disconnects 76.3 % of the hidden units."""
    runs, words = data["runs"], "sparse APT disconnects more units than L1, L2 and APT"
    if not {"l1", "l2", "apt", "sparse_apt"} <= runs.keys():
        return [Check(words, None)]
    dead = {name: UNITS - run["live_units"] for name, run in runs.items()}
    own = dead["sparse_apt"]
    others = max(dead[name] for name in ("l1", "l2", "apt"))
    return [
        Check(words, own > others),
        Check("it disconnects at least 76.3 % of them", own / UNITS >= 0.763),
        Check(*_similar(runs, ("l1", "l2", "apt", "sparse_apt"))),
    ]


def _similar(runs: dict[str, Any], names: tuple[str, ...]) -> tuple[str, bool]:
    found = [runs[name]["test_error"] for name in names]
    words = f"the test errors are within {NOTICEABLE:g} points"
    return words, max(found) - min(found) <= NOTICEABLE


# By the mark on the page: the figure or the study, and the rule.
BY_FIGURE = {
    1: histogram,
    2: losses,
    3: networks,
    4: sparsity,
    5: centers,
    6: over_k_and_t,
    7: local,
    8: filters,
    9: pixels,
    10: units,
}
BY_STUDY = {"variants": variants, "autograd": autograd}
