"""The interface of a phase: one part of training, and what tying does in it.

Takes     the tied weights, and how many steps it lasts.
Gives     what the method calls: `enter`, `before_step`, `after_step`, and saved state.
Unaware   of which phases come before and after it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from reefknot.methods.apt.weights import TiedWeights
from reefknot.methods.hooks import Step
from reefknot.methods.method import Saved, Stats
from reefknot.tying.saved import saved_count


class Phase(ABC):
    """One part of training. `steps` is None if only `harden()` ends it."""

    name: ClassVar[str]
    is_tied: ClassVar[bool] = False  # the model runs on tied values
    lr_factor: ClassVar[float] = 1.0  # on the learning rate at the start of the phase

    def __init__(self, weights: TiedWeights, steps: int | None = None) -> None:
        self.weights = weights
        self.steps = steps
        self.step = 0  # completed rounds of this phase

    @property
    def over(self) -> bool:
        """Whether all steps of the phase are done."""
        return self.steps is not None and self.step >= self.steps

    @property
    def done(self) -> float:
        """The fraction of the phase that is done; 0 if it is open-ended."""
        return min(1.0, self.step / self.steps) if self.steps else 0.0

    def enter(self) -> None:  # noqa: B027  not every phase has something to do here
        """Start the phase; the previous one is over."""

    @abstractmethod
    def before_step(self, step: Step) -> None:
        """Change the gradients that an optimizer is about to use."""

    @abstractmethod
    def after_step(self, step: Step) -> None:
        """Update centers and clusters after an optimizer has moved the weights."""

    def fixed_zeros(self) -> dict[str, Tensor]:
        """Masks by parameter name: the elements that stay zero during this phase."""
        return {}

    def state_dict(self) -> Saved:
        """Everything needed to resume exactly here."""
        return {"phase_step": self.step}

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved."""
        self.step = saved_count(state, "phase_step")

    def stats(self) -> Stats:
        """Entries for the log that only this phase has."""
        return {}
