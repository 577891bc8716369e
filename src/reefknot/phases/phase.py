"""The interface of a phase: one part of training, and what tying does in it.

Takes     tied weights, and how many steps the phase lasts.
Gives     what a method calls: `enter`, `before_step`, `after_step`, `leave`, and saved state; what
          others may ask: whether the model runs on tied values, and which zeros are fixed.
Unaware   of which phases come before and after it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from reefknot.errors import TyingError
from reefknot.phases.hooks import Step
from reefknot.tying.saved import saved_count
from reefknot.tying.tying import Saved, Tying


class Phase:
    """One part of training. `steps` is None if only `harden()`, which goes to the last, ends it.

    `enter`, `before_step`, `after_step` and `leave` run without gradients. Gradients may be scaled:
    what is added to them is multiplied by `step.grad_scale`. With several optimizers `after_step`
    is called for each; what happens once a round waits for `step.ends_round`. A phase that fixes
    zeros puts them back after each step (`Tying.hold_zeros`) and says `has_zeros`. One that
    changes clusters other than by the methods of `Tying` adds to `tying.version`.
    """

    name: ClassVar[str]  # for people
    has_zeros: ClassVar[bool] = False  # groups that may have a zero cluster have one
    is_tied: ClassVar[bool] = False  # the model runs on the values that a file would have
    is_last: ClassVar[bool] = False  # clusters are final
    lr_factor: ClassVar[float] = 1.0  # on the learning rate at the start of the phase

    def __init__(self, tying: Tying, steps: int | None = None) -> None:
        self.tying = tying
        self.steps = steps
        self.step = 0  # completed rounds of this phase
        self.lr_floor = 0.0  # of the learning rate in this phase, as a part of that at its start

    @property
    def over(self) -> bool:
        """Whether all steps of the phase are done, and another follows it."""
        return self.steps is not None and self.step >= self.steps and not self.is_last

    @property
    def done(self) -> float:
        """The fraction of the phase that is done, below 1 before its last step; 0 if open-ended."""
        return min(1.0, self.step / self.steps) if self.steps else 0.0

    def between(self, first: float, last: float, share: float = 1.0) -> float:
        """A strength that grows geometrically from first to last over a share of the phase."""
        return first * (last / first) ** min(1.0, self.done / share)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The phase's own parameters, in groups for the optimizer."""
        return []

    def set_active(self, is_active: bool) -> None:
        """Change the model's layers while the phase lasts, and change them back after it."""

    def check(self) -> None:
        """Check that the model is still the one that is tied."""
        self.tying.check_members()

    def follow(self) -> None:
        """Notice parameters that were moved since the last step."""
        self.tying.follow()

    def enter(self) -> None:
        """Start the phase; the previous one is over."""

    def before_step(self, step: Step) -> None:
        """Change the gradients that an optimizer is about to use."""

    def after_step(self, step: Step) -> None:
        """Update centers and clusters after an optimizer has moved the weights.

        The method has counted the step already.
        """

    def leave(self) -> None:
        """End the phase, perhaps before all of its steps are done."""

    def finalize(self) -> None:
        """Leave the weights as the file will have them."""

    def density(self) -> float:
        """The non-zero fraction of the trainable parameters, as tying now would leave it."""
        return self.tying.density()

    def fixed_zeros(self) -> dict[str, Tensor]:
        """Masks by parameter name: the elements that stay zero during this phase.

        Units whose incoming or outgoing weights are all among them need not be computed.
        """
        return {}

    def state_dict(self) -> Saved:
        """Everything needed to resume exactly here."""
        return {"phase_step": self.step}

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved."""
        self.step = saved_count(state, "phase_step")

    def stats(self) -> dict[str, Any]:
        """Entries for the log that only this phase has."""
        return {}


def require_begun(tying: Tying) -> None:
    """Refuse to end a phase that would have given the weights their clusters."""
    if not tying.has_clusters:
        raise TyingError(
            "harden() ends a training that has not begun; call attach(optimizer) first, or tie "
            "without training by reefknot.cluster(...)"
        )


def lr_factor(phases: Sequence[Phase], step: int) -> float:
    """The factor on the learning rate after `step` completed steps.

    Cosine decay within each phase, down to its floor, with a warm restart at the next one.
    """
    for phase in phases:
        if phase.steps is None:
            return phase.lr_factor
        if step < phase.steps:
            decayed = (1 + math.cos(math.pi * step / phase.steps)) / 2
            return phase.lr_factor * (phase.lr_floor + (1 - phase.lr_floor) * decayed)
        step -= phase.steps
    return 0.0
