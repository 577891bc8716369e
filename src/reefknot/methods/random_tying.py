"""Random tying: clusters that the random start has chosen, and that never change.

Takes     a model with random weights, K, and the strength of the pull.
Gives     weights that share K values.
Paper     the appendix: t = 20000, "hence not updating parameter assignments at all"; close to
          tying by hashing (Chen and others, 2015).
Unaware   of the training loop, the data and the file.

Centers begin evenly over the range of the weights, each weight belongs to the nearest one, and
stays there. Soft tying pulls it to that center, which follows its weights; hard tying replaces it
by its cluster's mean. On a trained network the clusters would not be random.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from torch import nn
from torch.optim import Optimizer

from reefknot.methods.hooks import Step
from reefknot.methods.settings import clusters_mistakes, number_mistakes, selection_mistakes
from reefknot.methods.tied import NumClusters, TyingMethod
from reefknot.tying.selection import NETWORK, Scope


class RandomTying(TyingMethod):
    """Soft and hard tying to the clusters of the random start, without k-means.

    Args:
        model: any module with random weights; its state-dict keys stay as they are.
        num_clusters: K, or a mapping from group name to K.
        tying_strength: weight of the pull to the own center.
        scope: which parameters share a codebook: "network", "tensor", or a mapping from group
            names to name patterns, of which the first match counts.
        include: patterns of the parameters to tie.
        exclude: patterns of the parameters not to tie.
    """

    name: ClassVar[str] = "random_tying"

    def __init__(
        self,
        model: nn.Module,
        num_clusters: NumClusters = 16,
        tying_strength: float = 1e-5,
        *,
        scope: Scope = NETWORK,
        include: Sequence[str] | str = ("*",),
        exclude: Sequence[str] | str = (),
    ) -> None:
        settings = {
            "num_clusters": num_clusters,
            "tying_strength": tying_strength,
            "scope": scope,
            "include": include,
            "exclude": exclude,
        }
        super().__init__(model, settings)
        self.tying_strength = float(tying_strength)

    @classmethod
    def mistakes(cls, settings: Mapping[str, Any]) -> list[str]:
        """All that is wrong with these settings."""
        return [
            *clusters_mistakes(settings, least=1),
            *number_mistakes(settings, "tying_strength"),
            *selection_mistakes(settings),
        ]

    def attach(self, *optimizers: Optimizer) -> Self:
        """Begin soft tying with these optimizers; see `Method.attach`."""
        super().attach(*optimizers)
        self._start()
        return self

    def _start(self) -> None:
        for group in self.groups:
            if not group.assignments:
                group.start("even")

    def before_step(self, step: Step) -> None:
        """Soft tying: add the pull to the own center."""
        if self.hard:
            return
        for group, grads in self._grads(step):
            group.add_pull_(grads, self.tying_strength * step.grad_scale, 0.0)

    def after_step(self, step: Step) -> None:
        """Soft tying: centers follow their weights. Hard tying: tie again."""
        super().after_step(step)
        if not self.hard and step.ends_round:
            for group in self.groups:
                group.refresh()

    def harden(self) -> None:
        """Each weight to its center; the assignment stays what it always was."""
        self._require_soft()
        self._start()
        for group in self.groups:
            group.harden(zero_cluster=False)
        self._hardened()
