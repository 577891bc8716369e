"""L1 and a threshold: the plain way to a sparse network that sparse APT is seen against.

Takes     a model, the strength of the L1 penalty, and the magnitude below which weights go.
Gives     pruned weights that share K values.
Paper     section 4.3 and the appendix compare the structure of L1 networks with sparse APT's.
Unaware   of the training loop, the data and the file.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from reefknot.methods.hooks import Step, dense_grad
from reefknot.methods.pruned import PruningMethod
from reefknot.methods.settings import (
    choice_mistakes,
    clusters_mistakes,
    count_mistakes,
    number_mistakes,
    selection_mistakes,
)
from reefknot.methods.tied import NumClusters
from reefknot.tying import ops
from reefknot.tying.selection import NETWORK, Norms, Scope


class L1Threshold(PruningMethod):
    """L1 penalty, then pruning below a threshold, then k-means on what is left.

    Args:
        model: any module; its state-dict keys stay as they are.
        num_clusters: K, zero included, or a mapping from group name to K.
        l1_strength: weight of the L1 penalty, until pruning.
        threshold: weights of smaller magnitude are pruned.
        prune_at: the step after which to prune; the rest of the soft phase trains what is left,
            without penalty. 0 prunes at hardening.
        l1_step: "subgradient" adds l1_strength·sign(w) to the gradient; "proximal" moves each
            weight by rate·l1_strength towards zero after the step and reaches zero exactly.
        scope: which parameters share a codebook: "network", "tensor", or a mapping from group
            names to name patterns, of which the first match counts.
        include: patterns of the parameters to tie.
        exclude: patterns of the parameters not to tie.
        norms: scales and shifts of norm layers: with a codebook of their "own" and never pruned,
            "tied" with everything else, or "kept" exact.
    """

    name: ClassVar[str] = "l1_threshold"

    def __init__(
        self,
        model: nn.Module,
        num_clusters: NumClusters = 17,
        l1_strength: float = 1e-4,
        threshold: float = 1e-2,
        *,
        prune_at: int = 0,
        l1_step: Literal["subgradient", "proximal"] = "subgradient",
        scope: Scope = NETWORK,
        include: Sequence[str] | str = ("*",),
        exclude: Sequence[str] | str = (),
        norms: Norms = "own",
    ) -> None:
        settings = {
            "num_clusters": num_clusters,
            "l1_strength": l1_strength,
            "threshold": threshold,
            "prune_at": prune_at,
            "l1_step": l1_step,
            "scope": scope,
            "include": include,
            "exclude": exclude,
            "norms": norms,
        }
        super().__init__(model, settings)
        self.l1_strength, self.threshold = float(l1_strength), float(threshold)
        self.prune_at, self.l1_step = prune_at, l1_step

    @classmethod
    def mistakes(cls, settings: Mapping[str, Any]) -> list[str]:
        """All that is wrong with these settings."""
        return [
            *clusters_mistakes(settings, least=2),
            *number_mistakes(settings, "l1_strength", "threshold"),
            *count_mistakes(settings, "prune_at", meaning="a step, or 0 for hardening"),
            *choice_mistakes(settings, {"l1_step": ("subgradient", "proximal")}),
            *selection_mistakes(settings),
        ]

    def before_step(self, step: Step) -> None:
        """Soft phase: pull to zero until pruning; what is pruned has no gradient."""
        super().before_step(step)
        if self.hard or self.pruned or self.l1_step == "proximal":
            return
        for _, group, name, parameter in self._held_by(step):
            grad = dense_grad(name, parameter)
            if grad is not None and group.sparse:
                strength = self.l1_strength * step.grad_scale
                grad.add_(torch.sign(parameter.detach()), alpha=strength)

    def after_step(self, step: Step) -> None:
        """Soft phase: shrink, prune when it is time, keep zeros. Hard phase: tie again."""
        super().after_step(step)
        if self.hard or self.pruned:
            return
        if self.l1_step == "proximal":
            for rate, group, _, parameter in self._held_by(step):
                if parameter.grad is not None and group.sparse:
                    ops.soft_threshold_(parameter.detach(), rate * self.l1_strength)
        if step.ends_round and self.step == self.prune_at:
            self._prune_all()

    def _prune_all(self) -> None:
        for group in self.groups:
            for name in group.members:
                self._prune(group, name, self.threshold)

    def harden(self) -> None:
        """Prune if that is still to come; cluster the rest by k-means; freeze the assignment."""
        self._require_soft()
        if not self.pruned:
            self._prune_all()
        for group in self.groups:
            group.start_sparse("kmeans")
        self._hardened()
