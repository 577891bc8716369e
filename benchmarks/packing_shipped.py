"""`pack` on trained networks that Python packages ship: clusters beside budgets, bytes and change of the outputs.

    python benchmarks/packing_shipped.py FOLDER [--only NAME ...] [--without inputs|random] [--json FILE]

FOLDER holds the wheels; `shipped.py` says which, and what the inputs are. Rows: `--clusters`, k-means with the
same number of values for every tensor; 8-bit integers with a scale per row, under zstd -19; and one pass with random
inputs or with unlabelled ones at one price of a bit (`reefknot.pack(..., example_input=...)` or `inputs=...` finds the
price for a budget in several such passes). The change is the relative error of all outputs together, on inputs that
packing has not seen. Rows are added to the JSON file one by one; those it has already are not measured again.
`packing_data_free.py` measures budgets without inputs.
"""

import argparse
import copy
import json
import math
import tempfile
from pathlib import Path

import numpy as np
import torch
import zstandard
from shipped import NETWORKS

import reefknot
from reefknot.dtypes import DTYPES
from reefknot.packing.budget import MIN_SIZE, Curve
from reefknot.packing.calibration import Moments
from reefknot.packing.clustering import MIN_SIZE as CLUSTER_MIN_SIZE
from reefknot.packing.clustering import Settings
from reefknot.packing.feedback import decompose
from reefknot.packing.inputs import random_batches
from reefknot.packing.network import DAMPING, POSITIONS, Packer
from reefknot.packing.outputs import change_of_outputs
from reefknot.packing.suspended import Network

CLUSTERS = (16, 64, 256)
FIRST_PRICE, LEAST_PRICE, APART = 2.0**-24, 2.0**-45, 2.0**2


class Table:
    """Rows, which are kept in a file."""

    def __init__(self, path):
        self._path = path
        self.rows = json.loads(path.read_text()) if path and path.exists() else []

    def has(self, network, way):
        return any(row["network"] == network and row["way"] == way for row in self.rows)

    def add(self, row):
        self.rows.append(row)
        print(row, flush=True)
        if self._path:
            self._path.write_text(json.dumps(self.rows, indent=1) + "\n")

    def changes(self, network, beginning):
        return [
            row["change"]
            for row in self.rows
            if row["network"] == network and row["way"].startswith(beginning)
        ]


def integers(model, width=8):
    """Integers of so many bits with a scale for each row; their size under zstd."""
    codes, rest, packed = [], [], copy.deepcopy(model)
    for value in packed.state_dict().values():
        if not value.is_floating_point():
            continue
        if value.dim() < 2:
            rest.append(value.numpy())
            continue
        rows = value.flatten(1)
        scale = rows.abs().amax(1, keepdim=True).clamp_min(1e-12) / (2 ** (width - 1) - 1)
        code = (rows / scale).round()
        codes.append(code.to(torch.int8).numpy())
        rest.append(scale.numpy())
        value.copy_((code * scale).view_as(value))
    pack = zstandard.ZstdCompressor(19).compress
    size = sum(len(pack(b"".join(a.tobytes() for a in part))) for part in (codes, rest))
    return size, packed


def limit(model, values):
    """Bytes of the best scalar quantizer over those of k-means, each tensor with the same error.

    By order-0 entropy, codebooks included. No choice of a step for each tensor does better without knowing
    which tensors matter more than others.
    """
    clustered = best = 0.0
    for name, value in model.state_dict().items():
        numbers = value.numpy()
        if Settings(min_size=CLUSTER_MIN_SIZE).why_kept(name, DTYPES["F32"], numbers):
            continue
        found = reefknot.kmeans1d(numbers.ravel(), values)
        shares = np.bincount(found.assignment) / numbers.size
        shares = shares[shares > 0]
        error = np.square(numbers.ravel() - found.centers[found.assignment], dtype=np.float64).sum()
        curve = Curve.of(name, numbers, DTYPES["F32"])
        step = curve.step_for(error / np.square(numbers, dtype=np.float64).sum())
        clustered += 32 * len(shares) - numbers.size * (shares * np.log2(shares)).sum()
        best += numbers.size * curve.bits_at(step)
    return best / clustered


