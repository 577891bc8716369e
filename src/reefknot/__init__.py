"""Neural networks in kilobytes: weights tied to a few values, in files that read back exactly.

    tie = reefknot.SparseAPT(model, target_bytes=3_300, steps=60_000)
    tie.attach(optimizer)            # runs all phases, in the loop you already have
    ...                              # train
    reefknot.save(tie.finish(), "model.reef")      # at most 3,300 bytes
    model.load_state_dict(reefknot.load("model.reef"))

Names are loaded when they are first used, so that importing reefknot does not import torch. They
stand once, in `__init__.pyi`, which type checkers and editors read, too. Other packages may add
methods by entry points; the compared methods of the laboratory are such.
"""

import ast
import importlib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

__version__ = "0.2.0"

_MODULE_OF = {
    alias.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}
__all__ = sorted(_MODULE_OF)
_ADDED = "reefknot.methods"  # the group of entry points


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        home = _MODULE_OF[name]
        if home == __name__:  # a package of functions
            return importlib.import_module(f"{home}.{name}")
        value = getattr(importlib.import_module(home), name)
    elif name.startswith("__") or not (added := entry_points(group=_ADDED, name=name)):
        raise AttributeError(f"module 'reefknot' has no attribute {name!r}")
    else:
        value = next(iter(added)).load()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
