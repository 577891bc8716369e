"""A run's configuration: TOML in, one frozen value out, all mistakes reported together.

Takes     the text of a TOML file, and overrides from the command line.
Gives     a `Config`, or a `ConfigError` with every mistake and the nearest known key.
Unaware   of data, models and training; it checks names, types and ranges only.
"""

import inspect
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import tomli_w
import torch

from reefknot.errors import ConfigError, did_you_mean
from reefknot.files import read_bytes
from reefknot.lab.baselines import BASELINE, METHODS
from reefknot.lab.runs.training import Decay, Plan
from reefknot.methods.settings import settings_of
from reefknot.phases import FROM_SCRATCH, TRAINED

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adadelta": torch.optim.Adadelta,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}

MAX_THREADS = 1024
SOFT_STEPS, HARD_STEPS = 60_000, 10_000  # the paper's


@dataclass(frozen=True)
class Training:
    """Steps, batch size, and how often to evaluate and save.

    `threads = 0` leaves torch's default: one per physical core, or OMP_NUM_THREADS.
    `progressive_resizing` are pairs of a share and a side length: up to that share of the steps,
    images have that many pixels a side. After the last pair they have their own size.
    """

    steps: int | None = None  # with a budget, whose phases share them
    soft_steps: int | None = None  # without a budget; 60,000 by default
    hard_steps: int | None = None  # without a budget; 10,000 by default
    batch_size: int = 128
    evaluate_every: int = 1_000
    checkpoint_every: int = 5_000
    threads: int = 0
    progressive_resizing: Sequence[tuple[float, int]] = field(default_factory=list)
    shrink: bool = False  # do not compute dead units: cheaper steps, other rounding
    bf16: bool = False  # compute in bfloat16 (torch.autocast); weights stay float32
    label_smoothing: float = 0.0  # the share of each label that all classes have in common
    keep_best: bool = False  # end with the measured state of the hard steps that errs least


@dataclass(frozen=True)
class Optimization:
    """The optimizer, its learning rate, and its other options under torch's own names.

    `weight_decay` among them is for matrices alone: not for biases and norms.
    `decay` is "phases" with a budget (the method's own schedule), otherwise "constant".
    """

    name: str = "adadelta"
    lr: float = 1.0
    hard_lr: float | None = None  # None: `lr`
    decay: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Distillation:
    """Teachers that soften the labels; without teachers, hard labels."""

    teachers: Sequence[str] = ()
    temperature: float = 4.0
    weight: float = 0.9


@dataclass(frozen=True)
class Config:
    """What to train, on what, and how."""

    model: str
    data: str
    method: str
    seed: int = 0
    start: str | None = None
    evaluate_test: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)  # ranges of entries, for a search alone
    training: Training = field(default_factory=Training)
    optimizer: Optimization = field(default_factory=Optimization)
    distillation: Distillation = field(default_factory=Distillation)

    @property
    def method_settings(self) -> dict[str, Any]:
        """The settings that the method is made with."""
        settings = dict(self.settings)
        if self._has_budget:
            settings["steps"] = self.training.steps
            settings.setdefault("begin", FROM_SCRATCH if self.start is None else TRAINED)
        return settings

    @property
    def _has_budget(self) -> bool:
        return self.training.steps is not None and self.method != BASELINE

    @property
    def plan(self) -> Plan:
        """The steps and learning rates of the phases."""
        training, optimizer = self.training, self.optimizer
        soft: int | None
        if training.steps is None:
            soft = SOFT_STEPS if training.soft_steps is None else training.soft_steps
            hard = HARD_STEPS if training.hard_steps is None else training.hard_steps
            steps, decay = soft + hard, optimizer.decay or "constant"
        else:
            steps, decay = training.steps, optimizer.decay or "phases"
            soft = None if self._has_budget else steps
            if decay == "phases" and not self._has_budget:
                decay = "cosine"  # a baseline has no phases
        return Plan(
            steps=steps,
            soft_steps=soft,
            lr=optimizer.lr,
            hard_lr=optimizer.lr if optimizer.hard_lr is None else optimizer.hard_lr,
            decay=decay,  # type: ignore[arg-type]  # checked when read
        )


