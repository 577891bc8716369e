"""Sparsity against error, over strengths of L1: sparse APT, and two alternatives.

Takes     LeNet-300-100, K = 9 and 17, 30,000 soft and 10,000 hard steps of SGD, one seed.
Gives     the data of figure 4: density and validation error of every run.
Paper     figure 4; section 4.3 for a trained start (no better than a random one); the footnote of
          the appendix for L1 and then a threshold (less sparse at the same error).

This is a search, so it uses no test data.
"""

from typing import Any

from experiments.studies.training import SGD, lenet_300_100, parent_of, trained

MINUTES = 1.6
SOFT_STEPS, HARD_STEPS = 30_000, 10_000
STRENGTHS = (2e-5, 4e-5, 8e-5, 1.6e-4, 3.2e-4)
SERIES = {
    "k17": ("sparse_apt", {"num_clusters": 17, "tying_strength": 1e-3}, STRENGTHS),
    "k9": ("sparse_apt", {"num_clusters": 9, "tying_strength": 1e-3}, STRENGTHS),
    "trained": ("sparse_apt", {"num_clusters": 17, "tying_strength": 1e-3}, STRENGTHS[1:4]),
    "threshold-0.02": ("l1_threshold", {"threshold": 0.02, "prune_at": 20_000}, STRENGTHS[1:4]),
    "threshold-0.05": ("l1_threshold", {"threshold": 0.05, "prune_at": 20_000}, STRENGTHS[1:4]),
}


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """Every series with each of its strengths."""
    return {
        f"{series}-{strength:g}": {"series": series, "l1_strength": strength}
        for series, (_, _, strengths) in SERIES.items()
        for strength in strengths
    }


def measure(series: str, l1_strength: float) -> dict[str, Any]:
    """One run of the search."""
    method, settings, _ = SERIES[series]
    settings = settings | {"l1_strength": l1_strength}
    table = lenet_300_100(method, settings, SOFT_STEPS, HARD_STEPS, **SGD)
    if series == "trained":
        table["start"] = str(parent_of("lenet-300-100", "dense"))
    found = trained(table)
    assert found.state is not None
    return {
        "series": series,
        "l1_strength": l1_strength,
        "density": found.state.density,
        "num_clusters": found.state.num_clusters,
        "val_error_soft": found.errors["soft"],
        "val_error_hardened": found.errors["hardened"],
        "val_error": found.errors["hard"],
    }


def data(done: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs, series by series."""
    return list(done.values())
