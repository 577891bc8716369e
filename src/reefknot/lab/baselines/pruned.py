"""The base class of methods that prune weights and keep them at zero.

Takes     groups of weights, and for each weight tensor the magnitude below which it is pruned.
Gives     weights that are exactly zero and stay so while the others train on.
Paper     section 4.3, Table 1: the methods it is compared with.
Unaware   of how a method chooses its thresholds and when it prunes.

Optimizer state (momentum) can move a weight whose gradient is zero, so the weights are masked after
each step as well.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from reefknot.errors import TyingError
from reefknot.methods.hooks import Step, dense_grad
from reefknot.methods.method import Saved
from reefknot.methods.tied import TyingMethod
from reefknot.tying import ops
from reefknot.tying.group import Group
from reefknot.tying.saved import saved_tensor

_PREFIX = "pruned."


class PruningMethod(TyingMethod):
    """A tying method that prunes in the soft phase; zero is then one of each group's values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pruned: dict[str, Tensor] = {}  # by parameter: True where it stays zero

    def before_step(self, step: Step) -> None:
        """Soft phase: zero the gradients of pruned weights. Hard phase: share gradients."""
        super().before_step(step)
        if self.hard:
            return
        for _, _, name, parameter in self.held_by(step):
            grad = dense_grad(name, parameter)
            if grad is not None and name in self.pruned:
                grad.masked_fill_(self._mask(name, parameter), 0.0)

    def after_step(self, step: Step) -> None:
        """Soft phase: keep pruned weights at zero. Hard phase: tie again."""
        super().after_step(step)
        if self.hard:
            return
        for _, _, name, parameter in self.held_by(step):
            if name in self.pruned:
                parameter.detach().masked_fill_(self._mask(name, parameter), 0.0)

    @torch.no_grad()
    def _prune(self, group: Group, name: str, threshold: float) -> None:
        """Prune what is below the threshold for good; a matrix must not become all zero."""
        if not group.sparse:
            return
        weights = group.members[name].detach()
        small = weights.abs() < threshold
        if name in self.pruned:
            small |= self._mask(name, weights)
        if weights.dim() > 1 and bool(small.all()):
            raise TyingError(
                f"all {small.numel():,} weights of {name!r} are below the threshold {threshold:.3g}"
                " and would be pruned; prune less, or exclude this parameter"
            )
        weights.masked_fill_(small, 0.0)
        self.pruned[name] = small

    def _mask(self, name: str, parameter: Tensor) -> Tensor:
        """A parameter's mask, on the parameter's current device and in its memory layout."""
        self.pruned[name] = ops.like(self.pruned[name], parameter)
        return self.pruned[name]

    def _hardened(self) -> None:
        """Forget the masks: from now on the groups' zero clusters keep zeros at zero."""
        super()._hardened()
        self.pruned.clear()

    def state_dict(self) -> Saved:
        """Phase, step, clusters, and the pruning masks."""
        return super().state_dict() | {
            f"{_PREFIX}{name}": mask.clone() for name, mask in self.pruned.items()
        }

    def _load(self, state: Mapping[str, Tensor | int | float]) -> None:
        super()._load(state)
        self.pruned = {}
        if self.hard or not any(str(key).startswith(_PREFIX) for key in state):
            return
        for group in (group for group in self.groups if group.sparse):
            for name, parameter in group.members.items():
                key = f"{_PREFIX}{name}"
                mask = saved_tensor(state, key, dtype=torch.bool, shape=parameter.shape)
                self.pruned[name] = ops.like(mask.clone(), parameter)
