"""The error at the end for more and more steps between two runs of k-means.

Takes     LeNet-300-100, 20,000 soft and 20,000 hard steps, K = 2, 8 and 32, two tying strengths,
          one seed; t = 20,000 never refits, which is random tying. Nothing refits at hardening.
Gives     the data of the right half of figure 6: validation errors, the better of both strengths.
Paper     appendix A.1, "various K" and a search that is not described; here 36 runs.
"""

from typing import Any

from experiments.studies.training import lenet_300_100, trained
from reefknot.errors import DivergedError
from reefknot.runs.parts import Parts

MINUTES = 2.0
KS = (2, 8, 32)
INTERVALS = (1, 1_000, 5_000, 10_000, 15_000, 20_000)
STRENGTHS = (1e-5, 1e-4)
SOFT_STEPS, HARD_STEPS = 20_000, 20_000


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """Every K with every interval and strength."""
    return {
        f"k{k}-t{t}-{s:g}": {"num_clusters": k, "refit_every": t, "tying_strength": s}
        for k in KS
        for t in INTERVALS
        for s in STRENGTHS
    }


def measure(num_clusters: int, refit_every: int, tying_strength: float) -> dict[str, Any]:
    """One run of the search; one that diverges has no errors."""
    row = {
        "num_clusters": num_clusters,
        "refit_every": refit_every,
        "tying_strength": tying_strength,
        "soft": None,
        "hardened": None,
        "hard": None,
    }
    settings = {
        "num_clusters": num_clusters,
        "tying_strength": tying_strength,
        "refit_every": refit_every if refit_every < SOFT_STEPS else 0,
    }
    table = lenet_300_100("apt", settings, SOFT_STEPS, HARD_STEPS)
    try:
        return row | trained(table, prepare=without_last_refit).errors
    except DivergedError:
        return row


def without_last_refit(parts: Parts) -> None:
    """Harden without k-means, so that only t decides how often it runs."""
    parts.method.phases[-1].prepare = lambda: None


def data(done: dict[str, Any]) -> list[dict[str, Any]]:
    """All runs."""
    return list(done.values())
