"""How plain APT behaves: weights, losses, errors and clusters, beside training without it.

Takes     LeNet-300-100, K = 8, 20,000 soft and 20,000 hard steps; one start, one learning rate.
Gives     the data of figures 1 (joint histograms), 2 (losses and errors) and 5 (clusters).
Paper     section 4.1 and the first part of the appendix.
"""

from typing import Any

import numpy as np

from experiments.studies import training
from experiments.studies.training import (
    Trained,
    lenet_300_100,
    scaled,
    shortened,
    start_of,
    trained,
    vector,
)
from reefknot.runs.training import Progress, error_percent

MINUTES = 3.0
LOOK_EVERY, BINS, SEEN = 200, 96, 6_000
SETTINGS = {"num_clusters": 8, "tying_strength": 3e-5, "refit_every": 1_000}


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """One run with APT, one without."""
    return {
        "apt": {"method": "apt", "settings": SETTINGS},
        "dense": {"method": "dense", "settings": {}},
    }


def measure(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Train, measure often, and make a joint histogram of first and last weights."""
    rows: list[dict[str, Any]] = []
    losses: list[float] = []
    soft = np.zeros(0)

    def watch(progress: Progress, found: Trained) -> None:
        nonlocal soft
        if progress.event == "leaving":
            soft = vector(found.model).numpy()
        if progress.event == "step":
            losses.append(progress.loss)
            if progress.step % scaled(LOOK_EVERY):
                return
        rows.append(_look(progress, found, losses))
        losses.clear()

    table = lenet_300_100(method, settings, 20_000, 20_000)
    found = trained(table, watch=watch)
    start = start_of("lenet-300-100", 0).numpy()
    span = float(np.quantile(np.abs(soft), 0.999))
    inside = np.clip(soft, -span, span)
    counts, before, after = np.histogram2d(start, inside, BINS)
    return {
        "rows": rows,
        "errors": found.errors,
        "histogram": counts.astype(int).tolist(),
        "start_range": [float(before[0]), float(before[-1])],
        "end_range": [float(after[0]), float(after[-1])],
    }


def _look(progress: Progress, found: Trained, losses: list[float]) -> dict[str, Any]:
    """The current errors and clusters; the loss is the mean since the last measurement."""
    data = found.parts.data
    images, labels = data.train
    row: dict[str, Any] = {
        "event": progress.event,
        "step": progress.step,
        "loss": round(float(np.mean(losses)), 5) if losses else None,
        "train_error": error_percent(found.model, images[:SEEN], labels[:SEEN]),
        "val_error": error_percent(found.model, *data.validation),
    }
    groups = getattr(found.parts.method, "groups", None)
    if groups:
        group = groups[0]
        row["penalty"] = float(group.deviations()[1].sum()) / 2
        row["centers"] = group.centers.round(5).tolist()
        row["spreads"] = np.round(group.spreads(), 6).tolist()
        row["changed"] = found.parts.method.changed
    return row


def data(done: dict[str, Any]) -> dict[str, Any]:
    """Both runs as they are."""
    return {"settings": shortened(SETTINGS, training.SHORTER), "runs": done}
