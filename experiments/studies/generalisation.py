"""What generalises: shared filters, local filters or none, each with four regularisers.

Takes     LeNet-5-Caffe, the locally connected network of its shape, and the fully connected one;
          at most 20,000 steps of SGD, and 10,000 hard ones for APT, which ties only the local
          layers (or those in their place); each part ends when it has converged (`training.FLAT`).
          Strengths are chosen on validation images with one seed, in a fifth of the steps; the
          fully connected network takes those of the local one.
Gives     the data of figure 3, and one filter of the local network with K = 4 for figure 7.
Paper     section 4.2.
"""

from typing import Any

import numpy as np

from experiments.studies.training import FLAT, trained
from reefknot.errors import DivergedError

MINUTES = 13.0
CNN, LOCAL, FULL = "lenet-5-caffe", "lenet-5-local", "lenet-5-full"
SETTINGS: dict[str, Any] = {
    "soft_steps": 20_000,
    "hard_steps": 10_000,
    "search_shorter": 5,
    "flat": FLAT,
    "bf16": False,
    "seeds": {CNN: 3, LOCAL: 3, FULL: 1},
    "ks": {CNN: [], LOCAL: [2, 4, 8, 16, 64, 256, 25_570], FULL: [16]},
    "optimizer": {
        "name": "sgd",
        "lr": 0.02,
        "decay": "plateau",
        "options": {"momentum": 0.9, "fused": True},
    },
}
LAYERS = {CNN: [], LOCAL: ["local?.*"], FULL: ["full?.*"]}  # shared filters are tied already
STRENGTHS = {"l1": (1e-6, 1e-5, 1e-4), "l2": (1e-5, 1e-4, 1e-3), "apt": (1e-5, 1e-4, 1e-3)}
SETTING = {"l1": "l1_strength", "l2": "l2_strength", "apt": "tying_strength"}
FILTER_OF, FILTER = f"{LOCAL}-apt-4-seed0", 0  # the run and the filter that are drawn


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """Searches on two networks; the runs on test images use the strengths they found.

    The fully connected network takes its strengths from the local one: its runs are the longest.
    """
    found: dict[str, Any] = {}
    for network in LAYERS:
        found |= _seeds(network, "none", {})
    for network in (CNN, LOCAL):
        for title in ("l1", "l2", *(f"apt-{k}" for k in SETTINGS["ks"][network])):
            kind = title.partition("-")[0]
            search = {f"{network}-{title}-search-{s:g}": s for s in STRENGTHS[kind]}
            for name, strength in search.items():
                found[name] = _case(network, title, {SETTING[kind]: strength})
            if search.keys() <= done.keys():
                best = search[min(search, key=lambda name: _badness(done[name]))]
                found |= _seeds(network, title, {SETTING[kind]: best})
                if network == LOCAL and _is_for_full(title):
                    found |= _seeds(FULL, title, {SETTING[kind]: best})
    return found


def _is_for_full(title: str) -> bool:
    kind, _, k = title.partition("-")
    return kind != "apt" or int(k) in SETTINGS["ks"][FULL]


def _seeds(network: str, title: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The runs on test images."""
    return {
        f"{network}-{title}-seed{seed}": _case(network, title, settings, seed=seed, test=True)
        for seed in range(SETTINGS["seeds"][network])
    }


def _case(
    network: str, title: str, settings: dict[str, Any], *, seed: int = 0, test: bool = False
) -> dict[str, Any]:
    return {"network": network, "title": title, "settings": settings, "seed": seed, "test": test}


def _badness(row: dict[str, Any]) -> float:
    return 100.0 if row["val_error"] is None else float(row["val_error"])


def measure(
    network: str, title: str, settings: dict[str, Any], seed: int, test: bool
) -> dict[str, Any]:
    """One run. Networks with a penalty are measured before hardening, those of APT at the end."""
    kind, _, k = title.partition("-")
    method = {"none": "dense", "l1": "l1_threshold", "l2": "l2", "apt": "apt"}[kind]
    row = _case(network, title, settings, seed=seed, test=test)
    if kind == "apt":
        settings = settings | {"num_clusters": int(k), "include": LAYERS[network]}
    table = {
        "model": network,
        "data": "mnist",
        "method": method,
        "seed": seed,
        "settings": settings,
        "training": {
            "soft_steps": SETTINGS["soft_steps"],
            "hard_steps": SETTINGS["hard_steps"] if kind == "apt" else 0,
            "batch_size": 128,
            "bf16": SETTINGS["bf16"],
        },
        "optimizer": SETTINGS["optimizer"],
    }
    shorter = 1 if test else SETTINGS["search_shorter"]
    try:
        found = trained(table, test=test, shorter=shorter, until_flat=True)
    except DivergedError:
        return row | {"val_error": None, "test_error": None}
    when = "hard" if kind == "apt" else "soft"
    row |= {"steps": found.steps, "val_error": found.errors[when]}
    if test:
        row["test_error"] = found.errors[f"test_{when}"]
    if f"{network}-{title}-seed{seed}" == FILTER_OF and test:
        weights = found.model.local1.weight.detach().double().numpy()[:, FILTER]
        row["filter"] = np.round(weights, 4).reshape(24, 24, 5, 5).tolist()
    return row


def data(done: dict[str, Any]) -> dict[str, Any]:
    """All runs, the search and those on test images."""
    return {"settings": SETTINGS, "runs": list(done.values())}
