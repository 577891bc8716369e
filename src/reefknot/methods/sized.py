"""Zeros for a size: how many weights can survive in a file of so many bytes.

Takes     groups, a size, and a function that says how large the file would be now.
Gives     clusters in which the smallest weights of all groups are zero.
Paper     ours.
Unaware   of optimizers, of step counts, and of how a file is written.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from reefknot.errors import ConfigError
from reefknot.methods.method import log
from reefknot.tying.group import Group


def choose_zeros(groups: Sequence[Group], size: int, file_bytes: Callable[[], int]) -> None:
    """Let as many of the largest weights survive as give a file of this size.

    At most twice as many as survive without a size: far beyond that, more of them can make the
    file smaller, since they are so small that they have one value.
    """
    groups = [group for group in groups if group.sparse]
    if not groups:
        return
    magnitudes = np.sort(np.concatenate([group.magnitudes() for group in groups]))[::-1]
    usual = sum(map(_survivors, groups))

    def fits(survivors: int) -> bool:
        most = magnitudes[survivors] if survivors < len(magnitudes) else 0.0
        for group in groups:
            group.part_zeros(most)
        return file_bytes() <= size

    few, many = 0, min(usual, len(magnitudes))
    while many and fits(many):
        few, many = many, min(math.ceil(1.1 * many), 2 * usual, len(magnitudes))
        if few == many:
            break
    while many - few > 1:  # a few fit, many are too large
        middle = (few + many) // 2
        few, many = (middle, many) if fits(middle) else (few, middle)
    if not fits(few):
        log.warning("no choice of zeros gives a file of %d bytes", size)
    for group in groups:
        if not _survivors(group):
            log.warning("all weights of group %r are zero now", group.name)


def require_reachable(groups: Sequence[Group], size: int, file_bytes: Callable[[], int]) -> None:
    """Refuse a size that zeros alone cannot give, before it ruins the network.

    The groups have no clusters yet, and have none afterwards.
    """
    for group in groups:
        group.part_zeros(np.inf)
    least = file_bytes()
    for group in groups:
        group.forget()
    if least > size:
        raise ConfigError(
            f"target_bytes is {size:,}, but with all tied weights at zero the file still has "
            f"{least:,} bytes; raise it, or tie more parameters (include, exclude)"
        )


def _survivors(group: Group) -> int:
    return int(group.counts.sum() - group.counts[group.smallest_center()])
