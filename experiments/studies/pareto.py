"""Sparsity against error, over strengths of L1: sparse APT, and two alternatives.

Takes     LeNet-300-100, K = 9 and 17, 60,000 soft and 10,000 hard steps of SGD, three seeds. L1
          alone trains as long as the soft part; then all weights below a threshold are pruned, and
          nothing is trained or tied any more: of one training, every threshold is measured.
Gives     the data of figure 4: density and validation error of every run.
Paper     figure 4; section 4.3 for a trained start (no better than a random one); the footnote of
          the appendix for L1 and then a threshold (less sparse at the same error).

This is a search, so it uses no test data.
"""

import copy
from typing import Any

import torch
from torch import nn

from experiments.studies.training import SGD, Trained, lenet_300_100, parent_of, trained
from reefknot.lab.runs.training import Progress, error_percent

MINUTES = 4.2
SETTINGS: dict[str, Any] = {
    "soft_steps": 60_000,
    "hard_steps": 10_000,
    "seeds": 3,
    "tying_strength": 1e-3,
    "strengths": [2e-5, 4e-5, 8e-5, 1.6e-4, 3.2e-4],
    "thresholds": [1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 3e-2, 5e-2, 7e-2, 1e-1],
    "retrained": False,
    "optimizer": SGD,
}
KS = {"k17": 17, "k9": 9, "trained": 17}  # series of sparse APT
SERIES = (*KS, "threshold")


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """Every series with each of its strengths and seeds."""
    return {
        f"{series}-{strength:g}-seed{seed}": {
            "series": series,
            "l1_strength": strength,
            "seed": seed,
        }
        for series in SERIES
        for strength in SETTINGS["strengths"]
        for seed in range(SETTINGS["seeds"])
    }


def measure(series: str, l1_strength: float, seed: int) -> list[dict[str, Any]]:
    """The points of one run: one, or one for each threshold."""
    row = {"series": series, "l1_strength": l1_strength, "seed": seed}
    settings = {"l1_strength": l1_strength}
    soft_steps, hard_steps = SETTINGS["soft_steps"], SETTINGS["hard_steps"]
    if series == "threshold":
        points: list[dict[str, Any]] = []

        def watch(progress: Progress, found: Trained) -> None:
            if progress.event == "leaving":
                points.extend(row | point for point in pruned(found))

        trained(
            lenet_300_100("l1_threshold", settings, soft_steps, 0, seed=seed, **SGD), watch=watch
        )
        return points
    settings |= {"num_clusters": KS[series], "tying_strength": SETTINGS["tying_strength"]}
    table = lenet_300_100("sparse_apt", settings, soft_steps, hard_steps, seed=seed, **SGD)
    if series == "trained":
        table["start"] = str(parent_of("lenet-300-100", "dense", seed))
    found = trained(table)
    assert found.state is not None
    errors = {
        "val_error_soft": found.errors["soft"],
        "val_error_hardened": found.errors["hardened"],
        "val_error": found.errors["hard"],
    }
    return [row | {"density": found.state.density, **errors}]


def pruned(found: Trained) -> list[dict[str, Any]]:
    """Density and error with all weights below each threshold set to zero, and nothing else."""
    points = []
    for threshold in SETTINGS["thresholds"]:
        model = copy.deepcopy(found.model)
        prune_(model, threshold)
        weights = nn.utils.parameters_to_vector(model.parameters())
        points.append(
            {
                "threshold": threshold,
                "density": int(torch.count_nonzero(weights)) / len(weights),
                "val_error": error_percent(model, *found.parts.data.validation, exact=True),
            }
        )
    return points


@torch.no_grad()
def prune_(model: nn.Module, threshold: float) -> None:
    """Set all parameters of smaller magnitude to zero."""
    for parameter in model.parameters():
        parameter.masked_fill_(parameter.abs() < threshold, 0.0)


def data(done: dict[str, Any]) -> dict[str, Any]:
    """The points, series by series."""
    return {"settings": SETTINGS, "runs": [point for points in done.values() for point in points]}