@torch.no_grad()
def column_steps(model, inputs):
    """What a step for each column of a matrix would gain over one step for all, in dB: the mean over all weights.

    At high rates the best steps make the cost D_k · step_k² equal (`feedback.py`), and the gain is the arithmetic
    over the geometric mean of D. The scales of the columns would take bytes of their own, which are not counted.
    """
    gained = weights = 0.0
    with Network(model, inputs, suspends=True) as network:
        for site in network.sites:
            if site.norm is not None:
                continue
            rows = site.rows_of(model.get_parameter(site.name)).flatten(1)
            moments = Moments(rows.unflatten(0, (site.groups, -1)))
            for batch in network.inputs(site, POSITIONS):
                if batch is not None:
                    moments.add(batch, batch)
            moments.finish()
            for second, lacking in zip(moments.second, moments.damping().tolist()):
                mean = float(second.diagonal().mean()) or 1.0
                second.diagonal().add_(max(DAMPING, lacking) * mean)
                order = torch.argsort(second.diagonal(), descending=True)
                cost, _ = decompose(second[order][:, order])
                size = rows.numel() / site.groups
                gained += size * 10 * math.log10(cost.mean() / math.exp(np.log(cost).mean()))
                weights += size
    return gained / weights


def arguments(batch):
    return batch if isinstance(batch, dict | tuple | list) else (batch,)


def loaded(model, path):
    packed = copy.deepcopy(model)
    packed.load_state_dict(reefknot.load(path))
    return packed


def measure(name, model, tests, inputs, without, table, path):
    elements = sum(value.numel() for value in model.state_dict().values())

    def add(way, size, packed):
        change = change_of_outputs(model, packed, tests).relative_error
        table.add({
            "network": name, "weights": elements, "way": way, "bytes": size, "change": change
        })  # fmt: skip

    for values in CLUSTERS:
        if not table.has(name, way := f"--clusters {values}"):
            size = reefknot.save(reefknot.cluster(model.state_dict(), num_clusters=values), path)
            add(way, size, loaded(model, path))
    for values in CLUSTERS:
        if not table.has(name, way := f"limit of {values} values"):
            table.add({"network": name, "way": way, "ratio": limit(model, values)})
    if not table.has(name, way := "a step for each column"):
        table.add({"network": name, "way": way, "dB": column_steps(model, inputs)})
    if not table.has(name, "int8, zstd"):
        add("int8, zstd", *integers(model))
    others = table.changes(name, "--clusters") + table.changes(name, "int8")
    for kind, batches in (
        ("inputs", inputs),
        ("random", random_batches(model, arguments(inputs[0]))),
    ):
        if kind == without:
            continue
        packer = Packer(model, batches, Settings(min_size=MIN_SIZE), random=kind == "random")

        def at(price, kind=kind, packer=packer):
            if not table.has(name, way := f"{kind}, price {price:.3g}"):
                packer.measure_sensitivity(price)
                result = packer.at(price)[0].state_dict()
                size = reefknot.save(reefknot.cluster(result), path)
                add(way, size, loaded(model, path))

        at(low := FIRST_PRICE)
        while min(table.changes(name, kind)) > min(others) and low > LEAST_PRICE:
            at(low := low / APART)
        high = FIRST_PRICE
        while max(table.changes(name, kind)) < max(others) and high < 1:
            at(high := high * APART)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=list(NETWORKS))
    parser.add_argument("--without", choices=("inputs", "random"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(given.json)
    for name in given.only:
        model, tests, inputs = NETWORKS[name](given.folder)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        with tempfile.TemporaryDirectory() as folder:
            measure(name, model, tests, inputs, given.without, table, Path(folder) / "packed.reef")


if __name__ == "__main__":
    main()
