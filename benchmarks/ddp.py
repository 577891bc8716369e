"""What tying adds to a step of DistributedDataParallel: the ratio to plain training in one run, and bytes on the wire.

    python benchmarks/ddp.py [--processes N] [--turns N] [--steps N] [--json FILE]

Takes     an environment with reefknot, and as many quiet cores as processes.
Gives     a table as Markdown on standard output, and everything as JSON.

All processes train a plain network and a tied one, taking turns of some steps; the ratio is the median of the ratios of
the turns, with its quartiles. Then the bytes that tying gives to the collectives are counted, under DDP and FSDP2, beside
the figures of docs/scaling.md.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from document import ddp as table
from scaling import wrap
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import reefknot

BATCH = 128
WARM_UP = 5
K, REFIT_EVERY = 17, 5


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    )


class Training:
    """LeNet-300-100 in a wrapper, plain or tied."""

    def __init__(self, tied, hard=False):
        self.model = DistributedDataParallel(network())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        if tied:
            tie = reefknot.SparseAPT(self.model, num_clusters=K).attach(self.optimizer)
            if hard:
                tie.harden()

    def run(self, steps, images, labels):
        """Milliseconds a step."""
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            cross_entropy(self.model(images), labels).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        dist.barrier()
        return 1000 * (time.perf_counter() - begin) / steps


def wire(world):
    """Bytes that a step and a refit send, and what docs/scaling.md says."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded = fully_shard(network(), mesh=init_device_mesh("cpu", (world,)))
    models = {"DDP": DistributedDataParallel(network()), "FSDP2": sharded}
    sums = 8 * (K + 1)
    figures = {"DDP": (0, 64, 0), "FSDP2": (sums, 2 * 21 * 1_024 * 16 + 16, sums)}
    sent, rows = [], []
    wrap(sent)
    for name, model in models.items():
        tie = reefknot.SparseAPT(model, num_clusters=K, refit_every=REFIT_EVERY)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        tie.attach(optimizer)
        steps = []
        for number in range(2 * REFIT_EVERY + 2):
            if number == 2 * REFIT_EVERY:
                tie.harden()
            cross_entropy(model(torch.randn(BATCH, 784)), torch.randint(10, (BATCH,))).backward()
            sent.clear()
            optimizer.step()
            steps.append(sum(sent))
            optimizer.zero_grad()
        soft, refit, hard = steps[REFIT_EVERY - 2], steps[REFIT_EVERY - 1], steps[-1]
        kinds = ("a step", "a refit, beside its step", "a step of hard tying")
        for kind, bytes_sent, figure in zip(kinds, (soft, refit - soft, hard), figures[name]):
            rows.append({"what": f"{name}: {kind}", "bytes": bytes_sent, "figure": figure})
    return rows


def worker(rank, world, folder, turns, steps):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    trainings = {
        "plain": Training(False), "soft tying": Training(True), "hard tying": Training(True, hard=True)
    }  # fmt: skip
    source = torch.Generator().manual_seed(rank)
    images = torch.randn(BATCH, 784, generator=source)
    labels = torch.randint(10, (BATCH,), generator=source)
    times = {name: [] for name in trainings}
    for training in trainings.values():
        training.run(WARM_UP, images, labels)
    for _ in range(turns):
        for name, training in trainings.items():
            times[name].append(training.run(steps, images, labels))
    sent = wire(world)
    if rank == 0:
        plain = np.array(times["plain"])
        rows = []
        for name, taken in times.items():
            low, middle, high = np.percentile(np.array(taken) / plain, (25, 50, 75))
            rows.append({"step": name, "ms": float(np.median(taken)), "ratio": float(middle),
                         "ratio 25 %": float(low), "ratio 75 %": float(high)})  # fmt: skip
        result = {"processes": world, "rows": rows, "wire": sent}
        (Path(folder) / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(worker, (args.processes, folder, args.turns, args.steps), args.processes)
        text = (Path(folder) / "result.json").read_text()
    print(table(json.loads(text)))
    if args.json:
        args.json.write_text(text)


if __name__ == "__main__":
    main()