def read_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in a file, with `key=value` overrides (dotted keys for tables).

    `start` and teachers are relative to the file's folder; in overrides, to the current folder.
    """
    try:
        table = tomllib.loads(read_bytes(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:  # syntax, UTF-8, a number of 5,000 digits
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    _anchor(table, path.parent)
    for override in overrides:
        _override(table, override)
    _anchor(table, Path())  # absolute paths stay as they are
    return make_config(table)


def _anchor(table: dict[str, Any], folder: Path) -> None:
    """Make the paths in a table absolute."""
    if isinstance(table.get("start"), str):
        table["start"] = str((folder / table["start"]).absolute())
    inner = table.get("distillation")
    if isinstance(inner, dict) and _is_texts(inner.get("teachers")):
        inner["teachers"] = [str((folder / t).absolute()) for t in inner["teachers"]]


def make_config(table: Mapping[str, Any]) -> Config:
    """The configuration in a table; raises one error that lists all mistakes."""
    mistakes: list[str] = []
    values = _checked(Config, table, "", mistakes)
    for key, kind in _TABLES.items():
        values[key] = kind(**_checked(kind, table.get(key, {}), f"{key}.", mistakes))
    mistakes += _training_mistakes(values["training"])
    mistakes += _schedule_mistakes(values["training"], values["optimizer"])
    mistakes += _resizing_mistakes(values["training"])
    mistakes += _distillation_mistakes(values["distillation"])
    if not -(2**63) <= values.get("seed", 0) < 2**64:
        mistakes.append(f"seed must be a number of 64 bits, found {values['seed']}")
    steps = values["training"].steps
    mistakes += _method_mistakes(values.get("method"), values.get("settings", {}), steps)
    mistakes += _optimizer_mistakes(values["optimizer"])
    if mistakes:
        raise ConfigError(*mistakes)
    return Config(**values)


def with_entries(config: Config, entries: Mapping[str, Any]) -> Config:
    """A configuration with other values of some entries, given by their dotted keys."""
    table = tomllib.loads(to_toml(config))
    for key, value in entries.items():
        _put(table, key, value)
    return make_config(table)


def to_toml(config: Config) -> str:
    """The configuration as TOML that reads back to itself."""
    table = _filled(asdict(config))
    if not config.distillation.teachers:
        del table["distillation"]
    return tomli_w.dumps(table)


def _filled(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table without unset entries and empty tables, because TOML has no null."""
    found = {k: _filled(v) if isinstance(v, Mapping) else v for k, v in table.items()}
    return {key: value for key, value in found.items() if value is not None and value != {}}


# -- checking -------------------------------------------------------------------------------

_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    Mapping: "a table",
    Sequence: "a list",
    type(None): "nothing",
}

_TABLES = {"training": Training, "optimizer": Optimization, "distillation": Distillation}


def _checked(kind: type, table: Any, prefix: str, mistakes: list[str]) -> dict[str, Any]:
    """The entries of a table that fit the fields of a dataclass; others are added to `mistakes`."""
    if not isinstance(table, Mapping):
        mistakes.append(f"{prefix.rstrip('.')} must be a table, found {table!r}")
        return {}
    known = {f.name: f for f in fields(kind)}
    values = {}
    for key, value in table.items():
        if key not in known:
            mistakes.append(f"unknown key {prefix + key!r}{nearest(key, known)}")
        elif kind is Config and key in _TABLES:
            continue  # a table of its own
        elif _fits(value, known[key].type):
            values[key] = float(value) if known[key].type is float else value
        else:
            wanted = " or ".join(_WORDS[t] for t in _types(known[key].type) if t is not type(None))
            mistakes.append(f"{prefix}{key} must be {wanted}, found {value!r}")
    for name, f in known.items():
        needed = f.default is MISSING and f.default_factory is MISSING
        if needed and name not in table:
            mistakes.append(f"{prefix}{name} is missing")
    return values


def _types(annotation: Any) -> tuple[Any, ...]:
    plain = get_args(annotation) if isinstance(annotation, type(int | None)) else (annotation,)
    return tuple(getattr(t, "__origin__", t) for t in plain)  # Mapping[str, Any] is a Mapping


def _fits(value: Any, annotation: Any) -> bool:
    types = _types(annotation)
    if isinstance(value, bool):
        return bool in types
    if isinstance(value, int) and float in types:
        return True
    if isinstance(value, str):
        return str in types  # and not a list of letters
    return isinstance(value, types)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


_AT_LEAST = {"batch_size": 1, "evaluate_every": 1, "checkpoint_every": 1, "steps": 1}
_AT_LEAST |= {"soft_steps": 0, "hard_steps": 0, "threads": 0}


def _training_mistakes(training: Training) -> Iterable[str]:
    parts = (training.soft_steps, training.hard_steps)
    if training.steps is not None and parts != (None, None):
        yield "training.steps is for a budget, soft_steps and hard_steps for the rest; choose one"
    if parts == (0, 0):
        yield "training.soft_steps and training.hard_steps are both 0: there is nothing to do"
    for key, least in _AT_LEAST.items():
        value = getattr(training, key)
        if value is not None and value < least:
            yield f"training.{key} must be at least {least}, found {value}"
    if training.threads > MAX_THREADS:
        yield f"training.threads must be at most {MAX_THREADS}, found {training.threads}"
    if training.keep_best and (training.steps is not None or training.hard_steps == 0):
        yield "training.keep_best chooses among hard steps; give training.hard_steps, and no steps"
    if not 0 <= (part := training.label_smoothing) < 1:
        yield f"training.label_smoothing must be at least 0 and below 1, found {part}"


