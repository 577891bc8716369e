"""Loops do the same in plain Python as in machine code, bit for bit."""

import random
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from format.mutate import mutated, repaired
from hypothesis import given, settings
from hypothesis import strategies as st

from reefknot.codec.coder import TextModel
from reefknot.dtypes import DTYPES
from reefknot.errors import FormatError
from reefknot.format import encode
from reefknot.format.read import decode
from reefknot.kernels import disk, jit, plain
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor

GOLDEN = sorted((Path(__file__).parents[2] / "format" / "golden").glob("*.reef"))
RECORD = "experiments/records/2026-11-17_lenet-5-caffe_sparse_apt-1140_seed0/model.reef"


@contextmanager
def all_loops(in_python):
    """Run every loop with a bound on its steps in plain Python, or none."""

    def call(loop, *arguments):
        if in_python and loop.steps is not None:
            return plain.run(loop.function, arguments)
        return loop.machine_code(*arguments)

    with (
        mock.patch.object(jit.Loop, "__call__", call),
        mock.patch.object(TextModel, "primed", None),
    ):
        yield


def both_ways(function, *arguments):
    """What a function gives, or the error that it raises, in machine code; the same in Python."""
    results = []
    for in_python in (False, True):
        with all_loops(in_python):
            try:
                results.append(function(*arguments))
            except FormatError as error:
                results.append(str(error))
    assert type(results[0]) is type(results[1])
    return results


def described(data):
    """Everything in a state, as bytes."""
    state = decode(data, max_bytes=1 << 24)
    tensors = [
        (t.name, t.indices.tobytes(), t.shape, t.codebook)
        if isinstance(t, TiedTensor)
        else (t.name, t.data.tobytes(), t.shape)
        for t in state.tensors
    ]
    return tensors, [book.values.tobytes() for book in state.codebooks]


@st.composite
def states(draw):
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    num_values = draw(st.sampled_from([2, 3, 17, 200, 300]))
    values = np.arange(num_values, dtype="<f4") - draw(st.sampled_from([0, num_values // 2]))
    shape = draw(st.sampled_from([(7,), (5, 9), (9, 16), (4, 2, 3, 3), (3, 3, 8, 8), (40, 1)]))
    density = draw(st.sampled_from([0.0, 0.05, 0.5, 1.0]))
    pivot = int(np.flatnonzero(values == 0)[0])
    alive = (rng.random(shape) < density) & (rng.random(shape[-1]) < 0.7)
    indices = np.where(alive, rng.integers(0, num_values, shape), pivot)
    kind = draw(st.sampled_from(["F32", "BF16", "I64", "BOOL"]))
    raw = rng.integers(0, 2, 11).astype(DTYPES[kind].storage)
    return TiedState(
        (Codebook(DTYPES["F32"], values),),
        (
            TiedTensor(draw(st.text(max_size=40)) + ".weight", 0, indices),
            TiedTensor("second.weight", 0, indices[..., :1]),
            KeptTensor("kept", DTYPES[kind], raw),
        ),
    )


@settings(max_examples=60, deadline=None)
@given(states(), st.sampled_from(["auto", "fast"]))
def test_a_state_is_written_and_read_the_same_both_ways(state, coding):
    compiled, interpreted = both_ways(lambda: encode(state, coding))
    assert interpreted == compiled
    first, second = both_ways(described, compiled)
    assert first == second


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_golden_files_are_read_the_same_both_ways(path):
    compiled, interpreted = both_ways(described, path.read_bytes())
    assert interpreted == compiled


def test_damaged_files_are_read_or_refused_the_same_both_ways():
    rng = random.Random(0)
    for _ in range(150):
        data = repaired(mutated(rng.choice(GOLDEN).read_bytes(), rng))
        compiled, interpreted = both_ways(described, data)
        assert interpreted == compiled


def test_a_loop_is_compiled_once_it_has_more_than_a_little_to_do(monkeypatch):
    monkeypatch.setattr(disk, "is_kept", lambda *_: False)  # of an earlier run of this test
    loop = jit.Loop(_sum_below, "int64(int64)", allocates=False, steps=lambda number: number)
    assert loop(1000) == 499_500 and loop._machine_code is None
    half = jit.PLAIN_STEPS // 2
    loop(half)
    assert loop._machine_code is None
    loop(half)
    assert loop._machine_code is not None
    assert loop(1000) == 499_500


def _sum_below(number):
    total = 0
    for n in range(number):
        total += n
    return total


def test_a_small_file_is_inspected_without_numba_and_torch():
    code = f"import reefknot, sys\nprint(reefknot.inspect({RECORD!r}).file_bytes)\n"
    code += "print({'numba', 'torch', 'rich'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[1] == "set()" and not done.stderr
