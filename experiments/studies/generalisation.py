"""What generalises: shared filters, local filters or none, each with four regularisers.

Takes     LeNet-5-Caffe, the locally connected network of its shape, and the fully connected one;
          2,000 steps of SGD in bfloat16, 1,000 hard ones for APT, which ties only the local layers
          (or those in their place). Strengths are chosen on validation in a third of the steps (for
          APT with K = 4; for the fully connected network, those of the local one); then test images
          are evaluated.
Gives     the data of figure 3, and one filter of the local network with K = 4 for figure 7.
Paper     section 4.2: 20,000 and 10,000 steps, three seeds, K up to 25,570. Here one seed, a
          tenth of the steps, and for the fully connected network no L1 or L2 and one K.
"""

from typing import Any

import numpy as np

from experiments.studies.training import trained
from reefknot.errors import DivergedError

MINUTES = 2.0
SOFT_STEPS, HARD_STEPS = 2_000, 1_000
SEARCH_SHORTER = 3
SGD = {"name": "sgd", "lr": 0.02, "decay": "cosine", "options": {"momentum": 0.9}}
LAYERS = {
    "lenet-5-caffe": [],  # its filters are shared already
    "lenet-5-local": ["local?.*"],
    "lenet-5-full": ["full?.*"],
}
KS: dict[str, tuple[int, ...]] = {
    "lenet-5-caffe": (),
    "lenet-5-local": (2, 4, 16),
    "lenet-5-full": (16,),
}
STRENGTHS = {"l1": (1e-6, 1e-5), "l2": (1e-5, 1e-4), "apt": (1e-4, 1e-3, 1e-2)}
SETTING = {"l1": "l1_strength", "l2": "l2_strength", "apt": "tying_strength"}
LOCAL, FULL = "lenet-5-local", "lenet-5-full"
SEARCH_K, FILTER = 4, 0  # the K of the search, and the filter that is drawn


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """Searches on two networks; the runs on test images use the strengths they found.

    The fully connected network takes its strengths from the local one: its runs are the longest.
    """
    found: dict[str, Any] = {}
    for network in LAYERS:
        found[f"{network}-none"] = _case(network, "none", {}, test=True)
    for network in ("lenet-5-caffe", LOCAL):
        for kind, strengths in STRENGTHS.items():
            if kind == "apt" and not KS[network]:
                continue
            search = {f"{network}-{kind}-search-{s:g}": s for s in strengths}
            for name, strength in search.items():
                found[name] = _case(network, _title(kind, SEARCH_K), {SETTING[kind]: strength})
            if search.keys() <= done.keys():
                best = min(search, key=lambda name: _badness(done[name]))
                same = [network, FULL] if network == LOCAL and kind == "apt" else [network]
                for other in same:
                    for k in KS[other] if kind == "apt" else (0,):
                        title, settings = _title(kind, k), {SETTING[kind]: search[best]}
                        found[f"{other}-{title}"] = _case(other, title, settings, test=True)
    return found


def _case(
    network: str, title: str, settings: dict[str, Any], *, test: bool = False
) -> dict[str, Any]:
    return {"network": network, "title": title, "settings": settings, "test": test}


def _title(kind: str, k: int) -> str:
    return f"apt-{k}" if kind == "apt" else kind


def _badness(row: dict[str, Any]) -> float:
    return 100.0 if row["val_error"] is None else float(row["val_error"])


def measure(network: str, title: str, settings: dict[str, Any], test: bool) -> dict[str, Any]:
    """One run. Networks with a penalty are measured before hardening, those of APT at the end."""
    kind, _, k = title.partition("-")
    method = {"none": "dense", "l1": "l1_threshold", "l2": "l2", "apt": "apt"}[kind]
    row = _case(network, title, settings, test=test)
    if kind == "apt":
        settings = settings | {"num_clusters": int(k), "include": LAYERS[network]}
    table = {
        "model": network,
        "data": "mnist",
        "method": method,
        "settings": settings,
        "training": {
            "soft_steps": SOFT_STEPS,
            "hard_steps": HARD_STEPS if kind == "apt" else 0,
            "batch_size": 128,
            "bf16": True,
        },
        "optimizer": SGD,
    }
    try:
        found = trained(table, test=test, shorter=1 if test else SEARCH_SHORTER)
    except DivergedError:
        return row | {"val_error": None}
    when = "hard" if kind == "apt" else "soft"
    row["val_error"] = found.errors[when]
    if test:
        row["test_error"] = found.errors[f"test_{when}"]
    if (network, title, test) == (LOCAL, f"apt-{SEARCH_K}", True):
        weights = found.model.local1.weight.detach().double().numpy()[:, FILTER]
        row["filter"] = np.round(weights, 4).reshape(24, 24, 5, 5).tolist()
    return row


def data(done: dict[str, Any]) -> list[dict[str, Any]]:
    """All runs, the search and those on test images."""
    return list(done.values())
