"""How the two L1 steps compare under optimizers that scale the gradient.

Takes     the embedded digits; one seed, validation errors only.
Gives     a table in docs/method.md.
"""

from typing import Any

import torch

import reefknot
from reefknot.lab.runs.batches import Batches
from reefknot.lab.runs.training import Plan, error_percent, train
from reefknot.lab.zoo import DATASETS, NETWORKS

MINUTES, MARK = 0.2, "l1"
OPTIMIZERS = {"adam": (torch.optim.Adam, 1e-3), "adadelta": (torch.optim.Adadelta, 1.0)}
STRENGTHS = {
    ("adam", "subgradient"): (1e-5, 1e-4, 1e-3),
    ("adam", "proximal"): (1e-4, 1e-2, 1e-1),
    ("adadelta", "subgradient"): (1e-5, 1e-4, 1e-3),
    ("adadelta", "proximal"): (1e-5, 1e-4, 1e-3),
}


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """Both steps under both optimizers."""
    return {
        f"{optimizer}-{l1_step}-{strength:g}": {
            "optimizer_name": optimizer,
            "l1_step": l1_step,
            "l1_strength": strength,
        }
        for (optimizer, l1_step), strengths in STRENGTHS.items()
        for strength in strengths
    }


def measure(optimizer_name: str, l1_step: str, l1_strength: float) -> dict[str, Any]:
    """Train one network with soft tying, harden it, and measure it."""
    torch.manual_seed(0)
    data, model = DATASETS["digits"](), NETWORKS["digits-mlp"]()
    kind, lr = OPTIMIZERS[optimizer_name]
    optimizer = kind(model.parameters(), lr=lr)
    tie = reefknot.SparseAPT(
        model, tying_strength=1e-4, l1_strength=l1_strength, l1_step=l1_step, refit_every=200
    ).attach(optimizer)
    plan = Plan(steps=3_000, soft_steps=3_000, lr=lr, hard_lr=lr, decay="cosine")
    zeros = 0.0
    for progress in train(model, tie, optimizer, Batches(*data.train, 128, 0), plan):
        if progress.event == "leaving":
            weights = torch.nn.utils.parameters_to_vector(model.parameters())
            zeros = float((weights == 0).float().mean())
    return {
        "optimizer": optimizer_name,
        "l1_step": l1_step,
        "l1_strength": l1_strength,
        "zeros_before_hardening": zeros,
        "density": tie.stats()["density"],
        "val_error": error_percent(model, *data.validation),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The record as Markdown."""
    lines = [
        "Digits, 64-300-100-10, learning rate 1e-3 (Adam) or 1.0 (Adadelta) with cosine decay,",
        "3,000 steps of soft tying, K = 17, one seed (study `l1_steps`):",
        "",
        "| optimizer | `l1_step` | `l1_strength` | exact zeros before `harden()` "
        "| density after it | validation error % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        lines.append(
            "| {optimizer} | {l1_step} | {l1_strength:g} | {zeros_before_hardening:.3f} "
            "| {density:.4f} | {val_error:.2f} |".format(**row)
        )
    return "\n".join(lines)


def data(done: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows in order."""
    return list(done.values())
