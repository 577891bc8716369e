"""What is known of a trial, and when its run is not worth its remaining steps.

Takes     the validation errors of a run so far, its size, and what finished trials have measured.
Gives     `Trial`, and whether a run is unpromising.
Unaware   of Optuna, which has no pruning for two objectives, and of test data.

The rule: once a third of its steps are done, a run is given up if its validation error is more than
two standard errors above the median of those that finished runs of the same or a smaller size had
at the same share of their steps. Errors are the lowest of the last three measurements, since single
ones wander. At least three such runs are needed, so the smallest ones are never given up.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from reefknot.lab.searching.space import Value

EARLIEST = 1 / 3
LATELY = 3
PEERS = 3
STANDARD_ERRORS = 2

Curve = Sequence[tuple[float, float]]  # share of the steps, validation error in percent


@dataclass(frozen=True)
class Trial:
    """A trial that a worker has taken, and what came of it; errors are of validation data."""

    number: int
    state: str = "running"  # or finished, pruned, failed, waiting
    values: Mapping[str, Value] = field(default_factory=dict)
    val_error: float | None = None
    file_bytes: int | None = None
    curve: Curve = ()
    reason: str = ""  # why it failed


def unpromising(curve: Curve, size: float, finished: Iterable[Trial], examples: int) -> bool:
    """Whether a run that has measured this curve, and will have this size, is to be given up.

    Args:
        curve: its validation errors so far.
        size: the bytes that its file will have.
        finished: what it is compared with.
        examples: how many of them the errors are measured on.

    >>> curves = [[(0.5, error), (1.0, 2.0)] for error in (4.0, 5.0, 6.0)]
    >>> small = [Trial(n, file_bytes=500, curve=curve) for n, curve in enumerate(curves)]
    >>> [unpromising([(0.5, error)], 600, small, 6_000) for error in (5.5, 5.7)]
    [False, True]
    >>> unpromising([(0.5, 99.0)], 400, small, 6_000)
    False
    """
    if not curve or curve[-1][0] < EARLIEST:
        return False
    share = curve[-1][0]
    peers = [_lately(one.curve, share) for one in finished if (one.file_bytes or 0) <= size]
    errors = [error for error in peers if error is not None]
    own = _lately(curve, share)
    if own is None or len(errors) < PEERS:
        return False
    standard_error = math.sqrt(own * (100 - own) / examples)  # in points, as errors are
    return own > median(errors) + STANDARD_ERRORS * standard_error


def _lately(curve: Curve, share: float) -> float | None:
    """The lowest of the last few errors up to there."""
    measured = [error for at, error in curve if at <= share + 1e-9]
    return min(measured[-LATELY:], default=None)
