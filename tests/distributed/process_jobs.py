"""What the processes of tests/distributed do; the test process does the same alone.

    python tests/distributed/process_jobs.py RANK WORLD FOLDER NAMES...

Every process runs the named jobs in turn, and writes what each one gives, or the sentence that it
ends with, to FOLDER as JSON.
"""

import json
import sys
import traceback
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import reefknot
from reefknot.errors import ReefknotError
from reefknot.tying.collectives import local, part_of

STEPS = 24
JOBS = {}


def job(function):
    JOBS[function.__name__] = function
    return function


def network(seed=0, wide=900):
    """46,000 weights: enough to be counted in bins; rows that four processes cannot share evenly."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(40, wide), nn.LayerNorm(wide), nn.ReLU(), nn.Linear(wide, 10)
    )  # fmt: skip


def small(seed=0):
    """So few weights that they are sorted, and so few rows that some processes have none."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 3))


def sharded(model, mesh):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def mesh_of(*shape):
    """The first processes as a mesh; None in the others. Two dimensions: copies of shards."""
    from torch.distributed.device_mesh import DeviceMesh

    names = ("shard",) if len(shape) == 1 else ("copy", "shard")
    ranks = torch.arange(int(np.prod(shape))).reshape(shape)
    mesh = DeviceMesh("cpu", ranks, mesh_dim_names=names)
    return mesh if dist.get_rank() < ranks.numel() else None


def set_gradients(model, step):
    """The same in whatever parts the model is: noise of the step, and a pull of the weights."""
    for number, parameter in enumerate(model.parameters()):
        source = torch.Generator().manual_seed(1000 * step + number)
        noise = torch.randn(parameter.shape, generator=source) * 0.05
        grad = part_of(noise, parameter) + local(parameter.detach()) * 0.125
        parameter.grad = grad if local(parameter) is parameter else as_shard(grad, parameter)


def as_shard(part, parameter):
    return type(parameter).from_local(
        part, parameter.device_mesh, parameter.placements, run_check=False,
        shape=parameter.shape, stride=parameter.stride(),
    )  # fmt: skip


def trained(model, make, steps=STEPS, first=0, tie=None, optimizer=None):
    """A method on a model, after so many steps of made-up gradients."""
    tie = tie or make(model)
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.02)
    if first == 0:
        tie.attach(optimizer)
    for step in range(first, steps):
        set_gradients(model, step)
        optimizer.step()
    return tie, optimizer


def paper(model):
    return reefknot.SparseAPT(
        model, num_clusters=9, tying_strength=0.01, l1_strength=0.02, refit_every=5
    )


def budget(model):
    return reefknot.SparseAPT(model, target_bytes=6_000, steps=STEPS)


def outcome(tie):
    """The file, and what came before it."""
    state = tie.finish()
    return {
        "bytes": reefknot.format.encode(state).hex(),
        "centers": {group.name: group.centers.tolist() for group in tie.groups},
        "counts": {group.name: group.counts.tolist() for group in tie.groups},
    }


def paper_run(model):
    tie, optimizer = trained(model, paper)
    soft = {group.name: group.centers.tolist() for group in tie.groups}
    tie.harden()
    trained(model, paper, STEPS + 6, STEPS, tie, optimizer)
    return outcome(tie) | {"soft": soft}


def budget_run(model):
    return outcome(trained(model, budget)[0])


def main(rank, world, folder, *names):
    rank, folder = int(rank), Path(folder)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=int(world)
    )
    for name in names:
        try:
            result = JOBS[name]()
        except ReefknotError as error:
            result = {"error": str(error)}
        except Exception:
            result = {"traceback": traceback.format_exc()}
        (folder / f"{name}-{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


@job
def paper_2():
    mesh = mesh_of(2)
    return paper_run(sharded(network(), mesh)) if mesh else None


@job
def paper_4():
    return paper_run(sharded(network(), mesh_of(4)))


@job
def paper_copies():
    return paper_run(sharded(network(), mesh_of(2, 2)))


@job
def paper_small_4():
    return paper_run(sharded(small(), mesh_of(4)))


@job
def budget_2():
    mesh = mesh_of(2)
    return budget_run(sharded(network(), mesh)) if mesh else None


@job
def budget_4():
    return budget_run(sharded(network(), mesh_of(4)))


if __name__ == "__main__":
    main(*sys.argv[1:])
