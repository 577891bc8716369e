"""torch's own threads, lent to the compiled loops.

Takes     nothing; looks for the OpenMP library that torch has loaded.
Gives     a `Team` for `kernels.shared`, or None where there is no such library (macOS, Windows).
Unaware   of the loops.

A second pool of threads would fight with torch's for the same cores: after each operation torch's
threads stay awake for a while, in the hope of another. So they are given another.
"""

import ctypes
import os
from pathlib import Path

import torch

from reefknot.kernels.shared import Team


def torch_team() -> Team | None:
    """Runs a worker on torch's threads, through the function that its own loops go through."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    package = Path(torch.__file__).parent
    for path in (*package.glob("lib/libgomp*"), *package.parent.glob("torch.libs/libgomp*")):
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            parallel = library.GOMP_parallel
        except (OSError, AttributeError):  # not the one that is in use
            continue
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return lambda worker, task, threads: parallel(worker, task, threads, 0)
    return None
