"""The error at the end for more and more steps between two runs of k-means.

Takes     LeNet-300-100, 20,000 soft and 20,000 hard steps of SGD, five K, four tying strengths,
          one seed; t = 20,000 never refits, which is random tying. Nothing refits at hardening.
Gives     the data of the right half of figure 6: validation errors, of which the best strength of
          each K and t counts.
Paper     appendix A.1, "various K", "after hyperparameter search".
"""

from typing import Any

from experiments.studies.training import SGD, lenet_300_100, trained
from reefknot.errors import DivergedError
from reefknot.lab.runs.parts import Parts

MINUTES = 2.6
SETTINGS: dict[str, Any] = {
    "soft_steps": 20_000,
    "hard_steps": 20_000,
    "seeds": 1,
    "ks": [2, 4, 8, 16, 32],
    "intervals": [1, 1_000, 5_000, 10_000, 15_000, 20_000],
    "strengths": [1e-5, 1e-4, 1e-3, 1e-2],
    "optimizer": SGD,
}


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """Every K with every interval and every strength."""
    return {
        f"k{k}-t{t}-{s:g}": {"num_clusters": k, "refit_every": t, "tying_strength": s}
        for k in SETTINGS["ks"]
        for t in SETTINGS["intervals"]
        for s in SETTINGS["strengths"]
    }


def measure(num_clusters: int, refit_every: int, tying_strength: float) -> dict[str, Any]:
    """One run; one that diverges has no errors."""
    settings = {"num_clusters": num_clusters, "tying_strength": tying_strength}
    row = settings | {"refit_every": refit_every, "soft": None, "hardened": None, "hard": None}
    soft_steps, hard_steps = SETTINGS["soft_steps"], SETTINGS["hard_steps"]
    settings["refit_every"] = refit_every if refit_every < soft_steps else 0
    table = lenet_300_100("apt", settings, soft_steps, hard_steps, **SGD)
    try:
        return row | trained(table, prepare=without_last_refit).errors
    except DivergedError:
        return row


def without_last_refit(parts: Parts) -> None:
    """Harden without k-means, so that only t decides how often it runs."""
    parts.method.phases[-1].prepare = lambda: None


def data(done: dict[str, Any]) -> dict[str, Any]:
    """All runs."""
    return {"settings": SETTINGS, "runs": list(done.values())}
