"""Work on several arrays, divided among threads.

Takes     the sizes of the arrays, and what to do with pieces of them.
Gives     what each thread found. Integers are to be added, or each piece written where it lies, so
          that it does not matter which thread had which.
Unaware   of what the work is, and of torch.

New threads take a tenth of a millisecond, so a little is done by the caller alone. A thread takes
the next piece when it is done with one, and one that has not begun in the end is not waited for:
other processes may be at work.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
WORTH_A_THREAD = 1 << 20  # elements
BLOCK = 4096  # a multiple of what any loop takes at once
PIECE = 64 * BLOCK

Part = tuple[int, slice]  # the number of an array, and which of its elements


def share(work: Callable[[Iterator[Part]], T], sizes: Sequence[int], threads: int) -> list[T]:
    """Divide arrays among threads; gives what `work` gave on each for the parts that it took."""
    parts = iter(
        [
            (n, slice(begin, min(begin + PIECE, size)))
            for n, size in enumerate(sizes)
            for begin in range(0, size, PIECE)
        ]
    )
    if threads == 1 or sum(sizes) < WORTH_A_THREAD:
        return [work(parts)]
    pool = ThreadPoolExecutor(threads - 1)
    helpers = [pool.submit(work, parts) for _ in range(threads - 1)]
    found = [work(parts)]
    found += [helper.result() for helper in helpers if not helper.cancel()]
    pool.shutdown(wait=False)
    return found


def available_threads() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
