"""Prediction by context mixing: the counts of contexts become the probability of the next bit.

Takes     tables of contexts and weights, and where in them the contexts of a bit are.
Gives     the bit, coded; contexts and weights have learned from it.
Unaware   of what the contexts stand for.
"""

from typing import NamedTuple

import numpy as np

from reefknot.codec.kernels.range_coder import code_bit, coded
from reefknot.codec.kernels.tables import LIMIT, RECIPROCAL, SQUASH, STRETCH, STRETCH_MAX
from reefknot.kernels.jit import inlined

# A context is one number: how many bits it has seen, times 65536, plus how many of them were ones.
SEEN_ONE = 1 << 16


@inlined
def halved(seen_ones):
    """A context of half the weight."""
    return (seen_ones >> 1) & 0x7FFF7FFF


@inlined
def estimate(seen_ones, prior, given):
    """(ones + given) / (seen + prior) in 1/65536, below 65536 if given < 65536·prior."""
    share = np.int64(RECIPROCAL[np.uint64((seen_ones >> 16) + prior)])
    return ((((seen_ones & 0xFFFF) << 16) + given) * share) >> 32


@inlined
def shrunk_of(seen_ones, prior, base):
    """A context's probability, (ones + prior·base) / (seen + prior), kept away from 0 and 1."""
    return min(max(estimate(seen_ones, prior, prior * base), 8), 65528)


@inlined
def shrunk(table, slot, prior, base):
    """The probability of a context in a table, as `shrunk_of` gives it."""
    return shrunk_of(np.int64(table[np.uint64(slot)]), prior, base)


@inlined
def counted(seen_ones, bit):
    """A context that has seen one bit more."""
    if seen_ones >= LIMIT * SEEN_ONE:
        seen_ones = halved(seen_ones)
    return seen_ones + SEEN_ONE + bit


@inlined
def count(table, slot, bit):
    """Count one bit in a context."""
    table[np.uint64(slot)] = counted(np.int64(table[np.uint64(slot)]), bit)


@inlined
def code_adaptive(coder, buffer, bit, table, slot, base):
    """Code one bit from a single context."""
    bit = code_bit(coder, buffer, bit, shrunk(table, slot, 2, base))
    count(table, slot, bit)
    return bit


# ---- several contexts, mixed in the logistic domain ----------------------------------------------


class Vote(NamedTuple):
    """What a context contributes to the prediction of a bit."""

    slot: int
    seen_ones: int
    away: int  # its distance from the base in the logistic domain; 0 if it has seen nothing


@inlined
def stretched(p):
    """A probability in the logistic domain."""
    return np.int64(STRETCH[np.uint64(p >> 4)])


@inlined
def away_from(origin, seen_ones, prior, base):
    """The distance of a context from the base in the logistic domain, where that is `origin`."""
    return stretched(estimate(seen_ones, prior, prior * base)) - origin


@inlined
def vote(table, slot, prior, base, origin):
    """The vote of a context in a table."""
    seen_ones = np.int64(table[np.uint64(slot)])
    return Vote(slot, seen_ones, away_from(origin, seen_ones, prior, base))


@inlined
def squashed(total):
    """The probability for a weighted sum of votes; `stretched` is the inverse."""
    x = min(max((total + 32768) >> 16, -STRETCH_MAX), STRETCH_MAX)
    return np.int64(SQUASH[np.uint64(x + STRETCH_MAX)])


@inlined
def weighed(weights, place, away):
    """A vote times its weight."""
    return weights[np.uint64(place)] * away


@inlined
def learn_base(weights, place, origin, error):
    """Update the weight of the base by the prediction error."""
    weights[np.uint64(place)] += (origin * error) >> 22


@inlined
def learn(weights, place, away, error):
    """Update the weight of a context."""
    weights[np.uint64(place)] += (away * error) >> 18


@inlined
def learn_and_count(weights, place, table, one, error, bit):
    """Update the weight of a vote, and count the bit in its context."""
    learn(weights, place, one.away, error)
    table[np.uint64(one.slot)] = counted(one.seen_ones, bit)


@inlined
def code_mixed(coder, buffer, bit, base, table, slots, priors, weights, first, lr, work):
    """Code one bit from `base` and a context for each of `priors`, then learn from it.

    A context enters by its distance from the base in the logistic domain, so one that has seen
    nothing has no effect. `weights[first]` belongs to the base, those after it to the contexts;
    `lr` is their learning rate.
    """
    origin = stretched(base)
    total = weights[first] * origin
    for i in range(len(priors)):
        away = vote(table, slots[i], priors[i], base, origin).away
        work[i] = away
        total += weights[first + 1 + i] * away
    p = squashed(total)
    bit = code_bit(coder, buffer, bit, p)
    error = ((bit << 16) - p) * lr
    learn_base(weights, first, origin, error)
    for i in range(len(priors)):
        learn(weights, first + 1 + i, work[i], error)
        count(table, slots[i], bit)
    return bit


@inlined
def coded_three(encoding, buffer, interval, bit, base, table, slots, priors, weights, first, lr):
    """`code_mixed` with three different contexts, written out: nothing goes through memory."""
    origin = stretched(base)
    a = vote(table, slots[0], priors[0], base, origin)
    b = vote(table, slots[1], priors[1], base, origin)
    c = vote(table, slots[2], priors[2], base, origin)
    p = squashed(
        weighed(weights, first, origin)
        + weighed(weights, first + 1, a.away)
        + weighed(weights, first + 2, b.away)
        + weighed(weights, first + 3, c.away)
    )
    bit, interval = coded(encoding, buffer, interval, bit, p)
    error = ((bit << 16) - p) * lr
    learn_base(weights, first, origin, error)
    learn_and_count(weights, first + 1, table, a, error, bit)
    learn_and_count(weights, first + 2, table, b, error, bit)
    learn_and_count(weights, first + 3, table, c, error, bit)
    return bit, interval
