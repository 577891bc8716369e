"""Shrunk networks beside the dense ones: parameters, MACs, and the speed-up.

    python benchmarks/shrink.py FILE.reef... [--json FILE] [--turns N] [--threads N]

Takes     an environment with reefknot; `.reef` files in the folders of their records.
Gives     a table as Markdown on standard output, and everything as JSON.

Dense and shrunk take turns in one process at batches of 1 and 128, in evaluation. The ratio is the median of
the ratios of the turns, with its quartiles, so that a busy machine disturbs both alike.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch
from document import shrink as table

import reefknot
from reefknot.lab.zoo import INPUTS, NETWORKS

BATCHES = (1, 128)
CALLS = 10  # per turn, of which the fastest counts: others may have been interrupted


def quickest(model, inputs):
    """Milliseconds of the quickest of some calls."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        model(inputs)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def compare(dense, small, inputs, turns):
    """Milliseconds of both, and the quartiles of dense over shrunk."""
    with torch.no_grad():
        pairs = [[quickest(model, inputs) for model in (dense, small)] for _ in range(turns)]
    low, median, high = np.quantile([a / b for a, b in pairs], [0.25, 0.5, 0.75])
    both = np.median(pairs, 0)
    return {
        "dense ms": both[0], "shrunk ms": both[1],
        "times quicker": median, "25 %": low, "75 %": high,
    }  # fmt: skip


def rows(path, turns):
    network = json.loads((path.parent / "record.json").read_text())["network"]
    dense = NETWORKS[network]().eval()
    dense.load_state_dict(reefknot.load(path))
    shape = INPUTS[network].shape
    shrunk = reefknot.shrink(dense, torch.zeros(1, *shape))
    original = sum(parameter.numel() for parameter in dense.parameters()) * 4
    for batch in BATCHES:
        inputs = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0))
        yield {
            "network": network, "bytes": path.stat().st_size, "rate": original / path.stat().st_size,
            "parameters": shrunk.parameters, "MACs": shrunk.macs, "batch": batch,
        } | compare(dense, shrunk.model.eval(), inputs, turns)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, help="write everything there")
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = [row for path in options.files for row in rows(path, options.turns)]
    result = {
        "machine": {"processor": platform.processor() or platform.machine(), "threads": options.threads},
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "rows": found,
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


if __name__ == "__main__":
    main()
