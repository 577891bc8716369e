"""The library against the decoder of the specification: the same content, the same refusals."""

import random

import pytest
from reef_examples import random_file

from format.reference import reference
from reefknot.errors import FormatError
from reefknot.format import decode

LIMIT = 2048  # bytes of tensors: the reference takes some 20 microseconds for an element


def by_the_library(data, limit=LIMIT):
    """What the library reads, or None if it refuses."""
    try:
        state = decode(data, max_bytes=limit)
    except FormatError:
        return None
    return {name: (dtype.tag, v.shape, v.tobytes()) for name, dtype, v in state.arrays()}


def by_the_reference(data, limit=LIMIT):
    try:
        return reference.read(data, limit)
    except reference.RefusedError:
        return None


def disagreements(files, limit=LIMIT):
    """The files that the two do not agree on, with the exceptions that neither should raise."""
    found, accepted = [], 0
    for data in files:
        try:
            ours, theirs = by_the_library(data, limit), by_the_reference(data, limit)
        except Exception as error:  # a foreign one, of either
            found.append((data.hex(), repr(error)))
            continue
        accepted += ours is not None
        if ours != theirs:
            found.append((data.hex(), "refused" if ours is None else "read", "by the library"))
    return found, accepted


@pytest.mark.parametrize("number", [80, pytest.param(800, marks=pytest.mark.slow)])
@pytest.mark.parametrize("version", [1, 2])
def test_both_read_random_files(version, number):
    rng = random.Random(5)
    files = (random_file(rng, version) for _ in range(number))
    found, accepted = disagreements(files, limit=1 << 20)
    assert not found
    assert accepted == number
