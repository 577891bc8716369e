"""How the two L1 steps compare under optimizers that scale the gradient.

    python -m experiments.l1_steps          # 2 minutes

Takes     the embedded digits; one seed, validation errors only.
Gives     experiments/records/l1_steps.json and the table between the marks in docs/method.md.
"""

import json
from pathlib import Path

import torch

import reefknot
from reefknot.runs.training import Batches, Plan, error_percent, train
from reefknot.zoo import DATASETS, NETWORKS

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "experiments" / "records" / "l1_steps.json"
DOCUMENT = ROOT / "docs" / "method.md"
OPTIMIZERS = {"adam": (torch.optim.Adam, 1e-3), "adadelta": (torch.optim.Adadelta, 1.0)}
STRENGTHS = {
    ("adam", "subgradient"): (1e-5, 1e-4, 1e-3),
    ("adam", "proximal"): (1e-4, 1e-2, 1e-1),
    ("adadelta", "subgradient"): (1e-5, 1e-4, 1e-3),
    ("adadelta", "proximal"): (1e-5, 1e-4, 1e-3),
}


def measure(optimizer_name: str, l1_step: str, l1_strength: float) -> dict[str, object]:
    """Train one network softly, harden it, and look at it."""
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


def table(rows: list[dict[str, object]]) -> str:
    """The record as Markdown."""
    lines = [
        "Digits, 64-300-100-10, learning rate 1e-3 (Adam) or 1.0 (Adadelta) with cosine decay,",
        "3,000 steps of soft tying, K = 17, one seed (`python -m experiments.l1_steps`):",
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


def main() -> None:
    """Measure everything and renew the document."""
    torch.set_num_threads(1)
    rows = [
        measure(optimizer, l1_step, strength)
        for (optimizer, l1_step), strengths in STRENGTHS.items()
        for strength in strengths
    ]
    RECORD.write_text(json.dumps(rows, indent=1) + "\n")
    renew(rows)


def renew(rows: list[dict[str, object]]) -> None:
    """Put the table into the document."""
    before, _, rest = DOCUMENT.read_text().partition("<!-- l1 -->\n")
    _, _, after = rest.partition("<!-- /l1 -->")
    DOCUMENT.write_text(f"{before}<!-- l1 -->\n{table(rows)}\n<!-- /l1 -->{after}")
    print(table(rows))


if __name__ == "__main__":
    main()
