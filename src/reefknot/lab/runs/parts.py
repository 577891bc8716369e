"""The parts of a run: model, method, optimizer and data; made, saved, and restored.

Takes     a `Config`, or a checkpoint of parts like these.
Gives     `Parts`: model, method, optimizer, data and labels, which fit each other.
Unaware   of folders, of the loop, and of which method it has.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn
from torch.optim import Optimizer

from reefknot.batchnorm import is_folded, update_batchnorm
from reefknot.checkpoint import read_checkpoint, unlike, write_checkpoint
from reefknot.errors import ConfigError, FormatError, ReefknotError, blamed_on
from reefknot.files import read_bytes
from reefknot.lab.baselines import METHODS
from reefknot.lab.runs.batches import Relabel, scaled_down, soft_labels
from reefknot.lab.runs.config import MAX_THREADS, OPTIMIZERS, Config
from reefknot.lab.runs.journal import Journal
from reefknot.lab.runs.training import Plan
from reefknot.lab.zoo import DATASETS, NETWORKS, Data, Split, as_data
from reefknot.loading import load
from reefknot.methods import Method
from reefknot.reference import resolve

START_INPUTS = 2_048  # from which BatchNorm of a start for inference gets statistics


@dataclass
class Parts:
    """Everything that a checkpoint must hold, and the data."""

    model: nn.Module
    method: Method
    optimizer: Optimizer
    data: Data
    labels: Tensor  # the training labels: those of the data, or soft ones
    relabel: Relabel | None  # makes soft labels for each batch, if inputs are augmented


def build(config: Config) -> Parts:
    """Make everything that the configuration names, with random weights or the parent's."""
    model, data = network_and_data(config)
    teachers = []
    for path in config.distillation.teachers:
        teachers.append(copy.deepcopy(model))
        _load_parent(teachers[-1], Path(path), "distillation.teachers")
    labels, relabel = data.train.labels, None
    if teachers:
        soften = partial(
            soft_labels,
            teachers,
            temperature=config.distillation.temperature,
            weight=config.distillation.weight,
            bf16=config.training.bf16,
        )
        if data.augment is None:
            labels = soften(*data.train)
        else:
            relabel = soften
    example = data.train.inputs[:1]
    method = METHODS[config.method](model, example_input=example, **config.method_settings)
    groups = method.parameter_groups()
    optimizer = OPTIMIZERS[config.optimizer.name](
        _matrices_apart(groups) if "weight_decay" in config.optimizer.options else groups,
        lr=config.optimizer.lr,  # type: ignore[call-arg]  # every optimizer of the table has it
        **config.optimizer.options,
    )
    return Parts(model, method, optimizer, data, labels, relabel)


def _matrices_apart(groups: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Parameter groups split, so that biases, scales and shifts have no weight decay."""
    for group in groups:
        vectors = [parameter for parameter in group["params"] if parameter.dim() < 2]
        matrices = [parameter for parameter in group["params"] if parameter.dim() >= 2]
        if matrices:
            yield group | {"params": matrices}
        if vectors:
            yield group | {"params": vectors, "weight_decay": 0.0}


def network_and_data(config: Config) -> tuple[nn.Module, Data]:
    """Those that the configuration names; the network has random weights or its parent's."""
    torch.manual_seed(config.seed)  # data that is drawn must be the same after a resume
    make_data, make_model = _resolved(config)
    with blamed_on(f"the data {config.data!r}"):
        made = make_data()
    data = as_data(made, config.data)
    torch.manual_seed(config.seed)
    with blamed_on(f"the network {config.model!r}"):
        model = make_model()
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{config.model} gave a {type(model).__name__}; a torch module was expected"
        )
    _check_network(config, model, data)
    if config.start is not None:
        _load_parent(model, Path(config.start), "start")
        if any(map(is_folded, model.modules())):  # a file for inference: statistics to train with
            some = data.train.inputs[:START_INPUTS]
            update_batchnorm(model, some.split(config.training.batch_size))
    return model, data


