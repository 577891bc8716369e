"""What tying sends over the wire, measured on real processes; and 64 ranks with a billion weights, simulated.

    python benchmarks/scaling.py [--weights N] [--ranks N] [--processes N] [--json FILE]

Takes     an environment with reefknot. Nothing is timed, so a busy machine does no harm.
Gives     tables as Markdown on standard output, and everything as JSON.

The bytes are those of the tensors given to the collectives, which are wrapped while a budget is trained on gloo. The
simulation makes the weights of one rank after another, counts them in bins and adds the histograms up; the same weights
divided among another number of ranks, at other places, must give the same centers.
"""

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from document import scaling as table
from torch import nn

import reefknot
import reefknot.tying.content
from reefknot.kernels.histogram import Bins, InMemory, work_on
from reefknot.kernels.kmeans1d import kmeans1d, refit
from reefknot.tying import collectives
from reefknot.tying.collectives import as_dtensor, local

K = 17
WIDTHS = (64, 600, 10)


def worker(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    sent = measured(world)
    if rank == 0:
        (Path(folder) / "sent.json").write_text(json.dumps(sent))
    dist.barrier()
    dist.destroy_process_group()


def measured(world):
    """The bytes that each kind of step sends: the usual number, and the largest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sent = []
    wrap(sent)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(*WIDTHS[:2]), nn.ReLU(), nn.Linear(*WIDTHS[1:]))
    weights = sum(p.numel() for p in model.parameters())
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    tie = reefknot.SparseAPT(model, num_clusters=K, target_bytes=5_000, steps=120)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    tie.attach(optimizer)
    found = {"attach": [sum(sent)]}
    for phase in tie.phases[:-1]:
        phase.refit_every = 5
    tie.phases[2].measure_every = 5
    for _ in range(120):
        phase, number = tie.phase, tie.phase.step
        for parameter in model.parameters():
            part = torch.randn(local(parameter).shape) * 0.01
            parameter.grad = as_dtensor(part, parameter)
        sent.clear()
        optimizer.step()
        if tie.phase is not phase:
            found.setdefault(f"the end of {phase.name}", []).append(sum(sent))
        elif phase.name != "frozen" and (number + 1) % 5 == 0:
            found.setdefault(f"{phase.name}, refit and measurement", []).append(sum(sent))
        elif number % 5:
            found.setdefault(phase.name, []).append(sum(sent))
    usual = {kind: Counter(row).most_common(1)[0][0] for kind, row in found.items()}
    most = {kind: max(row) for kind, row in found.items()}
    return {"weights": weights, "K": K, "processes": world, "usual": usual, "most": most}


def wrap(sent):
    real = dist.all_reduce, dist.all_gather, collectives.full_tensor

    def all_reduce(tensor, *args, **kwargs):
        sent.append(tensor.nbytes)
        return real[0](tensor, *args, **kwargs)

    def all_gather(found, tensor, *args, **kwargs):
        sent.append(tensor.nbytes * len(found))
        return real[1](found, tensor, *args, **kwargs)

    def full_tensor(part, parameter):
        result = real[2](part, parameter)
        if result is not part:
            sent.append(result.nbytes)
        return result

    dist.all_reduce, dist.all_gather = all_reduce, all_gather
    reefknot.tying.content.full_tensor = full_tensor


class Shards:
    """Weights that are generated piece by piece, one rank after another."""

    def __init__(self, weights, ranks):
        self.edges = np.linspace(0, weights, ranks + 1).astype(np.int64)

    def pieces(self):
        for rank, size in enumerate(np.diff(self.edges)):
            rng = np.random.default_rng(rank)
            yield rng.standard_normal(size, np.float32) * np.float32(0.02)


class Added:
    """The sum of the histograms of all ranks."""

    dtype = np.dtype(np.float32)

    def __init__(self, largest, cells):
        self._largest, self._cells = largest, cells

    def largest(self):
        return self._largest

    def cells(self, bins):
        return self._cells

    def spread(self, bins, table):
        return 0


def simulated(weights, ranks, others):
    """The centers of all weights; of another division among ranks; and of each rank alone."""
    shards = Shards(weights, ranks)
    largest = max(float(np.abs(piece).max()) for piece in shards.pieces())
    bins = Bins(np.dtype(np.float32), largest, 10)
    total = np.zeros((2 * bins.half, 2), np.int64)
    divided = np.zeros((others, 2 * bins.half, 2), np.int64)
    cuts = np.sort(np.random.default_rng(1).integers(0, weights, others - 1))
    alone = []
    for begin, piece in zip(shards.edges, shards.pieces()):
        cells = InMemory(work_on(piece), piece.dtype, 1).cells(bins)
        total += cells
        alone.append(refit(Added(largest, cells), K, None).centers)
        inside = np.clip(cuts - begin, 0, len(piece))
        first = int(np.searchsorted(cuts, begin, side="right"))
        for n, part in enumerate(
            np.split(piece, np.unique(inside[(inside > 0) & (inside < len(piece))]))
        ):
            divided[first + n] += InMemory(
                work_on(np.ascontiguousarray(part)), part.dtype, 1
            ).cells(bins)
    together = refit(Added(largest, total), K, None).centers
    again = refit(Added(largest, divided.sum(0)), K, None).centers
    assert np.array_equal(together, again), "the centers depend on the number of ranks"
    away = np.abs(np.array(alone) - together) / np.abs(together).max()
    return {
        "weights": weights,
        "ranks": ranks,
        "other ranks": others,
        "equal": True,
        "histogram bytes": total.nbytes,
        "sent by a rank in a ring": int(2 * (ranks - 1) / ranks * total.nbytes),
        "shards alone, most away": float(away.max()),
        "shards alone, distinct": len({tuple(row) for row in alone}),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=int, default=1_000_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--other-ranks", type=int, default=7)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    kmeans1d(np.zeros(1), 1)
    result = {"simulation": simulated(args.weights, args.ranks, args.other_ranks)}
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(worker, (args.processes, folder), args.processes)
        result["wire"] = json.loads((Path(folder) / "sent.json").read_text())
    print(table(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
