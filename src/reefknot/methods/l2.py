"""L2 decay and k-means: a network that was not trained to be tied, tied all the same.

Takes     a model, the strength of the decay, and K.
Gives     weights that share K values, none of them zero on purpose.
Paper     section 4.2 and the appendix train with L2 for comparison.
Unaware   of the training loop, the data and the file.
"""

from typing import ClassVar

from reefknot.methods.hooks import Step, dense_grad
from reefknot.methods.settings import are_clusters, is_number, setting
from reefknot.methods.tied import NumClusters, TyingMethod


class L2(TyingMethod):
    """L2 penalty, then k-means."""

    name: ClassVar[str] = "l2"
    has_zero_cluster: ClassVar[bool] = False

    num_clusters: NumClusters = setting(
        default=16,
        doc="K, or a table from group names to K",
        check=are_clusters(least=1),
        kw_only=False,
    )
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
        """Cluster by k-means, each weight to its center; freeze the assignment."""
        self._require_soft()
        for group in self.groups:
            group.start("kmeans")
            group.harden(zero_cluster=False)
        self._hardened()
