"""Measures networks on simulated chips, and writes the table in docs/ship.md, between its marks.

    python benchmarks/chips.py

Takes     the records of the smallest LeNets; gcc-avr, simavr, gcc-arm-none-eabi, qemu-system-arm.
Gives     the table of docs/ship.md.
"""

import json
import tempfile
from pathlib import Path

import torch

from reefknot import export
from reefknot.export.hardware import CHIPS, measure
from reefknot.lab.zoo import INPUTS, NETWORKS

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "ship.md"
RECORDS = ROOT / "experiments" / "records"
MARKS = ("<!-- chips -->\n", "<!-- /chips -->")
# Patterns of records, of which the first match counts, and the chips to run it on.
WANTED = [
    (["*_lenet-300-100_sparse_apt-1770_seed0"], ["atmega328p", "cortex-m3"]),
    (
        ["*_lenet-5-caffe_sparse_apt-1140_seed0", "*_lenet-5-caffe_sparse_apt_seed0"],
        ["cortex-m3"],
    ),
]
TITLES = [
    "record", "test error %", "`.reef`", "tables", "chip", "flash, all", "RAM, all", "arena", "time",
]  # fmt: skip


def row(record, chip):
    """One row: the figures of compiler and simulator for a network that takes bytes."""
    facts = json.loads((record / "record.json").read_text())
    name = facts["network"]
    known = INPUTS[name]
    with tempfile.TemporaryDirectory() as folder:
        written = export.c(
            record / "model.reef", NETWORKS[name](), folder, torch.zeros(1, *known.shape),
            as_bytes=export.Bytes(known.mean, known.deviation),
        )  # fmt: skip
        figures = measure(folder, CHIPS[chip])
    sizes = [figures.flash_bytes, figures.ram_bytes, written.arena_bytes]
    return [
        f"`{record.name}`", f"{facts['test_error']:.2f}", f"{facts['file_bytes']:,}",
        f"{written.table_bytes:,}", figures.chip.name, *(f"{size:,}" for size in sizes),
        f"{figures.time:,} {figures.chip.time}",
    ]  # fmt: skip


def markdown(rows):
    lines = [TITLES, ["---"] * len(TITLES), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main():
    rows = []
    for patterns, chips in WANTED:
        record = next(path for pattern in patterns for path in sorted(RECORDS.glob(pattern)))
        rows += [row(record, chip) for chip in chips]
    before, _, rest = DOCUMENT.read_text().partition(MARKS[0])
    _, mark, after = rest.partition(MARKS[1])
    DOCUMENT.write_text(before + MARKS[0] + markdown(rows) + mark + after)


if __name__ == "__main__":
    main()
