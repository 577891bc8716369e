"""What a whole training to a size costs beside a plain one, when it is short and when another process is busy.

    python benchmarks/short.py [--json FILE] [--seeds 3] [--parts short,busy]

Takes     an environment with reefknot, and MNIST in REEFKNOT_DATA.
Gives     tables as Markdown on standard output, and everything as JSON.

Short: LeNet-300-100, Adam, batches of 128, one thread, from the first step to the finished state; ratios of processor
time, plain and tied one after the other. Busy: the ratio of a tied step to a plain one, alone and beside a process
that keeps a core busy, with as many threads as cores.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import reefknot
from reefknot.format import encode
from reefknot.lab.zoo import DATASETS, NETWORKS

TARGET_BYTES = 6_700
STEPS = (300, 1_000, 3_000)
GOALS = {300: 1.6, 1_000: 1.4, 3_000: 1.3}
BUSY = "while True: pass"


def training(data, steps, seed, tied):
    """One training; gives processor seconds, the error on validation images, and the file's bytes."""
    torch.manual_seed(seed)
    model = NETWORKS["lenet-300-100"]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rows = torch.randint(len(data.train.labels), (steps, 128))
    begin = time.process_time()
    tie = reefknot.SparseAPT(model, target_bytes=TARGET_BYTES, steps=steps) if tied else None
    if tie:
        tie.attach(optimizer)
    schedule = (
        tie.lr_scheduler(optimizer)
        if tie
        else torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    )
    for batch in rows:
        optimizer.zero_grad()
        cross_entropy(model(data.train.inputs[batch]), data.train.labels[batch]).backward()
        optimizer.step()
        schedule.step()
    state = tie.finish() if tie else None
    seconds = time.process_time() - begin
    with torch.no_grad():
        wrong = (model(data.validation.inputs).argmax(1) != data.validation.labels).float().mean()
    size = len(encode(state)) if state else None
    return {"seconds": seconds, "error": 100 * wrong.item(), "bytes": size}


def short_rows(seeds):
    data = DATASETS["mnist"]()
    training(data, 300, 0, True)  # compiles
    rows = []
    for steps in STEPS:
        runs = [
            (training(data, steps, s, False), training(data, steps, s, True)) for s in range(seeds)
        ]
        ratios = [tied["seconds"] / plain["seconds"] for plain, tied in runs]
        rows.append(
            {
                "steps": steps,
                "ratio": float(np.median(ratios)),
                "ratios": ratios,
                "goal": GOALS[steps],
                "plain error": float(np.mean([plain["error"] for plain, _ in runs])),
                "tied error": float(np.mean([tied["error"] for _, tied in runs])),
                "bytes": float(np.mean([tied["bytes"] for _, tied in runs])),
            }
        )
        print(rows[-1], flush=True)
    return rows


def step_of(prepare, sizes):
    """A function that runs one step of a perceptron with these widths."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    model = torch.nn.Sequential(*(x for layer in layers for x in (layer, torch.nn.ReLU())))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    prepare(model, optimizer)
    inputs, labels = torch.randn(128, sizes[0]), torch.randint(sizes[-1], (128,))

    def step():
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def sparsify(model, optimizer):
    reefknot.SparseAPT(model).attach(optimizer)


def commit(model, optimizer):
    tie = reefknot.SparseAPT(model, target_density=0.1, steps=1_000_000).attach(optimizer)
    while tie.stats()["phase"] != "commit":
        tie.advance()


def frozen(model, optimizer):
    reefknot.SparseAPT(model).attach(optimizer).harden()


PHASES = {
    "plain": lambda model, optimizer: None,
    "sparsify": sparsify,
    "commit": commit,
    "frozen": frozen,
}


def ratios(steps, turns, count):
    """The ratio of each variant's step to the plain one; the variants take turns."""
    taken = {name: [] for name in steps}
    for _ in range(turns):
        for name, step in steps.items():
            step()
            begin = time.perf_counter()
            for _ in range(count):
                step()
            taken[name].append((time.perf_counter() - begin) / count)
    return {
        name: (np.median(s), np.median(np.array(s) / np.array(taken["plain"])))
        for name, s in taken.items()
    }


def busy_rows():
    rows = []
    for sizes, turns in (
        ((64, 150, 10), 100),
        ((784, 300, 100, 10), 30),
        ((784, 1_000, 500, 10), 10),
    ):
        steps = {name: step_of(prepare, sizes) for name, prepare in PHASES.items()}
        alone = ratios(steps, turns, 10)
        with subprocess.Popen([sys.executable, "-c", BUSY]) as process:
            time.sleep(0.5)
            beside = ratios(steps, turns, 10)
            process.kill()
        weights = sum(a * b for a, b in itertools.pairwise(sizes))
        for name in steps:
            rows.append(
                {
                    "weights": weights, "phase": name,
                    "ms alone": 1e3 * alone[name][0], "ms busy": 1e3 * beside[name][0],
                    "ratio alone": alone[name][1], "ratio busy": beside[name][1],
                    "busy / alone": beside[name][1] / alone[name][1],
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parts", default="short,busy")
    options = parser.parse_args()
    found = {}
    if "busy" in options.parts:
        found["busy"] = busy_rows()
    if "short" in options.parts:
        torch.set_num_threads(1)
        found["short"] = short_rows(options.seeds)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
