"""How plain APT behaves: weights, losses, errors and clusters, beside training without it.

Takes     LeNet-300-100, K = 8, 20,000 soft and 20,000 hard steps; one start, one learning rate. For
          figure 5 also a mixture of Gaussians: the recipe of Soft Weight Sharing, as it is.
Gives     the data of figures 1 (joint histograms), 2 (losses and errors) and 5 (clusters).
Paper     section 4.1 and the first part of the appendix.
"""

from typing import Any

import numpy as np

from experiments.studies import training
from experiments.studies.training import (
    EXPERIMENTS,
    Trained,
    lenet_300_100,
    scaled,
    shortened,
    start_of,
    table_of,
    trained,
    vector,
)
from reefknot.lab.runs.training import Progress, error_percent
from reefknot.tying import statistics

MINUTES = 6.0
LOOK_EVERY, BINS, SEEN = 200, 96, 6_000
APT = {"num_clusters": 8, "tying_strength": 3e-5, "refit_every": 1_000}
MIXTURE = EXPERIMENTS / "lenet-300-100" / "soft_weight_sharing.toml"
SETTINGS: dict[str, Any] = {
    "soft_steps": 20_000,
    "hard_steps": 20_000,
    "seeds": 1,
    "optimizer": {"name": "adadelta", "lr": 1.0},
    "apt": APT,
}


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """One run with APT, one without, and a mixture of Gaussians."""
    return {
        "apt": {"method": "apt", "settings": APT},
        "dense": {"method": "dense", "settings": {}},
        "mixture": {"method": "soft_weight_sharing", "settings": {}},
    }


def measure(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Train, measure often, and make a joint histogram of first and last weights."""
    if method == "soft_weight_sharing":
        return mixture()
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

    soft_steps, hard_steps = SETTINGS["soft_steps"], SETTINGS["hard_steps"]
    table = lenet_300_100(method, settings, soft_steps, hard_steps, **SETTINGS["optimizer"])
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
    tying = getattr(found.parts.method, "tying", None)
    if tying is not None:
        group = tying.groups[0]
        row["penalty"] = float(statistics.deviations(group)[1].sum()) / 2
        row["centers"] = group.centers.round(5).tolist()
        row["spreads"] = np.round(statistics.spreads(group), 6).tolist()
        row["changed"] = tying.changed
    return row


def mixture() -> dict[str, Any]:
    """The components of Soft Weight Sharing over its training, and how many values are left."""
    rows: list[dict[str, Any]] = []

    def watch(progress: Progress, found: Trained) -> None:
        soft = not found.parts.method.phase.is_last
        if progress.event == "step" and soft and progress.step % scaled(LOOK_EVERY) == 0:
            (own,) = found.parts.method.phases[0].mixtures.values()
            means, precisions, _ = own.components()
            spreads = np.sqrt(1 / precisions)
            row = {"step": progress.step, "centers": means.round(5).tolist()}
            rows.append(row | {"spreads": spreads.round(6).tolist()})

    found = trained(table_of(MIXTURE), watch=watch)
    assert found.state is not None
    return {"rows": rows, "errors": found.errors, "values_left": found.state.num_clusters}


def data(done: dict[str, Any]) -> dict[str, Any]:
    """The runs as they are."""
    return {"settings": SETTINGS | {"apt": shortened(APT, training.SHORTER)}, "runs": done}
