"""One run of a study: trained like a recipe, and measured around its phases.

Takes     a configuration, as the table in a TOML file.
Gives     `Trained`: the parts of the run and its errors; a `watch` can measure along the way.
Unaware   of which study it is for. Test images are evaluated only if asked for, and once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reefknot import TiedState
from reefknot.runs.batches import Batches
from reefknot.runs.config import make_config
from reefknot.runs.parts import Parts, build
from reefknot.runs.training import Progress, error_percent, train
from reefknot.zoo import NETWORKS

RECORDS = Path(__file__).parents[1] / "records"
SHORTER = 1  # the divisor of all numbers of steps, for a trial
SGD = {
    "name": "sgd",
    "lr": 0.05,
    "decay": "cosine",
    "options": {"momentum": 0.9, "fused": True},
}
_STEPS = ("soft_steps", "hard_steps", "refit_every", "prune_at")


@dataclass
class Trained:
    """A network after its training, and what was measured."""

    parts: Parts
    errors: dict[str, float | None] = field(default_factory=dict)
    state: TiedState | None = None

    @property
    def model(self) -> nn.Module:
        """The network as it is now."""
        return self.parts.model


Watch = Callable[[Progress, Trained], None]


def trained(
    table: Mapping[str, Any],
    *,
    test: bool = False,
    shorter: int = 1,
    watch: Watch | None = None,
    prepare: Callable[[Parts], None] | None = None,
) -> Trained:
    """Train as the table says. `watch` is called at every step and around every change of phase.

    `shorter` divides all numbers of steps, for the runs of a search.

    Errors: "soft" before weights are tied, "hardened" right after, "hard" at the end, on validation
    images; the first and the last also on test images, if asked ("test_soft", "test_hard").
    """
    config = make_config(shortened(table, SHORTER * shorter))
    parts = build(config)
    parts.method.attach(parts.optimizer)
    if prepare:
        prepare(parts)
    found = Trained(parts)
    batches = Batches(
        *parts.data.train, config.training.batch_size, config.seed, parts.data.augment
    )
    bf16 = config.training.bf16
    for progress in train(
        parts.model, parts.method, parts.optimizer, batches, config.plan, bf16=bf16
    ):
        if progress.event == "leaving":
            _measure(found, "soft", test)
        elif progress.event == "entered":
            found.errors["hardened"] = error_percent(parts.model, *parts.data.validation)
        if watch:
            watch(progress, found)
    found.state = parts.method.finish()
    _measure(found, "hard", test)
    return found


def _measure(found: Trained, when: str, test: bool) -> None:
    data = found.parts.data
    found.errors[when] = error_percent(found.model, *data.validation, exact=True)
    if test:
        assert data.test is not None
        found.errors[f"test_{when}"] = error_percent(found.model, *data.test, exact=True)


def shortened(table: Mapping[str, Any], divisor: int) -> dict[str, Any]:
    """The table of a shorter run: fewer steps, everything else as it is."""
    changed: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            changed[key] = shortened(value, divisor)
        elif key in _STEPS and value:
            changed[key] = max(1, value // divisor)
        else:
            changed[key] = value
    return changed


def scaled(steps: int) -> int:
    """This many steps, or fewer in a trial."""
    return max(1, steps // SHORTER)


@cache
def start_of(network: str, seed: int) -> Tensor:
    """All initial parameters of a run with this seed, as one vector."""
    torch.manual_seed(seed)
    return vector(NETWORKS[network]())


def parent_of(network: str, recipe: str) -> Path:
    """The file of a committed record with seed 0."""
    return next(RECORDS.glob(f"*_{network}_{recipe}_seed0/model.reef"))


def vector(model: nn.Module) -> Tensor:
    """A copy of all parameters as one vector."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def lenet_300_100(
    method: str,
    settings: Mapping[str, Any],
    soft_steps: int,
    hard_steps: int,
    *,
    seed: int = 0,
    **optimizer: Any,
) -> dict[str, Any]:
    """The table of a run of LeNet-300-100 on MNIST; Adadelta at a constant 1.0 by default."""
    return {
        "model": "lenet-300-100",
        "data": "mnist",
        "method": method,
        "seed": seed,
        "settings": dict(settings),
        "training": {"soft_steps": soft_steps, "hard_steps": hard_steps, "batch_size": 128},
        "optimizer": optimizer or {"name": "adadelta", "lr": 1.0},
    }