def _schedule_mistakes(training: Training, optimizer: Optimization) -> Iterable[str]:
    for key in ("lr", "hard_lr"):
        value = getattr(optimizer, key)
        if value is not None and not 0 <= value < float("inf"):
            yield f"optimizer.{key} must be a number of at least 0, found {value}"
    if optimizer.hard_lr is not None and training.steps is not None:
        yield "optimizer.hard_lr goes with training.soft_steps and hard_steps, not with steps"
    if optimizer.decay == "phases" and training.steps is None:
        yield 'optimizer.decay = "phases" is the schedule of a budget, which needs training.steps'
    if optimizer.decay is not None and optimizer.decay not in get_args(Decay):
        decays = ", ".join(get_args(Decay))
        yield f"optimizer.decay must be one of {decays}, found {optimizer.decay!r}"


def _resizing_mistakes(training: Training) -> Iterable[str]:
    pairs, before = training.progressive_resizing, 0.0
    for pair in pairs:
        match pair:
            case [float(share), int(pixels)] if before < share < 1 and pixels > 0:
                before = share
            case _:
                yield (
                    "training.progressive_resizing must be pairs of a share of the steps and a "
                    f"number of pixels, as in [[0.2, 16], [0.5, 24]], shares growing and below 1, "
                    f"found {list(pairs)!r}"
                )
                return


def _distillation_mistakes(distillation: Distillation) -> Iterable[str]:
    if not _is_texts(distillation.teachers):
        yield f"distillation.teachers must be a list of paths, found {distillation.teachers!r}"
    if not 0 < distillation.temperature < float("inf"):
        yield f"distillation.temperature must be above 0, found {distillation.temperature}"
    if not 0 <= distillation.weight <= 1:
        yield f"distillation.weight must be from 0 to 1, found {distillation.weight}"


def _method_mistakes(name: Any, settings: Any, steps: int | None) -> Iterable[str]:
    if not isinstance(name, str) or not isinstance(settings, Mapping):
        return
    if name not in METHODS:
        yield f"unknown method {name!r}{nearest(name, METHODS)}"
        return
    known = {f.name for f in settings_of(METHODS[name])}
    allowed = known - {"steps"}  # which belongs to [training]
    for key in settings:
        if key == "steps" and key in known:
            yield "steps belongs to [training], not to [settings]"
        elif key not in allowed:
            yield f"{name} has no setting {key!r}{nearest(key, allowed)}"
    used = {key: value for key, value in settings.items() if key in allowed}
    if steps is not None and name != BASELINE:
        if "steps" in known:
            used["steps"] = steps
        else:
            yield f"{name} has no budget; give training.soft_steps and training.hard_steps"
    yield from METHODS[name].mistakes(used)


def _optimizer_mistakes(optimizer: Optimization) -> Iterable[str]:
    if optimizer.name not in OPTIMIZERS:
        yield f"unknown optimizer {optimizer.name!r}{nearest(optimizer.name, OPTIMIZERS)}"
        return
    known = inspect.signature(OPTIMIZERS[optimizer.name]).parameters
    allowed = known.keys() - {"params", "lr"}
    unknown = [key for key in optimizer.options if key not in allowed]
    for key in unknown:
        yield f"{optimizer.name} has no option {key!r}{nearest(key, allowed)}"
    if unknown:
        return
    try:  # torch checks the values itself, given something to optimize
        parameter = torch.zeros(1, requires_grad=True)
        parameter.grad = torch.ones(1)
        OPTIMIZERS[optimizer.name]([parameter], **optimizer.options).step()
    except Exception as error:
        yield f"optimizer.options do not suit {optimizer.name}: {error}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint: the most similar known name, or all of them."""
    choices = sorted(known)
    listed = f"known are {', '.join(choices)}" if choices else "there are none"
    return f"; {did_you_mean(name, choices) or listed}"


# -- overrides ------------------------------------------------------------------------------


def _override(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(f"--set takes key=value, found {override!r}")
    try:
        parsed = tomllib.loads(f"x = {text}")
    except (ValueError, RecursionError):
        parsed = {"x": text}  # a bare word is a text
    if parsed.keys() != {"x"}:
        raise ConfigError(f"--set takes one key=value, found {override!r}")
    try:
        _put(table, key.strip(), parsed["x"])
    except ConfigError as error:
        raise ConfigError(f"--set {error}") from error


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    """Set the entry of a dotted key."""
    *tables, last = key.split(".")
    for name in tables:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{key}: {name!r} is not a table")
        table = inner
    table[last] = value
