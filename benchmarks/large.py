"""What a network of 15 million weights costs beside its steps: refit, statistics, size, file.

    python benchmarks/large.py --json benchmarks/results/large.json

Takes     the committed VGG-16: its parent and the file for 645,000 bytes.
Gives     seconds of each operation, the best of three.
"""

import argparse
import json
import logging
import tempfile
import time
from pathlib import Path

import torch

import reefknot
from reefknot.format import encode, open_state
from reefknot.lab.zoo.networks import NETWORKS

ROOT = Path(__file__).parents[1]
PARENT = ROOT / "experiments" / "vgg-16" / "parent.reef"
RECORD = "*_vgg-16_sparse_apt-645000-31_seed0"


def best(operation):
    times = []
    for _ in range(3):
        began = time.perf_counter()
        operation()
        times.append(time.perf_counter() - began)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.getLogger("reefknot").setLevel(logging.ERROR)
    [folder] = (ROOT / "experiments" / "records").glob(RECORD)
    small, values = folder / "model.reef", reefknot.load(PARENT)
    model = NETWORKS["vgg-16"]()
    model.load_state_dict(values)
    tie = reefknot.SparseAPT(
        model, target_bytes=129_000, steps=4_000, begin="trained", norms="folded"
    )
    tie.attach(torch.optim.Adam(model.parameters()))
    tie.refit()

    def stats():
        tie.moved()
        tie.stats()

    with tempfile.TemporaryDirectory() as place:
        state = open_state(small)
        found = {
            "a refit": best(tie.refit),
            "an update of the L1 strength (pruned, measured, restored)": best(
                tie.phases[0].controller.pruning.energy_lost
            ),
            "`stats()`, the size measured": best(stats),
            "encoding 645,000 bytes": best(lambda: encode(state)),
            "`load` of 645,000 bytes": best(lambda: reefknot.load(small)),
            "`load` of the parent, 256 values a tensor": best(lambda: reefknot.load(PARENT)),
            "`pack` of the parent, lossless": best(
                lambda: reefknot.pack(values, Path(place) / "parent.reef")
            ),
        }
    result = {"threads": torch.get_num_threads(), "seconds": found}
    print(json.dumps(result, indent=2, ensure_ascii=False))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
