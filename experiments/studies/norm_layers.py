"""What the norm layers of a small CNN cost, tied in each of three ways.

Takes     the embedded digits, the paper's own method, three seeds.
Gives     a table in docs/method.md.
"""

from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import reefknot
from reefknot.format import encode
from reefknot.lab.baselines import METHODS
from reefknot.lab.runs.batches import Batches
from reefknot.lab.runs.training import error_percent
from reefknot.lab.zoo import DATASETS

MINUTES, MARK = 0.1, "norms"
SEEDS = (0, 1, 2)
SOFT_STEPS, HARD_STEPS, LR = 200, 50, 2e-3
SETTINGS = {"num_clusters": 17, "tying_strength": 1e-3}
CASES = (("dense", 0.0), ("tied", 2e-4), ("exact", 2e-4), ("separate", 2e-4), ("separate", 6e-4))


def network() -> nn.Module:
    """Three convolutions, each with a BatchNorm, and a classifier: 15,000 parameters."""
    layers: list[nn.Module] = []
    for before, channels in ((1, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(before, channels, 3), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """Every way to tie norm layers, with each seed."""
    return {
        f"{norms}-{strength:g}-{seed}": {"norms": norms, "l1_strength": strength, "seed": seed}
        for norms, strength in CASES
        for seed in SEEDS
    }


def measure(norms: str, l1_strength: float, seed: int) -> dict[str, Any]:
    """Train one network; its error is over validation and test images together."""
    torch.manual_seed(seed)
    data, model = DATASETS["digits"](), network()
    if norms == "dense":
        method: reefknot.Method = METHODS["dense"](model)
    else:
        method = reefknot.SparseAPT(model, **SETTINGS, l1_strength=l1_strength, norms=norms)
    optimizer = torch.optim.Adam(method.parameter_groups(), lr=LR)
    method.attach(optimizer)
    batches = Batches(*data.train, 128, seed)
    for step in range(SOFT_STEPS + HARD_STEPS):  # a loop of the user's own
        if step == SOFT_STEPS:
            method.harden()
        inputs, labels = batches[step]
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    state = method.finish()
    unseen = [torch.cat(pair) for pair in zip(data.validation, data.test, strict=True)]
    return {
        "norms": norms,
        "l1_strength": l1_strength,
        "seed": seed,
        "error": error_percent(model, *unseen, exact=True),
        "density": state.density,
        "file_bytes": len(encode(state)),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The record as Markdown, means over seeds."""
    lines = [
        "Digits, three convolutions with a BatchNorm each, K = 17, `tying_strength` 1e-3,",
        "Adam at 2e-3, 200 soft and 50 hard steps, batches of 128, means of three seeds over",
        "validation and test images together (study `norm_layers`):",
        "",
        "| `norms` | `l1_strength` | error % | of each seed | density | file bytes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for norms, strength in CASES:
        own = [row for row in rows if (row["norms"], row["l1_strength"]) == (norms, strength)]
        keys = ("error", "density", "file_bytes")
        error, density, size = (fmean(row[key] for row in own) for key in keys)
        each = ", ".join(f"{row['error']:.2f}" for row in own)
        title = "(dense) |" if norms == "dense" else f'`"{norms}"` | {strength:g}'
        lines.append(f"| {title} | {error:.2f} | {each} | {density:.3f} | {size:,.0f} |")
    return "\n".join(lines)


def data(done: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows in order."""
    return list(done.values())
