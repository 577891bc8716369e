"""Recover: the zeros are fixed, L1 ends, and the surviving weights grow back.

Takes     a function that chooses the zeros.
Gives     a sparse network whose weights gather at their centers.
Paper     ours, between sections 3.1 and 3.2: L1 also shrinks the weights that survive it.
Unaware   of how the network came to be sparse.
"""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from reefknot.phases.hooks import Step
from reefknot.phases.phase import Phase
from reefknot.tying.gradients import add_pull_
from reefknot.tying.tying import Tying


class Recover(Phase):
    """Soft tying without L1: the tying strength grows by the same factor at each step."""

    name: ClassVar[str] = "recover"
    has_zeros: ClassVar[bool] = True

    def __init__(
        self,
        tying: Tying,
        steps: int,
        *,
        tying_strength: tuple[float, float],
        refit_every: int,
        choose_zeros: Callable[[], None],
    ) -> None:
        super().__init__(tying, steps)
        self.first_tying, self.last_tying = tying_strength
        self.refit_every = refit_every
        self.choose_zeros = choose_zeros

    def enter(self) -> None:
        """Choose the zeros and fix them."""
        self.choose_zeros()
        self.tying.fix_zeros()

    def before_step(self, step: Step) -> None:
        """Add the pull to the centers."""
        strength = self.between(self.first_tying, self.last_tying)
        for group, grads in step.gradients(self.tying):
            add_pull_(group, grads, strength * step.grad_scale, 0.0)

    def after_step(self, step: Step) -> None:
        """Keep the zeros and move the centers; every `refit_every` steps, refit the others."""
        if not step.ends_round:
            return
        self.tying.hold_zeros()
        if self.step % self.refit_every == 0:
            self.tying.refit()
        else:
            self.tying.refresh()

    def fixed_zeros(self) -> dict[str, Tensor]:
        """The elements of the zero clusters."""
        return self.tying.zeros()
