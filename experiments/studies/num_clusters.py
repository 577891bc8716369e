"""The error after soft and after hard tying, for growing K.

Takes     LeNet-300-100, 30,000 soft and 20,000 hard steps of SGD. The tying strength of each K is
          chosen on validation images with seed 0; then five seeds are measured, on test images too.
Gives     the data of the left half of figure 6.
Paper     appendix A.1: K = 2 to 32, strengths from 1e-7 to 1e-1, five seeds.
"""

from typing import Any

from experiments.studies.training import SGD, lenet_300_100, trained
from reefknot.errors import DivergedError

MINUTES = 3.0
SETTINGS: dict[str, Any] = {
    "soft_steps": 30_000,
    "hard_steps": 20_000,
    "search_shorter": 1,
    "search_seeds": 1,
    "seeds": 5,
    "ks": [2, 4, 8, 16, 32],
    "strengths": [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1],
    "optimizer": SGD,
}


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """The search for each K; when it is over, the seeds with the strength it found."""
    found: dict[str, Any] = {}
    for k in SETTINGS["ks"]:
        search = {f"k{k}-search-{s:g}": _case(k, s) for s in SETTINGS["strengths"]}
        found |= search
        if search.keys() <= done.keys():
            best = chosen([done[name] for name in search])["tying_strength"]
            for seed in range(SETTINGS["seeds"]):
                found[f"k{k}-seed{seed}"] = _case(k, best, seed=seed, test=True)
    return found


def _case(k: int, strength: float, *, seed: int = 0, test: bool = False) -> dict[str, Any]:
    return {"num_clusters": k, "tying_strength": strength, "seed": seed, "test": test}


def chosen(search: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the least final validation error; of equal ones, the weaker tying strength."""
    ended = [row for row in search if row["hard"] is not None]
    return min(ended, key=lambda row: (row["hard"], row["tying_strength"]))


def measure(num_clusters: int, tying_strength: float, seed: int, test: bool) -> dict[str, Any]:
    """One run; one that diverges has no errors."""
    settings = {"num_clusters": num_clusters, "tying_strength": tying_strength}
    row = {**settings, "seed": seed, "test": test, "soft": None, "hardened": None, "hard": None}
    soft_steps, hard_steps = SETTINGS["soft_steps"], SETTINGS["hard_steps"]
    table = lenet_300_100("apt", settings, soft_steps, hard_steps, seed=seed, **SGD)
    shorter = 1 if test else SETTINGS["search_shorter"]
    try:
        return row | trained(table, test=test, shorter=shorter).errors
    except DivergedError:
        return row


def data(done: dict[str, Any]) -> dict[str, Any]:
    """All runs, search and seeds."""
    return {"settings": SETTINGS, "runs": list(done.values())}
