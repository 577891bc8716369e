"""The best of the states that a run measures after `harden()`, for `training.keep_best`.

Takes     a model and its method, and the validation errors that are measured.
Gives     both as they were at the lowest error, the earliest of equal ones.
Unaware   of how errors are measured, and of files.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

from torch import nn

from reefknot.checkpoint import unlike
from reefknot.methods import Method

_SAVED = {"step": int, "val_error": float, "model": dict, "method": dict}


class Best:
    """The state to end with: method and model, statistics of BatchNorm included; none at first."""

    def __init__(self, saved: dict[str, Any]) -> None:
        self._kept = saved

    @staticmethod
    def mistakes(saved: dict[str, Any], model: nn.Module) -> Iterator[str]:
        """Where a saved state does not fit the model."""
        if not saved:
            return
        if {key: type(value) for key, value in saved.items()} != _SAVED:
            yield "its best state has other entries than a run saves"
            return
        if not 0 <= saved["val_error"] <= 100:
            yield "the error of its best state is no percentage"
        yield from unlike(saved["model"], dict(model.state_dict()), "the best model")
        for name, _ in model.named_parameters():
            if name in saved["model"] and not bool(saved["model"][name].isfinite().all()):
                yield f"{name!r} of the best model is not finite"

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
