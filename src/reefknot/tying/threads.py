"""Runs the compiled loops on torch's own thread pool.

Takes     nothing; looks for the OpenMP library that torch has loaded.
Gives     a `Team` for `kernels.shared`, or None where there is no such library (macOS, Windows).
Unaware   of the loops.

A second thread pool would compete with torch's for the same cores, because torch's threads keep
spinning for a while after each operation, waiting for the next one.
"""

import ctypes
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from reefknot.kernels.shared import Team


def torch_team() -> Team | None:
    """A function that runs a worker on torch's threads, through OpenMP's `GOMP_parallel`."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    package = Path(torch.__file__).parent
    for path in (*package.glob("lib/libgomp*"), *package.parent.glob("torch.libs/libgomp*")):
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            parallel, number = library.GOMP_parallel, library.omp_get_thread_num
        except (OSError, AttributeError):  # not the one that is in use
            continue
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        address = ctypes.cast(number, ctypes.c_void_p).value
        assert address is not None
        return Team(partial(_run, parallel), address)
    return None


def _run(parallel: Callable[..., None], worker: int, task: int, threads: int) -> None:
    parallel(worker, task, threads, 0)
