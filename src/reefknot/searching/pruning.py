"""When a run is not worth its remaining steps.

Takes     the validation errors of a run so far, its size, and what finished runs have measured.
Gives     whether it is unpromising.
Unaware   of Optuna, which has no pruning for two objectives, and of test data.

The rule: once a third of its steps are done, a run is given up if its validation error is above
the median of those that finished runs of the same or a smaller size had at the same share of their
steps. Errors are the lowest of the last three measurements, since single ones wander. At least
three such runs are needed, so the smallest ones are never given up.
"""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

EARLIEST = 1 / 3
LATELY = 3
PEERS = 3

Curve = Sequence[tuple[float, float]]  # share of the steps, validation error in percent


class Finished(NamedTuple):
    """What a finished run is compared by."""

    file_bytes: float
    curve: Curve


def unpromising(curve: Curve, size: float, finished: Sequence[Finished]) -> bool:
    """Whether a run that has measured this curve, and will have this size, is to be given up.

    >>> small = [Finished(500, [(0.5, error), (1.0, 2.0)]) for error in (4.0, 5.0, 6.0)]
    >>> unpromising([(0.5, 5.5)], 600, small), unpromising([(0.5, 4.5)], 600, small)
    (True, False)
    >>> unpromising([(0.5, 5.5)], 400, small)
    False
    """
    if not curve or curve[-1][0] < EARLIEST:
        return False
    share = curve[-1][0]
    peers = [_lately(one.curve, share) for one in finished if one.file_bytes <= size]
    errors = [error for error in peers if error is not None]
    own = _lately(curve, share)
    return own is not None and len(errors) >= PEERS and own > median(errors)


def _lately(curve: Curve, share: float) -> float | None:
    """The lowest of the last few errors up to there."""
    measured = [error for at, error in curve if at <= share + 1e-9]
    return min(measured[-LATELY:], default=None)
