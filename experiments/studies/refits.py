"""The error at the end for more and more steps between two runs of k-means.

Takes     LeNet-300-100, 20,000 soft and 10,000 hard steps of SGD, K = 2 and 32, one tying
          strength, one seed; t = 20,000 never refits, which is random tying. Nothing refits at
          hardening.
Gives     the data of the right half of figure 6: validation errors.
Paper     appendix A.1, "various K" and a search that is not described; here 12 runs.
"""

from typing import Any

from experiments.studies.training import SGD, lenet_300_100, trained
from reefknot.errors import DivergedError
from reefknot.runs.parts import Parts

MINUTES = 1.2
KS = (2, 32)
INTERVALS = (1, 1_000, 5_000, 10_000, 15_000, 20_000)
STRENGTH = 1e-3
SOFT_STEPS, HARD_STEPS = 20_000, 10_000


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """Every K with every interval."""
    return {f"k{k}-t{t}": {"num_clusters": k, "refit_every": t} for k in KS for t in INTERVALS}


def measure(num_clusters: int, refit_every: int) -> dict[str, Any]:
    """One run; one that diverges has no errors."""
    row = {
        "num_clusters": num_clusters,
        "refit_every": refit_every,
        "tying_strength": STRENGTH,
        "soft": None,
        "hardened": None,
        "hard": None,
    }
    settings = {
        "num_clusters": num_clusters,
        "tying_strength": STRENGTH,
        "refit_every": refit_every if refit_every < SOFT_STEPS else 0,
    }
    table = lenet_300_100("apt", settings, SOFT_STEPS, HARD_STEPS, **SGD)
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