def _resolved(config: Config) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The functions that make data and model; one error lists all mistakes in their names."""
    found: list[Callable[[], Any]] = []
    mistakes: list[str] = []
    for reference, known, kind in (
        (config.data, DATASETS, "data set"),
        (config.model, NETWORKS, "network"),
    ):
        try:
            found.append(resolve(reference, known, kind))
        except ConfigError as error:
            mistakes += error.mistakes
    if mistakes:
        raise ConfigError(*mistakes)
    return found[0], found[1]


def _check_network(config: Config, model: nn.Module, data: Data) -> None:
    """Refuse a network that cannot classify these examples, before training starts."""
    some = data.validation.inputs[:2]
    least = 1 + max(int(part.labels.max()) for part in _looked_at(config, data))
    for inputs in (some, *_resized(config, some)):
        what = f"the network {config.model!r} on inputs of shape {tuple(inputs.shape)}"
        was_training = model.training
        model.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]), blamed_on(what):
            outputs = model(inputs)
        model.train(was_training)
        if not isinstance(outputs, Tensor):
            found = f"a {type(outputs).__name__}"
        elif outputs.dim() == 2 and len(outputs) == len(some) and outputs.shape[1] >= least:
            continue
        else:
            found = f"outputs of shape {tuple(outputs.shape)}"
        raise ConfigError(
            f"{what} gave {found}; expected ({len(some)}, classes) with at least {least} classes, "
            f"since the largest label of {config.data!r} is {least - 1}"
        )


def _resized(config: Config, inputs: Tensor) -> Iterator[Tensor]:
    """Examples as they are at each size of `progressive_resizing`."""
    for _, pixels in config.training.progressive_resizing:
        if inputs.dim() != 4 or pixels > min(inputs.shape[2:]):
            raise ConfigError(
                f"training.progressive_resizing to {pixels} pixels needs images of at least that "
                f"size, found examples of shape {tuple(inputs.shape[1:])} in {config.data!r}"
            )
        yield scaled_down(inputs, pixels)


def _looked_at(config: Config, data: Data) -> Iterator[Split]:
    """The splits of the data that this run may use."""
    yield from (data.train, data.validation)
    if data.test is not None and config.evaluate_test:
        yield data.test


def _load_parent(model: nn.Module, path: Path, key: str) -> None:
    try:
        parent = load(path) if path.suffix == ".reef" else load_safetensors(read_bytes(path))
        model.load_state_dict(parent)
    except SafetensorError as error:
        raise ConfigError(f"{key}: {path} is not a safetensors file: {error}") from error
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{key}: {path} does not fit the model: {reason}") from error


# -- saved and restored ----------------------------------------------------------------------

_BEST = {"step": int, "val_error": float, "model": dict, "method": dict}


def misfits(saved: dict[str, Any], model: nn.Module, where: str) -> Iterator[str]:
    """Where saved tensors of a model differ from its own, or are not finite."""
    yield from unlike(saved, dict(model.state_dict()), where)
    for name, _ in model.named_parameters():
        if name in saved and not bool(saved[name].isfinite().all()):
            yield f"{name!r} of {where} is not finite"


class Best:
    """The state to end with: method and model, statistics of BatchNorm included; none at first."""

    def __init__(self, saved: dict[str, Any]) -> None:
        self._kept = saved

    @staticmethod
    def mistakes(saved: dict[str, Any], model: nn.Module) -> Iterator[str]:
        """Where a saved state does not fit the model."""
        if not saved:
            return
        if {key: type(value) for key, value in saved.items()} != _BEST:
            yield "its best state has other entries than a run saves"
            return
        if not 0 <= saved["val_error"] <= 100:
            yield "the error of its best state is no percentage"
        yield from misfits(saved["model"], model, "the best model")

    @property
    def step(self) -> int | None:
        """After how many steps it was."""
        return self._kept.get("step")

    def consider(self, step: int, val_error: float, model: nn.Module, method: Method) -> None:
        """Keep this state if it is better than all before it."""
        if val_error < self._kept.get("val_error", math.inf):
            state = {"model": dict(model.state_dict()), "method": method.state_dict()}
            self._kept = {"step": step, "val_error": val_error, **copy.deepcopy(state)}

    def restore(self, model: nn.Module, method: Method) -> None:
        """Return to the best state, if there is one."""
        if self._kept:
            model.load_state_dict(self._kept["model"])
            method.load_state_dict(self._kept["method"])

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint saves of it."""
        return self._kept


