"""L1 and a threshold: the simple sparse baseline for sparse APT.

Takes     a model, the strength of the L1 penalty, and the magnitude below which weights are pruned.
Gives     pruned weights that share K values.
Paper     section 4.3 and the appendix compare the structure of L1 networks with sparse APT's.
Unaware   of the training loop, the data and the file.
"""

from typing import ClassVar, Literal

import torch

from reefknot.lab.baselines.pruned import PruningMethod
from reefknot.methods.hooks import Step, dense_grad
from reefknot.methods.settings import is_choice, is_count, is_number, setting
from reefknot.tying import ops


class L1Threshold(PruningMethod):
    """L1 penalty, then pruning below a threshold, then k-means on what is left."""

    name: ClassVar[str] = "l1_threshold"

    l1_strength: float = setting(
        default=1e-4,
        doc="weight of the L1 penalty, until pruning",
        check=is_number(),
        kw_only=False,
    )
    threshold: float = setting(
        default=1e-2,
        doc="weights of smaller magnitude are pruned",
        check=is_number(),
        kw_only=False,
    )
    prune_at: int = setting(
        default=0,
        doc="the step after which to prune; the rest of the soft phase trains what is left, "
        "without penalty; 0 prunes at hardening",
        check=is_count("a step, or 0 for hardening"),
    )
    l1_step: Literal["subgradient", "proximal"] = setting(
        default="subgradient",
        doc='"subgradient" adds l1_strength·sign(w) to the gradient; "proximal" moves each weight '
        "by lr·l1_strength towards zero after the step and reaches zero exactly",
        check=is_choice("subgradient", "proximal"),
    )

    def before_step(self, step: Step) -> None:
        """Soft phase: add the L1 gradient until pruning; zero the gradients of pruned weights."""
        super().before_step(step)
        if self.hard or self.pruned or self.l1_step == "proximal":
            return
        for _, group, name, parameter in self.held_by(step):
            grad = dense_grad(name, parameter)
            if grad is not None and group.sparse:
                strength = self.l1_strength * step.grad_scale
                grad.add_(torch.sign(parameter.detach()), alpha=strength)

    def after_step(self, step: Step) -> None:
        """Soft phase: proximal step, prune when due, keep zeros. Hard phase: tie again."""
        super().after_step(step)
        if self.hard or self.pruned:
            return
        if self.l1_step == "proximal":
            for lr, group, _, parameter in self.held_by(step):
                if parameter.grad is not None and group.sparse:
                    ops.soft_threshold_(parameter.detach(), lr * self.l1_strength)
        if step.ends_round and self.step == self.prune_at:
            self._prune_all()

    def _prune_all(self) -> None:
        for group in self.groups:
            for name in group.members:
                self._prune(group, name, self.threshold)

    def harden(self) -> None:
        """Prune if not done yet, cluster the rest by k-means, freeze the assignment."""
        self._require_soft()
        if not self.pruned:
            self._prune_all()
        for group in self.groups:
            group.start_sparse("kmeans")
        self._hardened()
