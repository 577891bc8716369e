"""What four penalties leave of the first layer of LeNet-300-100, from one start.

Takes     L2, L1, APT (K = 8) and sparse APT (K = 17); 20,000 soft steps of SGD, and 5,000 hard
          ones for the two that tie; one seed.
Gives     the data of figures 9 (live pixels) and 10 (300 small images).
Paper     section A.2.2. There |w| < 1e-3 counts as zero under L1 and L2, and here too.
"""

import base64
import zlib
from typing import Any

import numpy as np

from experiments.studies.pareto import SGD
from experiments.studies.training import lenet_300_100, trained

MINUTES = 1.0
ZERO = 1e-3  # below it a weight counts as zero
SPAN, LEVELS = 0.3, 5  # of the pictures: five steps to either side, up to the paper's 0.3
METHODS = {
    "l2": ("l2", {"l2_strength": 3e-4}, 0),
    "l1": ("l1_threshold", {"l1_strength": 1e-4}, 0),
    "apt": ("apt", {"num_clusters": 8, "tying_strength": 1e-3}, 5_000),
    "sparse_apt": (
        "sparse_apt",
        {"num_clusters": 17, "tying_strength": 1e-3, "l1_strength": 1e-4},
        5_000,
    ),
}


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """One run for each penalty."""
    return {name: {"name": name} for name in METHODS}


def measure(name: str) -> dict[str, Any]:
    """The first layer at the end of training; before hardening if the method is only a penalty."""
    method, settings, hard_steps = METHODS[name]
    layer = np.zeros((0, 0))

    def watch(progress: Any, found: Any) -> None:
        nonlocal layer
        if progress.event == "leaving":
            layer = found.model.fc1.weight.detach().numpy().copy()

    table = lenet_300_100(method, settings, 20_000, hard_steps, **SGD)
    found = trained(table, test=True, watch=watch)
    if hard_steps:
        layer = found.model.fc1.weight.detach().numpy()
    alive = np.abs(layer) >= ZERO
    when = "hard" if hard_steps else "soft"
    return {
        "val_error": found.errors[when],
        "test_error": found.errors[f"test_{when}"],
        "density": float(alive.mean()),
        "live_pixels": int(alive.any(0).sum()),
        "live_units": int(alive.any(1).sum()),
        "connections": alive.sum(0).tolist(),  # of each pixel
        "layer": packed(layer),
    }


def packed(layer: np.ndarray) -> str:
    """Each weight as one of eleven levels, which is what the picture shows."""
    levels = np.clip(np.round(layer / SPAN * LEVELS), -LEVELS, LEVELS).astype(np.int8)
    return base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode()


def unpacked(text: str, shape: tuple[int, ...]) -> np.ndarray:
    """The levels, from -1 to 1."""
    levels = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.int8)
    return levels.reshape(shape) / LEVELS


def data(done: dict[str, Any]) -> dict[str, Any]:
    """The four runs."""
    return done
