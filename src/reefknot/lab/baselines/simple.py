"""Three simple pipelines, each of them k-means at its end: what training with tying improves on.

Takes     a model, and a penalty's strength, a threshold, or the fraction of the weights to keep.
Gives     weights that share K values; but for `L2` most of them are zero.
Paper     section 1 (magnitude), section 4.2 and the appendix (L2), section 4.3 (L1).
Unaware   of the training loop, the data and the file.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch

from reefknot.lab.baselines.pruned import Pruned
from reefknot.methods import TyingMethod, WithoutZeroCluster
from reefknot.methods.settings import is_count, is_number, setting
from reefknot.phases import Frozen, Phase, Step, dense_grad
from reefknot.tying import Group, Tying, ops


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


class MagnitudeKmeans(TyingMethod):
    """No penalty: keep the largest weights, then k-means."""

    name: ClassVar[str] = "magnitude_kmeans"

    density: float = setting(
        default=0.1,
        doc="the share of each group's weights that stay; the smallest go",
        check=is_number(most=1.0),
        kw_only=False,
    )

    def phases_of(self, tying: Tying) -> Sequence[Phase]:
        """Plain training until `harden()` prunes, then shared values."""
        return [KeepLargest(tying, self.density), Frozen(tying, prepare=tying.cluster)]


class KeepLargest(Pruned):
    """Plain training, after which the smallest weights of each group are pruned."""

    def __init__(self, tying: Tying, share: float) -> None:
        super().__init__(tying)
        self.share = share  # of each group's weights, which stay

    def leave(self) -> None:
        """Prune."""
        for group in self.tying.groups:
            threshold = self._threshold(group)
            for name in group.members:
                self.prune(group, name, threshold)

    def _threshold(self, group: Group) -> float:
        """The magnitude of the smallest weight that is kept."""
        magnitudes = torch.cat([ops.flat(p).double().abs() for p in group.members.values()])
        pruned = min(round((1 - self.share) * len(magnitudes)), len(magnitudes) - 1)
        return float(magnitudes.kthvalue(pruned + 1).values)


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

    def phases_of(self, tying: Tying) -> Sequence[Phase]:
        """The penalty and pruning until `harden()`, then shared values."""
        soft = L1ThenPrune(tying, self.l1_strength, self.threshold, self.prune_at)
        return [soft, Frozen(tying, prepare=tying.cluster)]


class L1ThenPrune(Pruned):
    """Training with an L1 penalty until it prunes, and without one after that."""

    def __init__(self, tying: Tying, l1_strength: float, threshold: float, prune_at: int) -> None:
        super().__init__(tying)
        self.l1_strength, self.threshold, self.prune_at = l1_strength, threshold, prune_at

    def before_step(self, step: Step) -> None:
        """Zero the gradients of pruned weights; until there are any, add the L1 gradient."""
        super().before_step(step)
        if self.pruned:
            return
        for _, group, name, parameter in step.moved(self.tying):
            grad = dense_grad(name, parameter)
            if grad is not None and group.sparse:
                strength = self.l1_strength * step.grad_scale
                grad.add_(torch.sign(parameter.detach()), alpha=strength)

    def after_step(self, step: Step) -> None:
        """Keep zeros, and prune when it is due."""
        super().after_step(step)
        if not self.pruned and step.ends_round and self.step == self.prune_at:
            self._prune_all()

    def leave(self) -> None:
        """Prune if that is not done yet."""
        if not self.pruned:
            self._prune_all()

    def _prune_all(self) -> None:
        for group in self.tying.groups:
            for name in group.members:
                self.prune(group, name, self.threshold)
