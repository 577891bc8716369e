"""A run's configuration: TOML in, one frozen value out, all mistakes reported together.

Takes     the text of a TOML file, and overrides from the command line.
Gives     a `Config`, or a `ConfigError` with every mistake and the nearest known key.
Unaware   of data, models and training; it looks at names and types only.
"""

import difflib
import inspect
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import torch

from reefknot.errors import ConfigError
from reefknot.files import read_bytes
from reefknot.methods import METHODS
from reefknot.runs.training import Decay, Plan

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


@dataclass(frozen=True)
class Training:
    """How long, in what portions, and how often to look.

    `threads = 0` leaves torch's default: one for each physical core, or OMP_NUM_THREADS.
    """

    soft_steps: int = 60_000
    hard_steps: int = 10_000
    batch_size: int = 128
    evaluate_every: int = 1_000
    checkpoint_every: int = 5_000
    threads: int = 0


@dataclass(frozen=True)
class Optimization:
    """The optimizer, its rate in each phase, and its other options under torch's own names."""

    name: str = "adadelta"
    rate: float = 1.0
    hard_rate: float | None = None  # as `rate`
    decay: str = "constant"
    restarts: Sequence[int] = ()  # steps at which the decay begins anew
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Distillation:
    """Trained networks whose opinions join the labels; without teachers the labels stand alone."""

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
    training: Training = field(default_factory=Training)
    optimizer: Optimization = field(default_factory=Optimization)
    distillation: Distillation = field(default_factory=Distillation)

    @property
    def plan(self) -> Plan:
        """The steps and rates of the two phases."""
        hard_rate = self.optimizer.hard_rate
        return Plan(
            soft_steps=self.training.soft_steps,
            hard_steps=self.training.hard_steps,
            rate=self.optimizer.rate,
            hard_rate=self.optimizer.rate if hard_rate is None else hard_rate,
            decay=self.optimizer.decay,  # type: ignore[arg-type]  # checked when read
            restarts=tuple(self.optimizer.restarts),
        )


