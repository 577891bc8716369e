"""Embeddings packed row by row beside one step for all rows: a sentence transformer, on two kinds of text.

    python benchmarks/packing_rows.py FOLDER [--json FILE]

FOLDER holds the wheel (`shipped.py`). It is packed with sentences of Python's documentation at a few prices of a bit.
The change of the outputs is measured on other sentences of the documentation, and on those of licences, whose words
packing has seen less of: with steps by how often a row is read, and with one step for all rows.
"""

import argparse
import contextlib
import json
import re
import tempfile
from importlib.metadata import files
from pathlib import Path
from unittest import mock

import torch
from packing_shipped import loaded
from shipped import minilm, sentence_transformer

import reefknot
from reefknot.packing import network
from reefknot.packing.budget import MIN_SIZE
from reefknot.packing.clustering import Settings
from reefknot.packing.network import Packer
from reefknot.packing.outputs import change_of_outputs

PRICES = (2.0**-28, 2.0**-30, 2.0**-32)


def licences():
    """Sentences of the licences that come with torch and numpy."""
    text = " ".join(
        path.locate().read_text()
        for package in ("torch", "numpy")
        for path in files(package)
        if re.search(r"(LICENSE|NOTICE|COPYING)[^/]*$", str(path))
    )
    found = re.split(r"[.;:] ", " ".join(text.split()))
    return list(dict.fromkeys(s.strip() for s in found if 40 < len(s) < 300))[:128]


def with_own_steps(own_steps):
    """As it is, or with one step for all rows."""
    if own_steps:
        return contextlib.nullcontext()
    return mock.patch.object(network, "have_own_steps", lambda weights: False)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, documentation, inputs = minilm(given.folder)
    others = sentence_transformer(given.folder)[1](licences())
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    rows = []
    for price in PRICES:
        for own_steps in (True, False):
            with tempfile.TemporaryDirectory() as folder, with_own_steps(own_steps):
                path = Path(folder) / "packed.reef"
                packer = Packer(model, inputs, Settings(min_size=MIN_SIZE))
                packer.measure_sensitivity(price)
                size = reefknot.save(reefknot.cluster(packer.at(price)[0].state_dict()), path)
                packed = loaded(model, path)
            here, there = (
                change_of_outputs(model, packed, tests).relative_error
                for tests in (documentation, others)
            )
            rows.append(
                {"own steps": own_steps, "bytes": size, "documentation": here, "licences": there}
            )
            print(rows[-1], flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
