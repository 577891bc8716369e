"""Sparsify: L1 makes the network sparse while every weight is pulled to its center.

Takes     the two strengths; with a budget, a controller that sets the L1 strength.
Gives     weights most of which are nearly zero, and the others near K values.
Paper     section 3.1, equation 3: soft tying.
Unaware   of how the zeros are chosen later.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from reefknot.phases.controller import SparsityController
from reefknot.phases.hooks import Step
from reefknot.phases.phase import Phase, require_begun
from reefknot.tying import ops
from reefknot.tying.gradients import add_pull_
from reefknot.tying.kmeans import Start
from reefknot.tying.saved import saved_number
from reefknot.tying.tying import Saved, Tying

L1Step = Literal["subgradient", "proximal"]


class Sparsify(Phase):
    """Soft tying with L1.

    Every `refresh_every` steps centers become cluster means; k-means runs every `refit_every`.
    """

    name: ClassVar[str] = "sparsify"

    def __init__(
        self,
        tying: Tying,
        steps: int | None = None,
        *,
        tying_strength: float,
        l1_strength: float = 0.0,
        refit_every: int,
        refresh_every: int = 1,
        init: Start = "even",
        l1_step: L1Step = "subgradient",
        controller: SparsityController | None = None,
        update_every: int = 1,
        measure_every: int = 1,
    ) -> None:
        super().__init__(tying, steps)
        self.tying_strength, self.l1_strength = tying_strength, l1_strength
        self.refit_every, self.refresh_every, self.init = refit_every, refresh_every, init
        self.l1_step = l1_step
        self.controller = controller
        self.update_every = update_every  # of the controller
        self.updates_per_measurement = -(-measure_every // update_every)

    def enter(self) -> None:
        """Choose the first centers."""
        self.tying.start(self.init)

    def before_step(self, step: Step) -> None:
        """Add the gradient of both penalties."""
        self.tying.start(self.init)  # a loaded state may have no clusters yet
        found = list(step.gradients(self.tying))
        if self.controller and step.starts_round and self.step % self.update_every == 0:
            self.controller.measure_gradients(found, step.grad_scale)
            self.l1_strength = self.l1_strength or self.controller.first_strength()
        strength = self.tying_strength * step.grad_scale
        l1 = 0.0 if self.l1_step == "proximal" else self.l1_strength * step.grad_scale
        for group, grads in found:
            add_pull_(group, grads, strength, l1)

    def after_step(self, step: Step) -> None:
        """Move the centers; every `refit_every` steps, run k-means."""
        if self.l1_step == "proximal" and self.l1_strength:
            for lr, group, _, parameter in step.moved(self.tying):
                if parameter.grad is not None and group.sparse:
                    ops.soft_threshold_(parameter.detach(), lr * self.l1_strength)
        if not step.ends_round:
            return
        if self.refit_every and self.step % self.refit_every == 0:
            self.tying.refit()
        elif self.step % self.refresh_every == 0:
            self.tying.refresh()
        else:
            self.tying.version += 1  # other tensors change with each step
        if self.controller and not self.over and self.step % self.update_every == 0:
            updates = self.step // self.update_every
            if (updates - 1) % self.updates_per_measurement == 0:
                self.controller.pruning.measure(is_often=self.updates_per_measurement == 1)
            self.l1_strength = self.controller.updated(self.l1_strength, self.done)

    def leave(self) -> None:
        """Refuse to end what has not begun."""
        require_begun(self.tying)

    def state_dict(self) -> Saved:
        """The step, the L1 strength, and the controller's state."""
        saved = super().state_dict() | {"l1_strength": self.l1_strength}
        return saved | (self.controller.state_dict() if self.controller else {})

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved."""
        super().load_state_dict(state)
        self.l1_strength = saved_number(state, "l1_strength")
        if self.controller:
            self.controller.load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        """The current L1 strength."""
        return {"l1_strength": self.l1_strength}
