"""L1 and a threshold: the simple sparse baseline for sparse APT.

Takes     a model, the strength of the L1 penalty, and the magnitude below which weights are pruned.
Gives     pruned weights that share K values.
Paper     section 4.3 and the appendix compare the structure of L1 networks with sparse APT's.
Unaware   of the training loop, the data and the file.
"""

from collections.abc import Sequence
from typing import ClassVar, get_args

import torch

from reefknot.lab.baselines.pruned import Pruned
from reefknot.methods import TyingMethod
from reefknot.methods.settings import is_choice, is_count, is_number, setting
from reefknot.phases import Frozen, L1Step, Phase, Step, dense_grad
from reefknot.tying import Tying, ops


class L1Threshold(TyingMethod):
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
    l1_step: L1Step = setting(
        default="subgradient",
        doc='"subgradient" adds l1_strength·sign(w) to the gradient; "proximal" moves each weight '
        "by lr·l1_strength towards zero after the step and reaches zero exactly",
        check=is_choice(*get_args(L1Step)),
    )

    def phases_of(self, tying: Tying) -> Sequence[Phase]:
        """The penalty and pruning until `harden()`, then shared values."""
        soft = L1ThenPrune(tying, self.l1_strength, self.l1_step, self.threshold, self.prune_at)
        return [soft, Frozen(tying, prepare=tying.cluster)]


class L1ThenPrune(Pruned):
    """Training with an L1 penalty until it prunes, and without one after that."""

    def __init__(
        self, tying: Tying, l1_strength: float, l1_step: L1Step, threshold: float, prune_at: int
    ) -> None:
        super().__init__(tying)
        self.l1_strength, self.l1_step = l1_strength, l1_step
        self.threshold, self.prune_at = threshold, prune_at

    def before_step(self, step: Step) -> None:
        """Zero the gradients of pruned weights; until there are any, add the L1 gradient."""
        super().before_step(step)
        if self.pruned or self.l1_step == "proximal":
            return
        for _, group, name, parameter in step.moved(self.tying):
            grad = dense_grad(name, parameter)
            if grad is not None and group.sparse:
                strength = self.l1_strength * step.grad_scale
                grad.add_(torch.sign(parameter.detach()), alpha=strength)

    def after_step(self, step: Step) -> None:
        """Keep zeros; until there are any, the proximal step, and pruning when it is due."""
        super().after_step(step)
        if self.pruned:
            return
        if self.l1_step == "proximal":
            for lr, group, _, parameter in step.moved(self.tying):
                if parameter.grad is not None and group.sparse:
                    ops.soft_threshold_(parameter.detach(), lr * self.l1_strength)
        if step.ends_round and self.step == self.prune_at:
            self._prune_all()

    def leave(self) -> None:
        """Prune if that is not done yet."""
        if not self.pruned:
            self._prune_all()

    def _prune_all(self) -> None:
        for group in self.tying.groups:
            for name in group.members:
                self.prune(group, name, self.threshold)
