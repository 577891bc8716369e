"""The error after soft and after hard tying, for growing K.

Takes     LeNet-300-100, 10,000 soft and 5,000 hard steps of SGD. The tying strength of each K is
          chosen on validation with seed 0 and a third of the steps; then five seeds are measured,
          on test images too.
Gives     the data of the left half of figure 6.
Paper     appendix A.1: K = 2 to 32, strengths from 1e-7 to 1e-1, five seeds, three times the steps.
          There every seed was searched at full length: 175 runs. Here 25 are long and 35 short.
"""

from typing import Any

from experiments.studies.training import SGD, lenet_300_100, trained
from reefknot.errors import DivergedError

MINUTES = 0.5
KS = (2, 4, 8, 16, 32)
STRENGTHS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
SEEDS = (0, 1, 2, 3, 4)
SEARCH_SHORTER = 3


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """The search for each K; when it is over, the seeds with the strength it found."""
    found: dict[str, Any] = {}
    for k in KS:
        search = {
            f"k{k}-search-{s:g}": {"num_clusters": k, "tying_strength": s, "seed": 0, "test": False}
            for s in STRENGTHS
        }
        found |= search
        if search.keys() <= done.keys():
            best = chosen([done[name] for name in search])
            for seed in SEEDS:
                found[f"k{k}-seed{seed}"] = {
                    "num_clusters": k,
                    "tying_strength": best["tying_strength"],
                    "seed": seed,
                    "test": True,
                }
    return found


def chosen(search: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the least final validation error; of equal ones, the weaker tying strength."""
    ended = [row for row in search if row["hard"] is not None]
    return min(ended, key=lambda row: (row["hard"], row["tying_strength"]))


def measure(num_clusters: int, tying_strength: float, seed: int, test: bool) -> dict[str, Any]:
    """One run; one that diverges has no errors."""
    settings = {"num_clusters": num_clusters, "tying_strength": tying_strength}
    row = {**settings, "seed": seed, "test": test, "soft": None, "hardened": None, "hard": None}
    table = lenet_300_100("apt", settings, 10_000, 5_000, seed=seed, **SGD)
    shorter = 1 if test else SEARCH_SHORTER
    try:
        return row | trained(table, test=test, shorter=shorter).errors
    except DivergedError:
        return row


def data(done: dict[str, Any]) -> list[dict[str, Any]]:
    """All runs, search and seeds."""
    return list(done.values())
