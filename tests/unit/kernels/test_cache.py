"""Compiled loops are kept on disk, as long as everything they were made of stays the same."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

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

print(times(10), sum(times.machine_code.stats.cache_hits.values()), work.cache_hits)
"""
PARTS = """
from reefknot.kernels.jit import inlined

FACTOR = 2

@inlined
def plus(x):
    return x + 1
"""

# Two loops that are made on the same line, by two processes. Both read what is kept before either
# writes; then the second writes both of its files between those of the first.
MADE = """
from reefknot.kernels.jit import compiled

def times(factor):
    @compiled("int64(int64)")
    def loop(x):
        return factor * x
    return loop
"""
AT_ONCE = """
import sys, time
from pathlib import Path
from numba.core.caching import IndexDataCacheFile as Files

me, folder = sys.argv[1], Path(sys.argv[2])
save_index, save_data = Files._save_index, Files._save_data

def done(step):
    (folder / step).touch()

def wait_for(step):
    while not (folder / step).exists():
        time.sleep(0.001)

def slow_index(*arguments):
    done(f"{me} has read")
    wait_for("2 has read")
    wait_for("3 has read")
    if me == "3":
        wait_for("2 has an index")
    save_index(*arguments)
    done(f"{me} has an index")

def slow_data(*arguments):
    if me == "2":
        wait_for("3 has data")
    save_data(*arguments)
    done(f"{me} has data")

Files._save_index, Files._save_data = slow_index, slow_data
from made import times
times(int(me)).machine_code
"""
LOOK_AT_BOTH = """
from made import times

for loop in times(2), times(3):
    print(loop(10), sum(loop.machine_code.stats.cache_hits.values()))
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
    for name in ("__init__.py", "__init__.pyi"):
        shutil.copy(here / name, package)
    (tmp_path / "loops.py").write_text(LOOPS)
    (tmp_path / "parts.py").write_text(PARTS)

    def hits():
        return printed(tmp_path / "loops.py", PYTHONPATH=tmp_path).stdout.split()[1:]

    assert [hits(), hits()] == [["0", "0"], ["1", "1"]]
    for name in ("work.py", "reducer.py"):
        with (package / "kernels" / name).open("a") as file:
            file.write("\n# changed\n")
        assert hits() == ["0", "0"]


@pytest.mark.slow
def test_processes_that_compile_at_once_do_not_mix_up_their_loops(tmp_path):
    steps = tmp_path / "steps"
    steps.mkdir()
    (tmp_path / "made.py").write_text(MADE)
    (tmp_path / "at_once.py").write_text(AT_ONCE)
    (tmp_path / "look.py").write_text(LOOK_AT_BOTH)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda me: printed(tmp_path / "at_once.py", me, steps), "23"))
    assert printed(tmp_path / "look.py").stdout.split() == ["20", "1", "30", "1"]


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


def test_one_line_says_that_loops_are_compiled_and_where_they_are_kept(tmp_path):
    (tmp_path / "loops.py").write_text(LOOPS)
    (tmp_path / "parts.py").write_text(PARTS)
    kept = {"NUMBA_CACHE_DIR": tmp_path / "kept"}
    (line,) = printed(tmp_path / "loops.py", **kept).stderr.splitlines()
    assert line.startswith(
        f"reefknot: compiling loops for this machine, once; they are kept in {tmp_path}"
    )
    assert not printed(tmp_path / "loops.py", **kept).stderr
