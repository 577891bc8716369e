"""For all tests. This folder is on the path: tests of several folders share `reef_examples`."""

import torch
from hypothesis import settings

# The first example may have to compile a loop; slowness is no failure. Examples are the same in
# each run, on each machine: what a run finds by chance belongs into a test of its own.
settings.register_profile("reefknot", deadline=None, derandomize=True, database=None)
settings.load_profile("reefknot")

# Networks this small gain nothing from a second thread, and wait for it when the machine is busy.
torch.set_num_threads(1)

collect_ignore = ["format/fuzz_atheris.py"]  # needs atheris, and is run by itself
