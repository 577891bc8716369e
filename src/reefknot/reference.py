"""From a name in a configuration to the function it means.

Takes     a name we know, or "package.module:function" for a user's own.
Gives     the function; a mistake is a `ConfigError` that suggests the nearest name.
Unaware   of what the function does: the same code serves networks and data sets.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, cast

from reefknot.errors import ConfigError, did_you_mean

T = TypeVar("T")


class Input(NamedTuple):
    """The shape of one example, and how the pixels of its data were normalised.

    An input is (pixel - mean) / deviation, the statistics of the training part (`data.split`).
    Pixels go from 0 to `full`.
    """

    shape: tuple[int, ...]
    mean: float | None = None
    deviation: float | None = None
    full: float = 255.0


def named_networks() -> tuple[dict[str, Callable[[], Any]], dict[str, Input]]:
    """Networks that commands know by name, and their inputs.

    They are the tables NETWORKS and INPUTS of each module that a package has named in the group
    `reefknot.networks` of its entry points.
    """
    modules = [entry.load() for entry in entry_points(group="reefknot.networks")]
    makers = {name: make for module in modules for name, make in module.NETWORKS.items()}
    return makers, {name: of for module in modules for name, of in module.INPUTS.items()}


def resolve(reference: str, table: Mapping[str, T], kind: str) -> T:
    """The entry of `table` called `reference`, or the function "package.module:function".

    Modules are looked for in the current folder first, as `python -m` does; importing one runs it.

    Args:
        reference: what the configuration says.
        table: the names we know, such as `NETWORKS`.
        kind: what messages call it: "network", "data set".

    >>> resolve("one", {"one": 1, "two": 2}, "number")
    1
    """
    if reference in table:
        return table[reference]
    module_name, colon, name = reference.partition(":")
    if not colon:
        raise ConfigError(
            f"unknown {kind} {reference!r}{_nearest(reference, table)}; known are "
            f"{', '.join(table)}, and your own as 'package.module:function'"
        )
    if not all(word.isidentifier() for word in (*module_name.split("."), name)):
        raise ConfigError(
            f"{kind} {reference!r} is not of the form 'package.module:function'; "
            "for folder/file.py write 'folder.file:function'"
        )
    module = _import(module_name, f"{kind} {reference!r}")
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise ConfigError(
            f"{kind} {reference!r}: module {module_name!r} ({_place(module)}) has no "
            f"{name!r}{_nearest(name, public)}"
        )
    function = getattr(module, name)
    if not callable(function):
        raise ConfigError(
            f"{kind} {reference!r}: expected a function without arguments, "
            f"found a {type(function).__name__}"
        )
    return cast(T, function)


def _import(module_name: str, what: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()  # the file may be younger than this process
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module itself, or one that it imports?
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{what}: no module {module_name!r} in {here} or among the installed packages"
            ) from None
        raise ConfigError(
            f"{what}: module {module_name!r} needs {error.name!r}: {error}"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{what}: importing {module_name!r} failed with {type(error).__name__}: {error}"
        ) from error


def _nearest(name: str, known: Mapping[str, object] | list[str]) -> str:
    hint = did_you_mean(name, known)
    return f" ({hint})" if hint else ""


def _place(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "built in"
