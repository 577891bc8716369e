"""Statistics of a group: how far weights are from their centers, and what they are worth.

Takes     a group.
Gives     sums over its clusters, the same in all processes. Nothing is changed.
Paper     equation 1 (the k-means penalty).
Unaware   of optimizers and of phases.
"""

from collections.abc import Iterator

import numpy as np

from reefknot.tying import ops
from reefknot.tying.cost import nonzero_bits
from reefknot.tying.group import Group


def _pieces(group: Group, *names: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Weights and assignments of all or some members, in chunks."""
    group.follow(*names)
    for name, part, piece in group.members.pieces(*names):
        yield piece, ops.flat(group.assignments[name])[part].cpu().numpy()


def deviations(group: Group) -> tuple[np.ndarray, np.ndarray]:
    """The sums of |w - own center| and of its square in each cluster."""
    absolute, square = np.zeros((2, len(group.centers)))
    for piece, index in _pieces(group):
        away = np.abs(piece.astype(np.float64) - group.centers[index])
        absolute += np.bincount(index, away, minlength=len(absolute))
        square += np.bincount(index, away * away, minlength=len(square))
    return group.members.processes.sum_of(absolute), group.members.processes.sum_of(square)


def spreads(group: Group) -> np.ndarray:
    """The root mean square of (w - own center) in each cluster."""
    _, square = deviations(group)
    return np.sqrt(square / np.maximum(group.counts, 1))


def untied(group: Group) -> Iterator[str]:
    """The names of members with a weight that does not equal its center."""
    differing = [
        sum(
            np.count_nonzero(piece != group.centers[index]) for piece, index in _pieces(group, name)
        )
        for name in group.members
    ]
    total = group.members.processes.total(np.array(differing))
    for name, count in zip(group.members, total, strict=True):
        if count:
            yield name


def worth_per_bit(group: Group) -> np.ndarray:
    """The square of each non-zero weight per bit that it costs in the file; inf at zeros.

    Of the weights here, member after member.
    """
    rows = []
    for name in group.members:
        assignment = group.assignment(name)
        alive = assignment != group.smallest_center()
        full = nonzero_bits(alive, group.members[name], group.members.processes)
        bits = ops.flat(ops.like(full, assignment)).double().cpu().numpy()
        square = np.square(group.centers)[ops.flat(assignment).cpu().numpy()]
        rows.append(np.where(ops.flat(alive).cpu().numpy(), square / bits, np.inf))
    return np.concatenate(rows)
