"""Work on several arrays, divided among threads.

Takes     the sizes of the arrays, and what to do with parts of them.
Gives     what each thread found. Integers are to be added, or each part written where it lies, so
          that the number of threads changes nothing.
Unaware   of what the work is, and of torch.

New threads take a tenth of a millisecond, so a little is done by the caller alone.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
WORTH_A_THREAD = 1 << 20  # elements
BLOCK = 4096  # a multiple of what any loop takes at once

Part = tuple[int, slice]  # the number of an array, and which of its elements


def share(work: Callable[[list[Part]], T], sizes: Sequence[int], threads: int) -> list[T]:
    """Give each thread its parts of all arrays; gives what `work` gave on each."""
    threads = threads if sum(sizes) >= WORTH_A_THREAD else 1
    parts = [_parts_of(thread, sizes, threads) for thread in range(threads)]
    if threads == 1:
        return [work(parts[0])]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, parts))


def _parts_of(thread: int, sizes: Sequence[int], threads: int) -> list[Part]:
    """The parts of a thread; of a small array the last one has all."""
    edges = [
        [
            size if n == threads else size * n // threads // BLOCK * BLOCK
            for n in (thread, thread + 1)
        ]
        for size in sizes
    ]
    return [(n, slice(begin, end)) for n, (begin, end) in enumerate(edges) if begin < end]


def available_threads() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