_SAVED = {
    "step": int,
    "threads": int,
    "model": dict,
    "method": dict,
    "optimizer": dict,
    "random": Tensor,
    "journal": dict,
    "best": dict,
}


def save(path: Path, step: int, parts: Parts, journal: Journal, best: Best) -> None:
    """Write everything that the steps to come depend on, and the best state so far."""
    write_checkpoint(
        path,
        {
            "step": step,
            "threads": torch.get_num_threads(),
            "model": dict(parts.model.state_dict()),
            "method": parts.method.state_dict(),
            # Parameter groups come from the configuration.
            "optimizer": parts.optimizer.state_dict()["state"],
            "random": torch.get_rng_state(),
            "journal": journal.state_dict(),
            "best": best.state_dict(),
        },
    )


def read_saved(path: Path, plan: Plan) -> dict[str, Any]:
    """What `save` has written; everything that needs no network is checked."""
    saved = read_checkpoint(path)
    for mistake in _saved_mistakes(saved, plan):
        raise FormatError(f"{path} does not fit this run: {mistake}")
    return saved


def _saved_mistakes(saved: Any, plan: Plan) -> Iterator[str]:
    if not isinstance(saved, dict) or {k: type(v) for k, v in saved.items()} != _SAVED:
        yield "it has other entries than a run saves"
        return
    step, threads = saved["step"], saved["threads"]
    if not 0 < step <= plan.steps:
        yield f"it is of step {step:,}, and the run has {plan.steps:,}"
    if not 0 < threads <= MAX_THREADS:
        yield f"it is of {threads} threads, expected 1 to {MAX_THREADS}"
    expected = {"step": step}
    if plan.soft_steps is not None:
        expected["phase"] = int(step > plan.soft_steps)
    for key, value in expected.items():
        found = saved["method"].get(key)
        if type(found) is not int or found != value:
            yield f"the method's {key!r} is {found!r}, expected {value} at step {step:,}"
    yield from unlike(saved["random"], torch.get_rng_state(), "the random state")
    yield from Journal.mistakes(saved["journal"])


def restore(path: Path, saved: dict[str, Any], parts: Parts) -> None:
    """Restore model, method, optimizer and random state; the best state is tried on them first."""
    for mistake in _misfits(saved, parts):
        raise FormatError(f"{path} does not fit this run: {mistake}")
    groups = parts.optimizer.state_dict()["param_groups"]
    try:
        Best(saved["best"]).restore(parts.model, parts.method)
        parts.model.load_state_dict(saved["model"])
        parts.method.load_state_dict(saved["method"])
        parts.optimizer.load_state_dict({"state": saved["optimizer"], "param_groups": groups})
        torch.set_rng_state(saved["random"])
    except (ReefknotError, RuntimeError) as error:  # RuntimeError: set_rng_state
        reason = " ".join(str(error).split())
        raise FormatError(f"{path} does not fit this run: {reason}") from error


def _misfits(saved: dict[str, Any], parts: Parts) -> Iterator[str]:
    """Where the tensors of model and optimizer differ from the saved ones."""
    yield from Best.mistakes(saved["best"], parts.model)
    yield from misfits(saved["model"], parts.model, "the model")
    found, expected = saved["optimizer"], _stepped_state(parts.optimizer)
    for key in found.keys() ^ expected.keys():
        # A parameter without a gradient has no state, unless the optimizer makes it at once.
        if key in found or key in parts.optimizer.state_dict()["state"]:
            yield f"the optimizer has {'an unknown' if key in found else 'no'} parameter {key!r}"
    for key in found:
        yield from unlike(found[key], expected.get(key), f"the optimizer's state {key!r}")


def _stepped_state(optimizer: Optimizer) -> dict[int, Any]:
    """The state that an optimizer like this has after a step."""
    probe = copy.deepcopy(optimizer)
    for group in probe.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    probe.step()
    return probe.state_dict()["state"]
