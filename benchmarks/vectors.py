"""The speed-up by the LLVM vectors of `kernels/vectors.py`: the loops of a step with and without them.

    python benchmarks/vectors.py [--weights N] [--clusters K]

Both are compiled in one process, give the same results, and take turns on one thread. Times are processor
time, the minimum over all turns, so that other work on the machine matters little.
"""

import argparse
import time

import numpy as np

from reefknot.kernels import loops, shared
from reefknot.kernels.vectors import can_look_up
from reefknot.kernels.work import Row, Work

TURNS, CALLS = 200, 10


def compiled():
    """The three loops, compiled with the module's current names."""
    kinds = np.float32, np.uint8
    return {
        "pull": loops.pull.__wrapped__(*kinds, False),
        "sum_clusters": loops.sum_clusters.__wrapped__(*kinds),
        "project": loops.project.__wrapped__(*kinds),
    }


def without_vectors():
    shared.keep_on_disk = lambda *_: None  # what is on disk has the vectors
    loops.TABLE_SIZE, loops._find_narrow = 0, loops._find_any
    return compiled()


def results_and_seconds(name, loop, size, num_clusters):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(size).astype(np.float32)
    grad, sums = np.zeros(size, np.float32), np.zeros(num_clusters, np.int64)
    assignment = rng.integers(0, num_clusters, size).astype(np.uint8)
    centers = np.sort(rng.standard_normal(num_clusters)).astype(np.float32)
    data = (array.ctypes.data for array in (weights, grad, assignment))
    work = Work([Row(size, *data, 0)])
    numbers = (2.0**20, 2.0**31) if name == "sum_clusters" else (1e-5, 1e-6)
    given = {"sums": sums} if name == "sum_clusters" else {"centers": centers}
    work.run(loop, numbers, 1, **given)
    yield weights.copy(), grad.copy(), sums.copy()
    while True:
        start = time.process_time()
        for _ in range(CALLS):
            work.run(loop, numbers, 1, **given)
        yield (time.process_time() - start) / CALLS


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=int, default=266_610, help="LeNet-300-100 has 266,610")
    parser.add_argument("--clusters", type=int, default=17)
    options = parser.parse_args()
    print(f"{options.weights:,} weights, {options.clusters} clusters; AVX-512: {can_look_up()}")
    ways = compiled(), without_vectors()
    print("| loop | with, µs | without, µs | ratio |\n|---|---|---|---|")
    for name in ways[0]:
        runs = [
            results_and_seconds(name, way[name], options.weights, options.clusters) for way in ways
        ]
        results = [next(run) for run in runs]
        assert all(np.array_equal(*pair) for pair in zip(*results))
        turns = [[next(run) for run in runs] for _ in range(TURNS)]
        with_them, without = np.array(turns).min(0)
        print(
            f"| {name} | {1e6 * with_them:.0f} | {1e6 * without:.0f} | {without / with_them:.2f} |"
        )


if __name__ == "__main__":
    main()
