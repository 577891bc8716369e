import ast
import importlib
import inspect
import os
import pkgutil
import subprocess
import sys
from types import FunctionType
from unittest import mock

import numba
import numpy as np
import pytest

from reefknot.codec import kernels, tied
from reefknot.codec.coder import Coder, spent_eighths
from reefknot.codec.kernels.tables import (
    PAIR_BUCKET,
    PULL_BUCKET,
    RECIPROCAL,
    SQUASH,
    STRENGTH,
    STRETCH,
    STRETCH_MAX,
)
from reefknot.codec.kernels.tied import elements_loop, maps_loop
from reefknot.codec.static import normalised
from reefknot.dtypes import DTYPES
from reefknot.errors import FormatError
from reefknot.format import layout
from reefknot.format.content import SolidContent
from reefknot.kernels import jit

MODULES = [
    importlib.import_module(f"{kernels.__name__}.{found.name}")
    for found in pkgutil.iter_modules(kernels.__path__)
]
TIED = {
    f"{make.__name__} of {np.dtype(index)}, {'writing' if encoding else 'reading'}": make(
        np.dtype(index), encoding
    )
    for make in (maps_loop, elements_loop)
    for index in (np.uint8, np.uint16)
    for encoding in (False, True)
}
KERNELS = TIED | {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, jit.Loop)
}
PARTS = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, FunctionType) and value in jit._parts
}


@pytest.mark.slow
def test_kernels_and_their_parts_are_all_integers():
    # uint64 and int64 together silently become float64, which would decide bits by rounding. Loops
    # that come from the cache do not know their types, so they are compiled again.
    for name, kernel in KERNELS.items():
        if "uint16" not in name:
            made = numba.njit(kernel._types, **kernel.options)
            _check_integers(name, made(jit.with_compiled_parts(kernel.function)))
    assert {"code_bit", "code_mixed", "shrunk", "count"} <= set(PARTS)
    for name, part in PARTS.items():
        assert jit._part(part).overloads, name
        _check_integers(name, jit._part(part))


def _check_integers(name, function):
    for compiled in function.overloads.values():
        for variable, kind in compiled.type_annotation.typemap.items():
            assert "float" not in str(kind), f"{variable} of {name} is {kind}"


def test_kernels_have_their_signatures_only():
    assert {"code_planes", "code_text", "rans_decode"} <= set(KERNELS)
    with pytest.raises(TypeError):
        KERNELS["rans_decode"].machine_code([1.5], None, 1, None, None)
    for loop in TIED.values():
        with pytest.raises(TypeError):
            loop.machine_code(*[np.zeros(1)] * 6)


def test_loops_are_made_of_files_that_the_name_of_their_machine_code_stands_for():
    # Constants and parts are compiled into a loop: one that came from elsewhere could go stale.
    for module in MODULES:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "reefknot":
                assert node.module.startswith(("reefknot.codec.kernels.", "reefknot.kernels."))
            assert not isinstance(node, ast.Import) or node.names[0].name == "numpy"


def test_tables():
    assert SQUASH[STRETCH_MAX] == 32768 and len(SQUASH) == 2 * STRETCH_MAX + 1
    assert np.all(np.diff(SQUASH.astype(int)) >= 0) and SQUASH[0] >= 1
    x = np.arange(-STRETCH_MAX, STRETCH_MAX + 1)
    assert np.allclose(SQUASH, 65536 / (1 + np.exp(-x / 256)), atol=1.01)
    assert np.all(np.diff(STRETCH) >= 0) and abs(int(STRETCH[2048])) <= 1
    assert STRETCH[0] == -STRETCH_MAX and STRETCH[-1] == STRETCH_MAX + 1
    assert RECIPROCAL[2] == 1 << 31
    assert STRENGTH[0] == 0 and STRENGTH[64] == 7 and STRENGTH[-1] == 14
    assert PULL_BUCKET.max() == 5 and PAIR_BUCKET.tolist()[:6] == [7, 6, 6, 6, 0, 1]


