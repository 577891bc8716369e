"""Gradients of a group: the pull to the centers, and one gradient for each cluster.

Takes     a group, and the gradients of some of its members.
Gives     the gradients changed in place.
Paper     section 3.1, equation 3 (the penalties); section 3.2 (the mean gradient).
Unaware   of optimizers and of phases.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from torch import Tensor

from reefknot.tying import ops
from reefknot.tying.group import Group

Shared = Literal["mean", "sum"]


def add_pull_(
    group: Group, grads: Mapping[str, Tensor], tying_strength: float, l1_strength: float
) -> None:
    """Add the gradient of the penalties to the gradients of some members."""
    ops.add_pull_(
        group.tensors(),
        [grads.get(name) for name in group.members],
        group.centers,
        tying_strength=tying_strength,
        l1_strength=l1_strength if group.sparse else 0.0,
        to_medians=group.distance == "l1",
    )


def share_(group: Group, grads: Mapping[str, Tensor], how: Shared) -> None:
    """Replace gradients by their cluster's mean or sum, and by zero in the zero cluster.

    Gradients below 1e-9 of the largest one are rounded to zero.
    """
    tensors, copies = _with_gradients(group, grads)
    shared = ops.cluster_totals(tensors, len(group.centers))
    if how == "mean":
        counts = group.counts
        if len(tensors.held) < len(group.members):
            there = [group.assignment(name) for name in group.members if name in grads]
            counted = ops.cluster_counts(there, len(group.centers)).sum(0)
            counts = group.members.processes.total(counted)
        shared /= np.maximum(counts, 1)
    if group.zero_cluster is not None:
        shared[group.zero_cluster] = 0.0
    ops.project_(tensors, shared)
    for grad, same in copies:
        grad.copy_(same)


def _with_gradients(
    group: Group, grads: Mapping[str, Tensor]
) -> tuple[ops.Tensors, list[tuple[Tensor, Tensor]]]:
    """These gradients with their clusters; and pairs of gradient and copy, where copied."""
    found, own = [grads.get(name) for name in group.members], group.tensors()
    together = own.on(found)
    if together is not None:
        return together, []
    held, copies = [], []
    for grad, (weights, assignment, dead) in zip(found, own.held, strict=True):
        if grad is not None:
            copy = grad.to(group.members.dtype)
            still = dead if ops.in_same_order(copy, weights) else None
            held.append(ops.Held(copy, ops.like(assignment, copy), still))
            copies += [(grad, copy)] if copy is not grad else []
    return ops.Tensors(held, group.members.num_weights, group.members.processes), copies
