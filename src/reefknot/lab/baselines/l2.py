"""L2 penalty and k-means: ties a network that was not trained for it.

Takes     a model, the strength of the penalty, and K.
Gives     weights that share K values, without a zero cluster.
Paper     section 4.2 and the appendix train with L2 for comparison.
Unaware   of the training loop, the data and the file.
"""

from typing import ClassVar

from reefknot.methods.hooks import Step, dense_grad
from reefknot.methods.settings import is_number, setting
from reefknot.methods.tied import WithoutZeroCluster


class L2(WithoutZeroCluster):
    """L2 penalty, then k-means."""

    name: ClassVar[str] = "l2"

    l2_strength: float = setting(
        default=1e-4,
        doc="the penalty is l2_strength/2 times the sum of squares",
        check=is_number(),
        kw_only=False,
    )

    def before_step(self, step: Step) -> None:
        """Soft phase: add the gradient of the penalty. Hard phase: share gradients."""
        super().before_step(step)
        if self.hard:
            return
        for _, _, name, parameter in self.held_by(step):
            grad = dense_grad(name, parameter)
            if grad is not None:
                grad.add_(parameter.detach(), alpha=self.l2_strength * step.grad_scale)

    def harden(self) -> None:
        """Cluster by k-means, set each weight to its center, freeze the assignment."""
        self._require_soft()
        for group in self.groups:
            group.start("kmeans")
            group.harden(zero_cluster=False)
        self._hardened()
