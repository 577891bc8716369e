"""What four penalties leave of the first layer of LeNet-300-100, from one start.

Takes     sparse APT: the network of the table's row, seed 0, from its record. L2, L1 and APT (K =
          8) from the same start, with that row's optimizer, batches and steps; L2 and L1 only its
          soft part. Their strengths are those whose validation error is nearest to the row's.
Gives     the data of figures 9 (live pixels) and 10 (300 small images).
Paper     section A.2.2. There |w| < 1e-3 counts as zero under L1 and L2, and here too.
"""

import base64
import zlib
from typing import Any

import numpy as np

import reefknot
from experiments.studies.training import ROW, Trained, parent_of, table_of, trained
from reefknot.errors import DivergedError
from reefknot.lab.report import read_record
from reefknot.lab.runs.training import Progress

MINUTES = 3.5
NETWORK = "lenet-300-100"
SETTINGS: dict[str, Any] = {
    "row": ROW,
    "seeds": 1,
    "zero": 1e-3,  # below it a weight counts as zero
    "strengths": {
        "l2": [1e-5, 1e-4, 1e-3],
        "l1": [1e-5, 3e-5, 1e-4],
        "apt": [1e-6, 1e-5, 1e-4],
    },
}
SPAN, LEVELS = 0.3, 5  # of the pictures: five steps to either side, up to the paper's 0.3
METHODS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "l2": ("l2", "l2_strength", {}),
    "l1": ("l1_threshold", "l1_strength", {}),
    "apt": ("apt", "tying_strength", {"num_clusters": 8}),
}


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """The row, a search for each penalty, and the run with the strength that it found."""
    found: dict[str, Any] = {"sparse_apt": {"name": "sparse_apt", "strength": None, "test": True}}
    for name, strengths in SETTINGS["strengths"].items():
        search = {
            f"{name}-search-{s:g}": {"name": name, "strength": s, "test": False} for s in strengths
        }
        found |= search
        if done.keys() >= {"sparse_apt", *search}:
            aim = done["sparse_apt"]["val_error"]
            best = nearest([done[key] for key in search], aim)
            found[name] = {"name": name, "strength": best["strength"], "test": True}
    return found


def nearest(search: list[dict[str, Any]], aim: float) -> dict[str, Any]:
    """The run whose validation error is nearest to `aim`; of equal ones, the strongest penalty."""
    ended = [row for row in search if row["val_error"] is not None]
    return min(ended, key=lambda row: (abs(row["val_error"] - aim), -row["strength"]))


def measure(name: str, strength: float | None, test: bool) -> dict[str, Any]:
    """One run: its errors, and if it is not of the search, its first layer."""
    if name == "sparse_apt":
        file = parent_of(NETWORK, ROW)
        record = read_record(file.parent)
        layer = reefknot.load(file, names=["fc1.weight"])["fc1.weight"].numpy()
        return described(layer) | {key: record[key] for key in ("val_error", "test_error")}
    row = {"strength": strength}
    layer = np.zeros((0, 0))

    def watch(progress: Progress, found: Trained) -> None:
        nonlocal layer
        if progress.event == "leaving":
            layer = found.model.fc1.weight.detach().numpy().copy()

    table = penalised(name, strength)
    ties = bool(table["training"]["hard_steps"])
    try:
        found = trained(table, test=test, watch=watch)
    except DivergedError:
        return row | {"val_error": None}
    when = "hard" if ties else "soft"
    row["val_error"] = found.errors[when]
    if not test:
        return row
    layer = found.model.fc1.weight.detach().numpy() if ties else layer
    return row | {"test_error": found.errors[f"test_{when}"]} | described(layer)


def penalised(name: str, strength: float | None) -> dict[str, Any]:
    """The table of the row, with another penalty."""
    method, key, others = METHODS[name]
    table = table_of(parent_of(NETWORK, ROW).with_name("config.toml"))
    hard_steps = table["training"]["hard_steps"] if name == "apt" else 0
    return table | {
        "method": method,
        "settings": {key: strength, **others},
        "training": table["training"] | {"hard_steps": hard_steps},
    }


def described(layer: np.ndarray) -> dict[str, Any]:
    """What figures 9 and 10 show."""
    alive = np.abs(layer) >= SETTINGS["zero"]
    return {
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
    """The four networks, and what the search found."""
    steps = table_of(parent_of(NETWORK, ROW).with_name("config.toml"))["training"]
    settings = SETTINGS | {key: steps[key] for key in ("soft_steps", "hard_steps", "batch_size")}
    runs = {name: done[name] for name in (*METHODS, "sparse_apt") if name in done}
    search = {name: row for name, row in done.items() if name not in runs}
    return {"settings": settings, "runs": runs, "search": search}