def test_bits_cost_what_their_probability_says():
    coder, rng = Coder(), np.random.default_rng(0)
    bits = (rng.random(20_000) < 0.1).tolist()
    for bit in bits:
        coder.flag(bit, "x")
    share = np.mean(bits)
    entropy = -20_000 * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    data = coder.finish()
    assert len(data) == pytest.approx(entropy / 8, rel=0.02)
    assert coder.spent() / 64 == pytest.approx(len(data), abs=2)
    reader = Coder(data)
    assert [reader.flag(0, "x") for _ in bits] == bits
    reader.close()


def test_certain_bits_and_carries():
    # Long runs of improbable bits push the carry through many bytes.
    rng = np.random.default_rng(1)
    for _ in range(200):
        sizes = rng.integers(1, 1 << 40, 60)
        values = [int(rng.choice([0, s - 1, rng.integers(0, s)])) for s in sizes]
        coder = Coder()
        for value, size in zip(values, sizes, strict=True):
            coder.uniform(value, int(size))
        reader = Coder(coder.finish())
        assert [reader.uniform(0, int(size)) for size in sizes] == values
        reader.close()


@pytest.mark.parametrize("value", [0, 1, 2, 3, 1000, 2**31, 2**48 - 2])
def test_numbers(value):
    coder = Coder()
    for _ in range(5):
        coder.number(value, "n")
    reader = Coder(coder.finish())
    assert [reader.number(0, "n") for _ in range(5)] == [value] * 5


def test_ascending_numbers_cost_less_than_their_order():
    values = sorted(np.random.default_rng(0).choice(1 << 24, 16, replace=False).tolist())
    coder = Coder()
    assert coder.ascending(values, 16, 0, (1 << 24) - 1) == values
    assert coder.spent() / 8 < 16 * 24 - 40  # 16! orders are worth 44 bits
    with pytest.raises(FormatError, match="more values than fit"):
        Coder(b"").ascending([], 5, 0, 3)


def test_spent_counts_eighths_of_bits():
    coder = Coder()
    start = coder.spent()
    coder.uniform(1, 2)
    assert spent_eighths(coder.state) - start in (7, 8)


@pytest.mark.parametrize("counts", [[1], [0, 5], [1] * 256, [10**9, 1, 1], [0, 0], [3] * 4096])
def test_normalised_frequencies_sum_to_a_power_of_two(counts):
    precision = 12 if len(counts) <= 256 else 16
    result = normalised(np.array(counts), precision)
    assert result.sum() == 1 << precision
    assert np.all((result > 0) | (np.array(counts) == 0))


def test_importing_works_where_nothing_can_be_cached(tmp_path):
    # A read-only package without a home folder: compiled again, not an error.
    code = (
        "from reefknot.kernels.jit import compiled\nprint(compiled('int64(int64)')(lambda x: x)(3))"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": "", "HOME": "/nonexistent"}
    environment |= {"XDG_CACHE_HOME": "/nonexistent", "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert result.stdout.strip() == "3", result.stderr


@pytest.mark.parametrize("shape", [(2, 1 << 20), (1, 3 << 20), (1 << 20, 2)])
@pytest.mark.parametrize("maps", [False, True])
def test_tensors_of_a_million_columns_are_coded_without_tables_of_their_columns(shape, maps):
    # Grids of three images have planes; the rows of the first tensor are units of the second.
    rng = np.random.default_rng(0)
    wide = np.zeros(shape, np.uint8)
    wide[:, :: 997 if maps else 2] = rng.integers(0, 3, wide[:, :: 997 if maps else 2].shape)
    small = rng.integers(0, 3, (4, 5))
    book = layout.Book(DTYPES["U8"], (0, 1, 2))

    def coded(coder, *indices):
        content = SolidContent()
        shapes = ((4, 5), shape)
        return [
            content.code_tied(coder, each, given, 0, book)
            for each, given in zip(shapes, indices, strict=True)
        ]

    with mock.patch.object(tied, "_plans", lambda *_: [tied.Plan(False, maps, tied.NO_GRID)]):
        coder = Coder()
        coded(coder, small, wide)
    _, back = coded(Coder(coder.finish()), None, None)
    assert np.array_equal(back, wide)
