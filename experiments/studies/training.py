"""One run of a study: trained like a recipe, and measured around its phases.

Takes     a configuration, as the table in a TOML file.
Gives     `Trained`: the parts of the run and its errors; a `watch` can measure along the way.
Unaware   of which study it is for. Test images are evaluated only if asked for, and once.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from reefknot import TiedState
from reefknot.lab.runs.batches import Batches
from reefknot.lab.runs.config import Config, make_config, read_config, to_toml
from reefknot.lab.runs.parts import Parts, build
from reefknot.lab.runs.training import Plan, Progress, error_percent, train
from reefknot.lab.zoo import NETWORKS

EXPERIMENTS = Path(__file__).parents[1]
RECORDS = EXPERIMENTS / "records"
ROW = "sparse_apt-paper"  # the recipe of sparse APT's rows in the paper's table, K = 17
SHORTER = 1  # the divisor of all numbers of steps, for a trial
SGD = {
    "name": "sgd",
    "lr": 0.05,
    "decay": "cosine",
    "options": {"momentum": 0.9, "fused": True},
}
# Convergence: the loss on the first `looked_at` validation images is measured after every `every`
# steps; decay = "plateau" halves the learning rate when ten of these in a row are no better than
# the best before, and with the last of so many `halvings` the part of the training is over.
FLAT: dict[str, int] = {"every": 200, "looked_at": 2_000, "halvings": 4}
_STEPS = ("soft_steps", "hard_steps", "refit_every", "prune_at")


@dataclass
class Trained:
    """A network after its training, and what was measured."""

    parts: Parts
    errors: dict[str, float | None] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)  # of the soft and of the hard part
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
    until_flat: bool = False,
    watch: Watch | None = None,
    prepare: Callable[[Parts], None] | None = None,
) -> Trained:
    """Train as the table says. `watch` is called at every step and around every change of phase.

    `shorter` divides all numbers of steps, for the runs of a search. `until_flat` ends each part of
    the training when it has converged (`FLAT`), at the latest after its steps.

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
    every = max(1, scaled(FLAT["every"]) // shorter) if until_flat else None
    for progress in _training(parts, config, batches, every):
        if progress.event == "step":
            soft = found.steps.get("soft", 0) if parts.method.phase.is_last else 0
            found.steps["hard" if parts.method.phase.is_last else "soft"] = progress.step - soft
        elif progress.event == "leaving":
            _measure(found, "soft", test)
        elif progress.event == "entered":
            found.errors["hardened"] = error_percent(parts.model, *parts.data.validation)
        if watch:
            watch(progress, found)
    found.state = parts.method.finish()
    _measure(found, "hard", test)
    return found


def _training(
    parts: Parts, config: Config, batches: Batches, every: int | None
) -> Iterator[Progress]:
    """The training; with `every`, the number of steps between two looks, until it has converged."""
    plan, step, measured = config.plan, 0, list[tuple[int, float]]()
    model, method = parts.model, parts.method
    least = 2.0 ** -FLAT["halvings"]
    while True:
        for progress in train(
            model, method, parts.optimizer, batches, plan,
            step=step, bf16=config.training.bf16, measured=measured,
        ):  # fmt: skip
            yield progress
            step = progress.step
            ends = step in (plan.soft_steps, plan.steps)
            if progress.event != "step" or ends or every is None or step % every:
                continue
            measured.append((step, validation_loss(parts)))
            top = plan.hard_lr if method.phase.is_last else plan.lr
            if plan.lr_at(step, method, measured) <= top * least:
                plan = _over_at(step, plan, is_hard=method.phase.is_last)
                break
        else:
            return


def _over_at(step: int, plan: Plan, *, is_hard: bool) -> Plan:
    """The plan whose soft part, or whose hard part, is over at this step."""
    if is_hard or plan.soft_steps is None:
        return replace(plan, steps=step)
    return replace(plan, steps=plan.steps - plan.soft_steps + step, soft_steps=step)


def validation_loss(parts: Parts) -> float:
    """The mean loss on the validation images that decide about convergence."""
    images, labels = (part[: FLAT["looked_at"]] for part in parts.data.validation)
    parts.model.eval()
    with torch.no_grad():
        pairs = zip(images.split(500), labels.split(500), strict=True)
        total = sum(float(cross_entropy(parts.model(x), y, reduction="sum")) for x, y in pairs)
    parts.model.train()
    return total / len(labels)


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


def parent_of(network: str, recipe: str, seed: int = 0) -> Path:
    """The file of a committed record."""
    return next(RECORDS.glob(f"*_{network}_{recipe}_seed{seed}/model.reef"))


def table_of(path: Path) -> dict[str, Any]:
    """The table in a recipe or in a record's configuration, its paths absolute."""
    return tomllib.loads(to_toml(read_config(path)))


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
