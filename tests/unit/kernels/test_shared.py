"""Work that threads share."""

import os
import subprocess
import sys

import pytest

# Threads have run in the parent, lent by torch; the child has none of them.
FORK = """
import os
import numpy as np, torch
import reefknot.tying.ops
from reefknot import cluster, kmeans1d
values = np.random.default_rng(0).normal(size=(1 << 10, 1 << 11)).astype(np.float32)
torch.ones(1 << 22).add(1)
before = kmeans1d(values, 16)
child = os.fork()
if not child:
    torch.set_num_threads(1)
    after = kmeans1d(values, 16)
    cluster({"w": values}, num_clusters=16)
    os._exit(0 if np.array_equal(before.assignment, after.assignment) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_clusters_by_itself_after_threads_ran_in_its_parent():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "0"
