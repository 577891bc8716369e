"""A method inside a training loop that a framework runs.

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
from reefknot.methods import METHODS, TyingMethod
from reefknot.state import TiedState
from reefknot.tying.collectives import all_processes, as_in_first

_LOGGED = {"density": "density", "kmeans_penalty": "kmeans_penalty", "bytes": "predicted_bytes"}


def numbers(method: TyingMethod) -> dict[str, float]:
    """What a logger shows: density, penalty, predicted bytes, and the number of the phase."""
    stats = method.stats()
    found = {name: stats.get(key) for name, key in _LOGGED.items()}
    found["phase"] = method.phases.index(method.phase)
    return {f"reefknot/{name}": float(x) for name, x in found.items() if x is not None}


class TyingSession:
    """From the settings to the file.

    With `target_bytes` or `target_density` the phases share the steps of the training. Without a
    budget the method is hardened after the fraction `harden_after` of the steps.
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
            raise ConfigError(f"harden_after is a fraction of the steps, found {harden_after}")
        self.path = path
        self.method: TyingMethod | None = None
        self._kind, self._settings = METHODS[method], settings
        self._has_budget = not {"target_bytes", "target_density"}.isdisjoint(settings)
        self._harden_after = harden_after
        self._harden_at: int | None = None
        self._saved: Mapping[str, Any] | None = None

    def begin(
        self, model: nn.Module, optimizers: tuple[Optimizer, ...], steps: float
    ) -> TyingMethod:
        """Make the method and attach it; resume from a state that was loaded before."""
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
        if self.method is not None:
            self.method.detach()  # a training before this one was stopped
        self.method = self._kind(model, **settings)
        tying = self.method.tying
        if not tying.copies:
            tying.copies = all_processes(model.parameters())
        if self._saved is not None:
            self.method.load_state_dict(self._saved)
            self._saved = None
        return self.method.attach(*optimizers)

    def after_step(self) -> None:
        """After each optimizer step: harden when its step is reached."""
        method = self._running()
        if (
            self._harden_at is not None
            and method.step >= self._harden_at
            and not method.phase.is_last
        ):
            method.harden()

    def numbers(self) -> dict[str, float]:
        """What a logger shows; see `numbers`."""
        return numbers(self._running())

    def end(self, *, write: bool) -> TiedState:
        """Harden unless that is done; finish, detach, and write the file if asked.

        All processes end with the network of the first one, which writes the file.
        """
        method = self._running()
        if not method.phase.is_last:
            method.harden()
        copies = method.tying.copies
        state = method.finish()
        method.detach()
        as_in_first(method.model.state_dict().values(), copies)
        if write and self.path is not None:
            save(state, self.path)
        return state

    def state_dict(self) -> dict[str, Any]:
        """The method's saved state, empty before it begins."""
        return {} if self.method is None else dict(self.method.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from this state when the training begins."""
        if state:
            self._saved = dict(state)

    def _running(self) -> TyingMethod:
        if self.method is None:
            raise TyingError("the training has not begun yet, so nothing is tied")
        return self.method
