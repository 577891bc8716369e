"""L2 penalty and k-means: ties a network that was not trained for it.

Takes     a model, the strength of the penalty, and K.
Gives     weights that share K values, without a zero cluster.
Paper     section 4.2 and the appendix train with L2 for comparison.
Unaware   of the training loop, the data and the file.
"""

from collections.abc import Sequence
from typing import ClassVar

from reefknot.methods import WithoutZeroCluster
from reefknot.methods.settings import is_number, setting
from reefknot.phases import Frozen, Phase, Step, dense_grad
from reefknot.tying import Tying


class L2(WithoutZeroCluster):
    """L2 penalty, then k-means."""

    name: ClassVar[str] = "l2"

    l2_strength: float = setting(
        default=1e-4,
        doc="the penalty is l2_strength/2 times the sum of squares",
        check=is_number(),
        kw_only=False,
    )

    def phases_of(self, tying: Tying) -> Sequence[Phase]:
        """The penalty until `harden()`, then shared values."""
        return [L2Penalty(tying, self.l2_strength), Frozen(tying, prepare=tying.cluster)]


class L2Penalty(Phase):
    """Training with an L2 penalty."""

    name = "penalty"

    def __init__(self, tying: Tying, strength: float) -> None:
        super().__init__(tying)
        self.strength = strength

    def before_step(self, step: Step) -> None:
        """Add the gradient of the penalty."""
        for _, _, name, parameter in step.moved(self.tying):
            grad = dense_grad(name, parameter)
            if grad is not None:
                grad.add_(parameter.detach(), alpha=self.strength * step.grad_scale)
