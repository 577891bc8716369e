"""For all tests. This folder is on the path: tests of several folders share `reef_examples`."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

# The first example may have to compile a loop; slowness is no failure. Examples are the same in
# each run, on each machine: what a run finds by chance belongs into a test of its own.
settings.register_profile("reefknot", deadline=None, derandomize=True, database=None)
settings.load_profile("reefknot")

# Networks this small gain nothing from a second thread, and wait for it when the machine is busy.
# Programs that tests start have one, too, unless told otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)

# So are the random numbers of a test: those that its file draws for parameters, and its own.


def seed_random_numbers():
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def pytest_collectstart(collector):
    if isinstance(collector, pytest.Module):
        seed_random_numbers()


@pytest.fixture(autouse=True)
def seeded():
    seed_random_numbers()


def pytest_collection_modifyitems(items):
    """Tests that need MNIST are skipped where nobody says where it is."""
    if not os.environ.get("REEFKNOT_DATA"):
        for item in items:
            if item.get_closest_marker("mnist"):
                item.add_marker(pytest.mark.skip(reason="MNIST is not here: set REEFKNOT_DATA"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Two processes; for files that are named only this one, which is there sooner."""
    files = [Path(argument.partition("::")[0]) for argument in config.args]
    return 0 if all(file.is_file() for file in files) else 2


def pytest_addoption(parser, pluginmanager):
    """Without xdist its options in pyproject.toml mean nothing: all tests run in one process."""
    if not pluginmanager.hasplugin("xdist"):
        for option in ("--numprocesses", "--dist"):
            parser.addoption(option, help="ignored: there is no pytest-xdist")
