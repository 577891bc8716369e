"""What a training step costs with each method, against plain training.

    python benchmarks/methods.py [--json FILE] [--turns N] [--threads N]

Takes     an environment with reefknot; every method of METHODS, in its soft and in its hard phase.
Gives     a table as Markdown on standard output, and everything as JSON.

All variants take turns in one run, so that a busy machine slows all of them alike; batch 128. The result is the
median of the ratios to the plain step of the same turn, with quartiles.
"""

import argparse
import json
import platform
from pathlib import Path

import numpy as np
import torch
from tying import step_rows, table

from reefknot.lab.baselines import METHODS

NETWORKS = {"lenet-300-100": 1, "lenet-5-caffe": 4}  # and how many times fewer turns
SETTINGS = {
    "sparse_vd": {"num_examples": 54_000},
    "bayesian_compression": {"num_examples": 54_000},
    "deep_compression": {"prune_every": 1, "prune_rounds": 1},  # masked from the first step on
    "soft_weight_sharing": {"num_examples": 54_000},
    "magnitude_kmeans": {"density": 0.5},  # of random weights; less would prune a whole layer
}


VARIANTS = {name: {} for name in METHODS if name != "dense"}
VARIANTS["bayesian_compression"] = {"prior": "gnj"}


def variant(name, phase, more):
    """A function that prepares a network for this method, for `tying.trainer`."""

    def prepare(model, make):
        method = METHODS[name](model, **SETTINGS.get(name, {}), **more)
        optimizer = torch.optim.SGD(method.parameter_groups(), lr=0.01, momentum=0.9)
        method.attach(optimizer)
        if phase == "hard":
            method.harden()
        return model, optimizer, None, lambda: None

    return prepare


def variants():
    """Every method in both phases, Bayesian Compression with both priors."""
    found = {
        f"{name}, {phase}": variant(name, phase, more)
        for name, more in VARIANTS.items()
        for phase in ("soft", "hard")
    }
    found["bayesian_compression (ghs), soft"] = variant(
        "bayesian_compression", "soft", {"prior": "ghs"}
    )
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write everything there")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [
        row
        for network, fewer in NETWORKS.items()
        for row in step_rows(
            network, "sgd", variants(), max(options.turns // fewer, 1), 10 // fewer
        )
    ]
    result = {
        "machine": {"processor": platform.processor() or platform.machine(), "threads": options.threads},
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "steps": rows,
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
