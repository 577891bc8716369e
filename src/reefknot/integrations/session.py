"""A method inside a training that somebody else runs.

Takes     settings of a method, and where the file goes; then model, optimizers and number of steps,
          when the framework knows them.
Gives     a method that is attached, numbers for a logger, a state to save, and the file at the end.
Unaware   of which framework it is.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from reefknot.errors import ConfigError, TyingError
from reefknot.format import save
from reefknot.methods import Method
from reefknot.public import METHODS
from reefknot.state import TiedState

_PHASES = ("soft", "sparsify", "recover", "commit", "hard", "frozen")  # as numbers, for loggers
_LOGGED = {"density": "density", "kmeans_penalty": "kmeans_penalty", "bytes": "predicted_bytes"}


class TyingSession:
    """From the settings to the file.

    With `target_bytes` or `target_density` the phases share the steps of the training. Without,
    the method is hardened after `harden_after` of them, a share between 0 and 1.
    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        method: str = "sparse_apt",
        harden_after: float = 0.8,
        **settings: Any,
    ) -> None:
        if method not in METHODS:
            raise ConfigError(f"unknown method {method!r}; known are {', '.join(METHODS)}")
        if not 0 < harden_after < 1:
            raise ConfigError(f"harden_after is a share of the steps, found {harden_after}")
        self.path = path
        self.method: Method | None = None
        self._kind, self._settings = METHODS[method], settings
        self._has_budget = not {"target_bytes", "target_density"}.isdisjoint(settings)
        self._harden_after = harden_after
        self._harden_at: int | None = None
        self._saved: Mapping[str, Any] | None = None

    def begin(self, model: nn.Module, optimizers: tuple[Optimizer, ...], steps: float) -> Method:
        """Make the method and attach it; go on from a state that was loaded before."""
        if not math.isfinite(steps) or steps < 1:
            raise TyingError(
                f"tying needs to know how many optimizer steps there will be, found {steps}; set "
                "the number of epochs or of steps"
            )
        settings = dict(self._settings)
        if self._has_budget:
            settings.setdefault("steps", int(steps))
        else:
            self._harden_at = round(self._harden_after * steps)
        self.method = self._kind(model, **settings)
        if self._saved is not None:
            self.method.load_state_dict(self._saved)
            self._saved = None
        return self.method.attach(*optimizers)

    def after_step(self) -> None:
        """After each optimizer step: harden when it is time."""
        method = self._running()
        if self._harden_at is not None and method.step >= self._harden_at and not method.hard:
            method.harden()

    def numbers(self) -> dict[str, float]:
        """What a logger shows: density, penalty, predicted bytes, and the phase as a number."""
        stats = self._running().stats()
        found = {name: stats.get(key) for name, key in _LOGGED.items()}
        if stats["phase"] in _PHASES:
            found["phase"] = _PHASES.index(stats["phase"])
        return {f"reefknot/{name}": float(x) for name, x in found.items() if x is not None}

    def end(self, *, write: bool) -> TiedState:
        """Harden if that is still to be done; finish, detach, and write the file if asked."""
        method = self._running()
        if not method.hard:
            method.harden()
        state = method.finish()
        method.detach()
        if write and self.path is not None:
            save(state, self.path)
        return state

    def state_dict(self) -> dict[str, Any]:
        """That of the method, empty before it begins."""
        return {} if self.method is None else dict(self.method.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from here, now or as soon as the method is made."""
        if not state:
            return
        if self.method is None:
            self._saved = dict(state)
        else:
            self.method.load_state_dict(state)

    def _running(self) -> Method:
        if self.method is None:
            raise TyingError("the training has not begun yet, so nothing is tied")
        return self.method
