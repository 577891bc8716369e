"""A phase that prunes weights and keeps them at zero.

Takes     tied weights, and for each weight tensor the magnitude below which it is pruned.
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
from reefknot.phases import Phase, Step, dense_grad
from reefknot.tying import Group, Saved, Tying, ops, saved_tensor

_PREFIX = "pruned."


class Pruned(Phase):
    """Training of what is not pruned yet; zero is then one of each group's values."""

    name = "prune"

    def __init__(self, tying: Tying) -> None:
        super().__init__(tying)
        self.pruned: dict[str, Tensor] = {}  # by parameter: True where it stays zero

    def before_step(self, step: Step) -> None:
        """Zero the gradients of pruned weights."""
        for _, _, name, parameter in step.moved(self.tying):
            grad = dense_grad(name, parameter)
            if grad is not None and name in self.pruned:
                grad.masked_fill_(self._mask(name, parameter), 0.0)

    def after_step(self, step: Step) -> None:
        """Keep pruned weights at zero."""
        for _, _, name, parameter in step.moved(self.tying):
            if name in self.pruned:
                parameter.detach().masked_fill_(self._mask(name, parameter), 0.0)

    @torch.no_grad()
    def prune(self, group: Group, name: str, threshold: float) -> None:
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

    def fixed_zeros(self) -> dict[str, Tensor]:
        """What is pruned."""
        return dict(self.pruned)

    def state_dict(self) -> Saved:
        """The step, and the pruning masks."""
        masks = {f"{_PREFIX}{name}": mask.clone() for name, mask in self.pruned.items()}
        return super().state_dict() | masks

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved."""
        super().load_state_dict(state)
        self.pruned = {}
        if not any(str(key).startswith(_PREFIX) for key in state):
            return
        for group in (group for group in self.tying.groups if group.sparse):
            for name, parameter in group.members.items():
                key = f"{_PREFIX}{name}"
                mask = saved_tensor(state, key, dtype=torch.bool, shape=parameter.shape)
                self.pruned[name] = ops.like(mask.clone(), parameter)
