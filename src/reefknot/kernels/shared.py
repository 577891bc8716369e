"""Work on several threads: each takes pieces of a task until none is left.

Takes     a worker (compiled code that gets one address) and a task at that address.
Gives     the task done, on up to the given number of threads.
Unaware   of what the work is, and of torch; but torch's thread pool may be borrowed (`borrow`).

A task is an array of int64, whose first two elements are set here; a worker finds out from the rest
which piece is next. The result must not depend on which thread does which piece: integers are
added, or each piece writes to its own memory. Threads of a running pool start within a microsecond,
new Python threads in a tenth of a millisecond, so without a borrowed pool small tasks are done by
the caller alone.

A forked process (a worker of torch's DataLoader) has no threads of its parent's pool, and OpenMP
would wait for them forever: there the caller does everything alone.
"""

import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.core.ccallback import CFunc
from numba.extending import intrinsic
from numpy.typing import NDArray

from reefknot.kernels.disk import keep_on_disk
from reefknot.kernels.jit import inlined_with_arrays, with_compiled_parts

ARRIVED, THREAD_NUMBER = 0, 1  # elements of a task: how many threads came; see `thread_number`
WORTH_A_THREAD = 1 << 20  # from this many elements on, Python threads pay off


class Team(NamedTuple):
    """A thread pool: how it runs a worker, and the address of a C function `int number(void)`."""

    run: Callable[[int, int, int], None]  # (worker's address, task's address, threads)
    thread_number: int


_team: Team | None = None
_forked = False


def _stay_alone() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stay_alone)


def borrow(team: Team | None) -> None:
    """Use this thread pool from now on; None for Python's own threads."""
    global _team
    _team = team


def share(worker: Any, task: NDArray[np.int64], elements: int, threads: int) -> None:
    """Run a worker on a task, on at most `threads` threads."""
    task[ARRIVED] = task[THREAD_NUMBER] = 0
    where = task.ctypes.data
    threads = 1 if _forked else threads
    if threads > 1 and _team is not None:
        task[THREAD_NUMBER] = _team.thread_number
        _team.run(worker.address, where, threads)
    elif threads > 1 and elements >= WORTH_A_THREAD:
        helpers = [
            threading.Thread(target=worker.ctypes, args=(where,)) for _ in range(threads - 1)
        ]
        for helper in helpers:
            helper.start()
        worker.ctypes(where)
        for helper in helpers:
            helper.join()
    else:
        worker.ctypes(where)


def available_threads() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker(function: Any) -> Any:
    """Compile a worker; the machine code is cached on disk if possible."""
    function = with_compiled_parts(function)
    loop = CFunc(function, ((types.voidptr,), types.void), locals={}, options={})
    keep_on_disk(loop, function)
    loop.compile()
    return loop


def _pointer(typingctx: Any, address: Any) -> Any:
    """An address, given as an integer, as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


def _add_to(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Atomically add to an element of an int64 array; gives the previous value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.gep(data, [arguments[1]])
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), generate


def _call(typingctx: Any, address: Any) -> Any:
    """Call the C function `int f(void)` at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), ())
        found = builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), ())
        return builder.sext(found, ir.IntType(64))

    return types.int64(types.int64), generate


pointer: Any = intrinsic(_pointer)
add_to: Any = intrinsic(_add_to)
call: Any = intrinsic(_call)


@inlined_with_arrays
def thread_number(task: Any) -> Any:
    """The number of this thread: that of the pool, or the order in which threads came."""
    if task[THREAD_NUMBER] == 0:
        return add_to(task, ARRIVED, 1)
    return call(task[THREAD_NUMBER])


@inlined_with_arrays
def array_at(address: Any, shape: Any, dtype: Any) -> Any:
    """The array at an address."""
    return carray(pointer(address), shape, dtype)