def read_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in a file, with `key=value` overrides (dotted keys for tables).

    `start` and teachers are relative to the file's folder; overrides of them, to the current one.
    """
    try:
        table = tomllib.loads(read_bytes(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:  # of syntax, of UTF-8, a number of 5,000 digits
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    _anchor(table, path.parent)
    for override in overrides:
        _override(table, override)
    _anchor(table, Path())  # what is absolute already stays as it is
    return make_config(table)


def _anchor(table: dict[str, Any], folder: Path) -> None:
    """Make the paths in a table absolute."""
    if isinstance(table.get("start"), str):
        table["start"] = str((folder / table["start"]).absolute())
    inner = table.get("distillation")
    if isinstance(inner, dict) and _is_texts(inner.get("teachers")):
        inner["teachers"] = [str((folder / t).absolute()) for t in inner["teachers"]]


def make_config(table: Mapping[str, Any]) -> Config:
    """The configuration that a table means; raises one error with all that is wrong in it."""
    mistakes: list[str] = []
    values = _checked(Config, table, "", mistakes)
    values["training"] = Training(
        **_checked(Training, table.get("training", {}), "training.", mistakes)
    )
    values["optimizer"] = Optimization(
        **_checked(Optimization, table.get("optimizer", {}), "optimizer.", mistakes)
    )
    values["distillation"] = Distillation(
        **_checked(Distillation, table.get("distillation", {}), "distillation.", mistakes)
    )
    mistakes += _range_mistakes(values["training"], values["optimizer"])
    mistakes += _distillation_mistakes(values["distillation"])
    if not -(2**63) <= values.get("seed", 0) < 2**64:
        mistakes.append(f"seed must be a number of 64 bits, found {values['seed']}")
    mistakes += _method_mistakes(values.get("method"), values.get("settings", {}))
    mistakes += _optimizer_mistakes(values["optimizer"])
    if mistakes:
        raise ConfigError(*mistakes)
    return Config(**values)


def to_toml(config: Config) -> str:
    """The configuration as TOML that reads back to itself."""
    table = asdict(config)
    if not config.distillation.teachers:
        del table["distillation"]
    if not config.optimizer.restarts:
        del table["optimizer"]["restarts"]
    return "\n".join(_toml_lines(table, "")) + "\n"


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


_TABLES = (Training, Optimization, Distillation)


def _checked(kind: type, table: Any, prefix: str, mistakes: list[str]) -> dict[str, Any]:
    """The entries of a table that fit the fields of a dataclass; the others become mistakes."""
    if not isinstance(table, Mapping):
        mistakes.append(f"{prefix.rstrip('.')} must be a table, found {table!r}")
        return {}
    known = {f.name: f for f in fields(kind)}
    values = {}
    for key, value in table.items():
        if key not in known:
            mistakes.append(f"unknown key {prefix + key!r}{nearest(key, known)}")
        elif isinstance(known[key].type, type) and known[key].type in _TABLES:
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


def _range_mistakes(training: Training, optimizer: Optimization) -> Iterable[str]:
    if training.soft_steps + training.hard_steps < 1:
        yield "training.soft_steps and training.hard_steps are both 0: there is nothing to do"
    if training.threads > MAX_THREADS:
        yield f"training.threads must be at most {MAX_THREADS}, found {training.threads}"
    for key in ("soft_steps", "hard_steps", "threads"):
        if getattr(training, key) < 0:
            yield f"training.{key} must be at least 0, found {getattr(training, key)}"
    for key in ("batch_size", "evaluate_every", "checkpoint_every"):
        if getattr(training, key) < 1:
            yield f"training.{key} must be at least 1, found {getattr(training, key)}"
    for key in ("rate", "hard_rate"):
        value = getattr(optimizer, key)
        if value is not None and not 0 <= value < float("inf"):
            yield f"optimizer.{key} must be a number of at least 0, found {value}"
    steps = training.soft_steps + training.hard_steps
    for step in optimizer.restarts:
        if isinstance(step, bool) or not isinstance(step, int) or not 0 < step < steps:
            yield f"optimizer.restarts must be steps between 0 and {steps}, found {step!r}"
    if optimizer.decay not in get_args(Decay):
        decays = ", ".join(get_args(Decay))
        yield f"optimizer.decay must be one of {decays}, found {optimizer.decay!r}"


def _distillation_mistakes(distillation: Distillation) -> Iterable[str]:
    if not _is_texts(distillation.teachers):
        yield f"distillation.teachers must be a list of paths, found {distillation.teachers!r}"
    if not 0 < distillation.temperature < float("inf"):
        yield f"distillation.temperature must be above 0, found {distillation.temperature}"
    if not 0 <= distillation.weight <= 1:
        yield f"distillation.weight must be from 0 to 1, found {distillation.weight}"


def _method_mistakes(name: Any, settings: Any) -> Iterable[str]:
    if not isinstance(name, str) or not isinstance(settings, Mapping):
        return
    if name not in METHODS:
        yield f"unknown method {name!r}{nearest(name, METHODS)}"
        return
    allowed = _keywords(METHODS[name]) - {"model"}
    for key in settings:
        if key not in allowed:
            yield f"{name} has no setting {key!r}{nearest(key, allowed)}"
    yield from METHODS[name].mistakes({k: v for k, v in settings.items() if k in allowed})


def _optimizer_mistakes(optimizer: Optimization) -> Iterable[str]:
    if optimizer.name not in OPTIMIZERS:
        yield f"unknown optimizer {optimizer.name!r}{nearest(optimizer.name, OPTIMIZERS)}"
        return
    allowed = _keywords(OPTIMIZERS[optimizer.name]) - {"params", "lr"}
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


def _keywords(kind: type) -> set[str]:
    return set(inspect.signature(kind).parameters)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that is most like this one, or at all of them."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, 1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(choices)}" if choices else "; there are none"


# -- overrides and writing ------------------------------------------------------------------


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
    value = parsed["x"]
    *tables, last = key.strip().split(".")
    for name in tables:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {key}: {name!r} is not a table")
        table = inner
    table[last] = value


def _toml_lines(table: Mapping[str, Any], prefix: str) -> Iterable[str]:
    inner = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner[key] = value
        elif value is not None:
            yield f"{_toml_key(key)} = {_toml_value(value)}"
    for key, value in inner.items():
        if value:
            yield f"\n[{prefix}{_toml_key(key)}]"
            yield from _toml_lines(value, f"{prefix}{_toml_key(key)}.")


def _toml_key(key: str) -> str:
    bare = key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key)
    return key if bare else _toml_value(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        special = {'"', "\\", "\x7f"}
        safe = (f"\\u{ord(c):04x}" if c < " " or c in special else c for c in value)
        return f'"{"".join(safe)}"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(v) for v in value) + "]"
    return repr(value)
