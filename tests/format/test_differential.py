"""The library against the decoder of the specification: the same content, the same refusals."""

import random
from pathlib import Path

import pytest
from reef_examples import random_file

from format.mutate import mutated, repaired
from format.reference import reference
from reefknot.errors import FormatError
from reefknot.format import decode

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.reef"))
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


def mutants(rounds, seed, version=1):
    """Valid files, each damaged many times, with checksums that match."""
    rng = random.Random(seed)
    originals = [random_file(rng, version) for _ in range(min(rounds // 20, 1000))]
    originals += [path.read_bytes() for path in GOLDEN if path.stat().st_size < 100]
    while rounds:
        data = repaired(mutated(rng.choice(originals), rng))
        if data[3:4] not in (b"\2", b"\x82") or version == 2:  # not all readers know it
            yield data
            rounds -= 1


@pytest.mark.parametrize("number", [80, pytest.param(800, marks=pytest.mark.slow)])
@pytest.mark.parametrize("version", [1, 2])
def test_both_read_random_files(version, number):
    rng = random.Random(5)
    files = (random_file(rng, version) for _ in range(number))
    found, accepted = disagreements(files, limit=1 << 20)
    assert not found
    assert accepted == number


@pytest.mark.parametrize(("version", "rounds"), [(1, 600), (2, 200)])
def test_both_agree_on_mutations(version, rounds):
    found, accepted = disagreements(mutants(rounds, 6, version))
    assert not found
    assert accepted > rounds // 15


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", [1, 2])
def test_both_agree_on_two_hundred_thousand_mutations(version):
    found, accepted = disagreements(mutants(200_000, 7, version))
    print(f"{accepted:,} of 200,000 accepted")
    assert not found
    assert accepted > 10_000
