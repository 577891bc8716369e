"""Builds the list of phases from two numbers: target size and number of steps.

Takes     the tied weights, a target, the number of steps, and where training begins.
Gives     the phases in order, each with its share of the steps.
Paper     ours; all hand-tuned recipes that it replaces agreed on these constants.
Unaware   of what a phase does.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, get_args

from torch import Tensor

from reefknot.phases.commit import Commit
from reefknot.phases.controller import PriceController, SparsityController
from reefknot.phases.frozen import Frozen
from reefknot.phases.phase import Phase
from reefknot.phases.prune import Pruning, with_zeros
from reefknot.phases.recover import Recover
from reefknot.phases.sparsify import Sparsify
from reefknot.tying.collectives import local
from reefknot.tying.tying import Tying

Begin = Literal["sparsify", "trained", "commit"]
FROM_SCRATCH, TRAINED, TIED = get_args(Begin)

# Shares of the steps: sparsify, recover, commit; frozen has the rest.
_SHARES = {"sparsify": (0.66, 0.06, 0.26), "trained": (0.46, 0.10, 0.40)}
_COMMIT_SHARE = 0.95  # if training begins with commit
_UPDATES = 60  # the L1 strength is updated, and k-means runs, after every sixtieth of the steps
# The least steps between two updates, k-means runs and measurements of the size (in commit) in
# networks of `_LARGE` weights and more, where they take as long as one, two and a dozen steps;
# fewer in others. In sparsify a size is measured after every twelfth of the steps, within bounds.
_LEAST_UPDATE, _LEAST_REFIT, _LEAST_MEASUREMENT, _LARGE = 20, 32, 120, 200_000
_MEASUREMENTS, _MEASURE_EVERY = 12, (120, 500)
# In fewer steps than this the learning rate stays as it is until commit begins: a decay would leave
# too little time for L1 to bring small weights to zero.
_LONG = 20_000
_REFRESH = 8  # steps between two means of the clusters in sparsify, where the pull is weak
# Of random starts the largest singular value is at most 1.03 times that of theory, in matrices
# with as many elements; in six small trained networks the largest ratio was 1.3 to 2.4.
_LEAST_MATRIX, _STANDS_OUT, _POWER_STEPS = 256, 1.15, 12
_SLACK = 1.07  # recover prunes to this times the target; commit makes the remaining zeros
_TYING = (1e-5, 1e-4, 1e-1)  # strength in sparsify, at the end of recover, at the end of commit


def phases_for(
    tying: Tying,
    pruning: Pruning,
    steps: int,
    begin: Begin,
) -> list[Phase]:
    """The four phases of a budget, or only the last two if the weights are already tied."""
    share = min(1.0, pruning.num_weights / _LARGE)
    update_every = max(1, round(share * _LEAST_UPDATE), steps // _UPDATES)
    refit_every = max(update_every, round(share * _LEAST_REFIT))
    few, many = _MEASURE_EVERY
    measure_every = max(1, round(share * max(few, min(steps // _MEASUREMENTS, many))))
    low, middle, high = _TYING

    def last_two(commit_steps: int, frozen_steps: int) -> list[Phase]:
        commit = Commit(
            tying,
            commit_steps,
            tying_strength=(middle, high),
            refit_every=refit_every,
            controller=PriceController(pruning.target),
            measure_every=max(1, round(share * _LEAST_MEASUREMENT)),
            size_of_zeros=lambda: with_zeros(pruning.groups, pruning.target.measure),
        )
        trim = Frozen(tying, frozen_steps, prepare=pruning.prune_if_not_yet, trim=pruning.trim)
        return [commit, trim]

    if begin == TIED:
        return last_two(*_lengths(steps, [_COMMIT_SHARE]))
    lengths = _lengths(steps, _SHARES[begin])
    phases: list[Phase] = [
        Sparsify(
            tying,
            lengths[0],
            tying_strength=low,
            refit_every=refit_every,
            refresh_every=_REFRESH,
            init="kmeans" if begin == TRAINED else "even",
            controller=SparsityController(pruning, max(1.0, update_every * _UPDATES / steps)),
            update_every=update_every,
            measure_every=measure_every,
        ),
        Recover(
            tying,
            lengths[1],
            tying_strength=(low, middle),
            refit_every=refit_every,
            choose_zeros=lambda: pruning.prune(_SLACK),
        ),
        *last_two(*lengths[2:]),
    ]
    if steps < _LONG:
        for phase in phases[:2]:
            phase.lr_floor = 1.0
    return phases


def begin_of(tying: Tying) -> Begin:
    """Whether weights look random or trained.

    Training makes a few directions of a matrix stand out: its largest singular value exceeds that
    of random numbers with the same variance, which is known (Marchenko and Pastur, 1967). That of
    random starts, whatever their distribution, does not; where weights are sharded, those of the
    first process decide.
    """
    matrices = [
        local(parameter).detach()
        for parameter in tying.home
        if parameter.dim() > 1 and not parameter.is_meta
    ]
    is_trained = tying.everyone().broadcast_from_rank0(
        lambda: int(any(_stands_out(matrix) for matrix in matrices))
    )
    return TRAINED if is_trained else FROM_SCRATCH


def _stands_out(matrix: Tensor) -> bool:
    """Whether a matrix has a larger singular value than random numbers would have."""
    rows = matrix.reshape(len(matrix), -1) if matrix.numel() else matrix.reshape(0, 0)
    if rows.numel() < _LEAST_MATRIX:
        return False
    rows = rows.float() - rows.float().mean()
    random = float(rows.square().mean().sqrt()) * (
        math.sqrt(rows.shape[0]) + math.sqrt(rows.shape[1])
    )
    vector = rows[rows.square().sum(1).argmax()]
    for _ in range(_POWER_STEPS):
        vector = rows.T @ (rows @ vector)
        vector = vector / vector.norm().clamp(min=1e-30)
    return float((rows @ vector).norm()) > _STANDS_OUT * random


def _lengths(steps: int, shares: Sequence[float]) -> list[int]:
    """The number of steps of each phase, at least one; the last phase gets the rest."""
    ends: list[int] = []
    for number, share in enumerate(itertools.accumulate(shares)):
        first = ends[-1] + 1 if ends else 1
        last = steps - len(shares) + number
        ends.append(min(max(round(share * steps), first), last))
    return [end - begin for begin, end in itertools.pairwise([0, *ends, steps])]
