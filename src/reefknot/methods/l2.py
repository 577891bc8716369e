"""L2 decay and k-means: a network that was not trained to be tied, tied all the same.

Takes     a model, the strength of the decay, and K.
Gives     weights that share K values, none of them zero on purpose.
Paper     section 4.2 and the appendix train with L2 for comparison.
Unaware   of the training loop, the data and the file.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from reefknot.methods.hooks import Step, dense_grad
from reefknot.methods.settings import clusters_mistakes, number_mistakes, selection_mistakes
from reefknot.methods.tied import NumClusters, TyingMethod
from reefknot.tying.selection import NETWORK, Norms, Scope


class L2(TyingMethod):
    """L2 penalty, then k-means.

    Args:
        model: any module; its state-dict keys stay as they are.
        num_clusters: K, or a mapping from group name to K.
        l2_strength: the penalty is l2_strength/2 times the sum of squares.
        scope: which parameters share a codebook: "network", "tensor", or a mapping from group
            names to name patterns, of which the first match counts.
        include: patterns of the parameters to tie.
        exclude: patterns of the parameters not to tie.
        norms: scales and shifts of norm layers: with a codebook of their "own" and never pruned,
            "tied" with everything else, or "kept" exact.
    """

    name: ClassVar[str] = "l2"
    has_zero_cluster: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        num_clusters: NumClusters = 16,
        l2_strength: float = 1e-4,
        *,
        scope: Scope = NETWORK,
        include: Sequence[str] | str = ("*",),
        exclude: Sequence[str] | str = (),
        norms: Norms = "own",
    ) -> None:
        settings = {
            "num_clusters": num_clusters,
            "l2_strength": l2_strength,
            "scope": scope,
            "include": include,
            "exclude": exclude,
            "norms": norms,
        }
        super().__init__(model, settings)
        self.l2_strength = float(l2_strength)

    @classmethod
    def mistakes(cls, settings: Mapping[str, Any]) -> list[str]:
        """All that is wrong with these settings."""
        return [
            *clusters_mistakes(settings, least=1),
            *number_mistakes(settings, "l2_strength"),
            *selection_mistakes(settings),
        ]

    def before_step(self, step: Step) -> None:
        """Soft phase: add the gradient of the penalty. Hard phase: share gradients."""
        super().before_step(step)
        if self.hard:
            return
        for _, _, name, parameter in self._held_by(step):
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
