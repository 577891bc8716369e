"""What it costs to use another learning rate schedule with a budget.

Takes     the embedded digits, two budgets, three schedules, three seeds.
Gives     a table in docs/method.md.
"""

from statistics import fmean
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler

import reefknot
from reefknot.format import encode
from reefknot.lab.runs.batches import Batches
from reefknot.lab.runs.training import error_percent
from reefknot.lab.zoo import DATASETS, NETWORKS

MINUTES, MARK = 0.3, "schedules"
SEEDS = (0, 1, 2)
SIZES, STEPS, LR = (1_000, 500), 5_000, 2e-3
SCHEDULES = {
    "phases": "`tie.lr_scheduler(optimizer)`",
    "cosine": "cosine over all steps, down to 0",
    "constant": "constant",
}


def scheduler_of(name: str, tie: reefknot.Method, optimizer: Optimizer) -> LRScheduler:
    """One of torch's schedules, or the one that matches the phases."""
    if name == "phases":
        return tie.lr_scheduler(optimizer)
    if name == "cosine":
        return CosineAnnealingLR(optimizer, STEPS)
    return ConstantLR(optimizer, 1.0)


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """Every size with every schedule and seed."""
    return {
        f"{size}-{schedule}-{seed}": {"schedule": schedule, "target_bytes": size, "seed": seed}
        for size in SIZES
        for schedule in SCHEDULES
        for seed in SEEDS
    }


def measure(schedule: str, target_bytes: int, seed: int) -> dict[str, Any]:
    """Train one network; its error is over validation and test images together."""
    torch.manual_seed(seed)
    data, model = DATASETS["digits"](), NETWORKS["digits-mlp"]()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    tie = reefknot.SparseAPT(model, target_bytes=target_bytes, steps=STEPS).attach(optimizer)
    scheduler = scheduler_of(schedule, tie, optimizer)
    batches = Batches(*data.train, 128, seed)
    for step in range(STEPS):
        inputs, labels = batches[step]
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        scheduler.step()
    state = tie.finish()
    unseen = [torch.cat(pair) for pair in zip(data.validation, data.test, strict=True)]
    return {
        "schedule": schedule,
        "target_bytes": target_bytes,
        "seed": seed,
        "error": error_percent(model, *unseen, exact=True),
        "num_clusters": state.num_clusters,
        "file_bytes": len(encode(state)),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The record as Markdown, means over seeds."""
    lines = [
        f"Digits, 64-300-100-10, {STEPS:,} steps of Adam at {LR:g}, batches of 128, three seeds;",
        "errors over validation and test images together (study `schedules`):",
        "",
        "| learning rate | `target_bytes` | file bytes | error % | of each seed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for target in SIZES:
        for schedule, words in SCHEDULES.items():
            own = [r for r in rows if (r["schedule"], r["target_bytes"]) == (schedule, target)]
            size = fmean(row["file_bytes"] for row in own)
            error = fmean(row["error"] for row in own)
            each = ", ".join(f"{row['error']:.2f}" for row in own)
            lines.append(f"| {words} | {target:,} | {size:,.0f} | {error:.2f} | {each} |")
    return "\n".join(lines)


def data(done: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows in order."""
    return list(done.values())
