"""Compiled loops are kept on disk, as long as everything they were made of stays the same."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import reefknot

LOOK = """
import numpy as np
from reefknot.kernels import histogram, loops
found = [
    loops.pull(np.float32, np.uint8, False),
    loops.sum_clusters(np.float32, np.uint8),
    loops.project(np.float32, np.uint8),
    loops.soft_threshold(np.float32),
    histogram._extent(np.float32),
    histogram._count(np.float32),
    histogram._assign(np.float32, np.uint8),
]
print([loop.cache_hits for loop in found])
"""

# A loop that holds a constant and an inlined part of another file, as those of `codec` do.
LOOPS = """
from parts import FACTOR, plus
from reefknot.kernels.jit import compiled
from reefknot.kernels.shared import worker

@compiled("int64(int64)")
def times(x):
    return plus(FACTOR * x)

@worker
def work(address):
    plus(FACTOR)

print(times(10), sum(times.stats.cache_hits.values()), work.cache_hits)
"""
PARTS = """
from reefknot.kernels.jit import inlined

FACTOR = 2

@inlined
def plus(x):
    return x + 1
"""


def printed(*arguments, **variables):
    environment = os.environ | {key: str(value) for key, value in variables.items()}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )


def test_loops_are_compiled_once_and_found_again():
    for _ in range(2):  # the first may have to compile them
        done = printed("-c", LOOK)
    assert done.stdout.strip() == "[1, 1, 1, 1, 1, 1, 1]"


def test_a_loop_is_compiled_again_when_a_file_that_it_took_something_from_changes(tmp_path):
    (tmp_path / "loops.py").write_text(LOOPS)
    (tmp_path / "parts.py").write_text(PARTS)

    def found():
        return printed(tmp_path / "loops.py").stdout.split()

    assert found() == ["21", "0", "0"]
    assert found() == ["21", "1", "1"]
    (tmp_path / "parts.py").write_text(PARTS.replace("= 2", "= 3").replace("+ 1", "+ 5"))
    assert found() == ["35", "0", "0"]


def test_loops_depend_on_every_file_of_the_kernels(tmp_path):
    package = tmp_path / "reefknot"
    here = Path(reefknot.__file__).parent
    shutil.copytree(here / "kernels", package / "kernels", ignore=lambda *_: ["__pycache__"])
    shutil.copy(here / "__init__.py", package)
    (tmp_path / "loops.py").write_text(LOOPS)
    (tmp_path / "parts.py").write_text(PARTS)

    def hits():
        return printed(tmp_path / "loops.py", PYTHONPATH=tmp_path).stdout.split()[1:]

    assert [hits(), hits()] == [["0", "0"], ["1", "1"]]
    for name in ("work.py", "vectors.py"):
        with (package / "kernels" / name).open("a") as file:
            file.write("\n# changed\n")
        assert hits() == ["0", "0"]


def test_without_a_folder_to_keep_loops_in_one_sentence_says_so(tmp_path):
    (tmp_path / "loops.py").write_text(LOOPS)
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "__pycache__").write_text("no folder")
    nowhere = tmp_path / "loops.py" / "cache"
    homeless = {"HOME": nowhere, "XDG_CACHE_HOME": nowhere, "PYTHONDONTWRITEBYTECODE": 1}
    done = printed(tmp_path / "loops.py", **homeless)
    assert done.stdout.split() == ["21", "0", "0"]
    assert len(done.stderr.splitlines()) == 1 and "set NUMBA_CACHE_DIR" in done.stderr
    for _ in range(2):
        done = printed(tmp_path / "loops.py", **homeless, NUMBA_CACHE_DIR=tmp_path / "kept")
    assert done.stdout.split() == ["21", "1", "1"] and not done.stderr
