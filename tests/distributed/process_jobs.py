"""What the processes of tests/distributed do; the test process does the same alone.

    python tests/distributed/process_jobs.py WORLD FOLDER NAMES...

Every one of WORLD processes runs the named jobs in turn, and writes what each one gives, or the
sentence that it ends with, to FOLDER as JSON. They are forked once all is imported.
"""

import contextlib
import importlib
import json
import multiprocessing
import sys
import traceback
import weakref
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import reefknot
from reefknot.errors import ReefknotError
from reefknot.lab.baselines import DeepCompression
from reefknot.tying.collectives import local, local_shard

STEPS = 12
RESUMED_AT = 10  # in the phase commit, where there are latent weights
FOLDER = Path()
JOBS, LONG_JOBS = {}, {}


def job(function):
    JOBS[function.__name__] = function
    return function


def long_job(function):
    """Budgets, and what is saved in the middle of them."""
    LONG_JOBS[function.__name__] = function
    return function


def network(seed=0, wide=820):
    """43,000 weights: enough to be counted in bins; rows that four cannot share evenly."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(40, wide), nn.LayerNorm(wide), nn.ReLU(), nn.Linear(wide, 10)
    )  # fmt: skip


def small(seed=0):
    """So few weights that they are sorted, and so few rows that some processes have none."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 3))


def sharded(model, mesh, **options):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model[0], mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
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
        grad = local_shard(noise, parameter) + local(parameter.detach()) * 0.125
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
        "centers": {group.name: group.centers.tolist() for group in tie.tying.groups},
        "counts": {group.name: group.counts.tolist() for group in tie.tying.groups},
    }


def paper_run(model):
    tie, optimizer = trained(model, paper)
    soft = {group.name: group.centers.tolist() for group in tie.tying.groups}
    tie.harden()
    trained(model, paper, STEPS + 6, STEPS, tie, optimizer)
    return outcome(tie) | {"soft": soft}


def budget_run(model):
    return outcome(trained(model, budget)[0])


@contextlib.contextmanager
def counted_wire(sent):
    """Note the bytes of each call that goes over the wire while this lasts."""
    real = dist.all_reduce, dist.all_gather

    def all_reduce(tensor, *args, **kwargs):
        sent.append(tensor.nbytes)
        return real[0](tensor, *args, **kwargs)

    def all_gather(found, tensor, *args, **kwargs):
        sent.append(tensor.nbytes * len(found))
        return real[1](found, tensor, *args, **kwargs)

    dist.all_reduce, dist.all_gather = all_reduce, all_gather
    try:
        yield
    finally:
        dist.all_reduce, dist.all_gather = real


def work(rank, world, folder, names):
    """One of the processes."""
    global FOLDER
    FOLDER = folder
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=200),
    )
    for name in names:
        try:
            result = (JOBS | LONG_JOBS)[name]()
        except ReefknotError as error:
            result = {"error": str(error)}
        except Exception:
            result = {"traceback": traceback.format_exc()}
        (folder / f"{name}-{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


IMPORTED = (
    "reefknot.integrations.distributed",
    "torch._dynamo",  # what making an optimizer imports
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
)


def main(world, folder, *names):
    torch.set_num_threads(1)
    for name in IMPORTED:
        importlib.import_module(name)
    paper(small())  # imports the rest
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=work, args=(rank, int(world), Path(folder), names), daemon=True)
        for rank in range(int(world))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(process.exitcode != 0 for process in processes))


@job
def paper_2():
    mesh = mesh_of(2)
    return paper_run(sharded(network(), mesh)) if mesh else None


@job
def paper_4():
    return paper_run(sharded(network(), mesh_of(4)))


@long_job
def paper_copies():
    return paper_run(sharded(network(), mesh_of(2, 2)))


@job
def paper_small_4():
    return paper_run(sharded(small(), mesh_of(4)))


def real_run(model, wrap=lambda model: model):
    """A real training: all processes have the same batch, so that their mean gradient is exact."""
    tie = paper(wrap(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    tie.attach(optimizer)
    source = torch.Generator().manual_seed(7)
    for step in range(STEPS):
        if step == STEPS - 2:
            tie.harden()
        images = torch.randn(32, 40, generator=source)
        labels = torch.randint(10, (32,), generator=source)
        nn.functional.cross_entropy(wrap(model)(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return outcome(tie)


def later_run(model):
    """Budgets that begin later: with a trained network, and with one that is tied already."""
    trained_one = budget_from("trained", model)
    with torch.no_grad():
        for parameter in model.parameters():
            part = local(parameter)
            part.copy_(torch.round(part * 8) / 8)
    return {"trained": trained_one, "tied": budget_from("commit", model)}


def budget_from(begin, model):
    def make(model):
        return reefknot.SparseAPT(model, target_density=0.4, steps=STEPS, begin=begin)

    return outcome(trained(model, make)[0])


@long_job
def later_4():
    return later_run(sharded(small(), mesh_of(4)))


@job
def real_4():
    return real_run(sharded(network(), mesh_of(4)))


@job
def real_ddp():
    from torch.nn.parallel import DistributedDataParallel

    model = network()
    wrapped = DistributedDataParallel(model)
    return real_run(model, lambda _: wrapped)


@job
def ddp_statistics():
    """Each process has batches, and so statistics of BatchNorm, of its own; the file's size not."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 60), nn.BatchNorm1d(60), nn.ReLU(), nn.Linear(60, 10))
    wrapped = DistributedDataParallel(model)
    tie = reefknot.SparseAPT(wrapped, target_bytes=1_500, steps=STEPS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tie.attach(optimizer)
    torch.manual_seed(dist.get_rank())
    for _ in range(STEPS):
        images, labels = torch.randn(32, 40), torch.randint(10, (32,))
        nn.functional.cross_entropy(wrapped(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    alone = outcome(tie) if dist.get_rank() == 0 else None  # one process may finish by itself
    return {
        "weights": [parameter.flatten()[:9].tolist() for parameter in model.parameters()],
        "statistics": model[1].running_mean.tolist(),
        "bytes": len(alone["bytes"]) // 2 if alone else None,
    }


@job
def drifting():
    """Copies that are not kept alike: each process has gradients of its own."""
    from torch.nn.parallel import DistributedDataParallel

    model = small()
    tie = paper(DistributedDataParallel(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tie.attach(optimizer)
    for step in range(10):
        set_gradients(model, step + dist.get_rank())
        optimizer.step()
    return {}


@job
def other_clusters():
    model = sharded(small(), mesh_of(4))
    tie = reefknot.SparseAPT(model, num_clusters=5 if dist.get_rank() == 2 else 9)
    tie.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    return {}


@job
def other_clusters_of_copies():
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(small())
    tie = reefknot.SparseAPT(model, num_clusters=5 if dist.get_rank() == 2 else 9)
    tie.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    return {}


@job
def other_type():
    model = small().double() if dist.get_rank() == 1 else small()
    model = sharded(model, mesh_of(4))
    paper(model).attach(torch.optim.SGD(model.parameters(), lr=0.1))
    return {}


@job
def other_shape():
    model = network(wide=36 if dist.get_rank() == 3 else 40)
    model = sharded(model, mesh_of(4))
    paper(model).attach(torch.optim.SGD(model.parameters(), lr=0.1))
    return {}


@job
def wrapped_late():
    """Sharding replaces the parameters that the method and the optimizer know."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    paper(model).attach(optimizer)
    sharded(model, mesh_of(4))
    optimizer.step()
    return {}


@job
def not_finite():
    """A weight of one process is not a number: all of them stop."""
    model = sharded(network(), mesh_of(4))
    if dist.get_rank() == 1:
        local(model[3].weight.detach())[0, 0] = torch.nan
    paper(model).attach(torch.optim.SGD(model.parameters(), lr=0.1))
    return {}


@job
def unreachable():
    model = sharded(network(), mesh_of(4))
    tie = reefknot.SparseAPT(model, target_bytes=10, steps=100)
    tie.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    return {}


@job
def whole_tensors_only():
    DeepCompression(sharded(small(), mesh_of(4)))
    return {}


@job
def medians():
    reefknot.APT(sharded(small(), mesh_of(4)), distance="l1")
    return {}


@job
def wire():
    """Bytes that a step and a refit send, and the calls they are in."""
    model = sharded(network(), mesh_of(4))
    tie = reefknot.SparseAPT(model, num_clusters=9, refit_every=4, exclude="1.*")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    tie.attach(optimizer)
    sent = []
    with counted_wire(sent):
        for step in range(8):
            set_gradients(model, step)
            sent.append("step")
            optimizer.step()
        tie.harden()
        for step in range(2):
            set_gradients(model, step)
            sent.append("hard step")
            optimizer.step()
    return sent


@long_job
def budget_4():
    return budget_run(sharded(network(), mesh_of(4)))


def checkpointed(model, folder):
    """Half of the steps, then a checkpoint."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    tie, optimizer = trained(model, budget, RESUMED_AT)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "tie": tie.state_dict()}
    dcp.save(state, checkpoint_id=folder)


def resumed(model, folder, group=None):
    """The other half, by other processes."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    from reefknot.integrations.distributed import load_state

    tie, optimizer = budget(model), torch.optim.Adam(model.parameters(), lr=0.02)
    weights, moments = get_state_dict(model, optimizer)
    found = {"model": weights, "optimizer": moments}
    dcp.load(found, checkpoint_id=folder, process_group=group)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    load_state(tie, folder, process_group=group)
    tie.attach(optimizer)
    trained(model, budget, STEPS, RESUMED_AT, tie, optimizer)
    return tie


@long_job
def saved_by_four():
    checkpointed(sharded(network(), mesh_of(4)), FOLDER / "checkpoint")
    return {}


@long_job
def resumed_by_two():
    """On two of the processes; and written by them, tensor by tensor, to a file."""
    from reefknot.integrations import distributed

    mesh = mesh_of(2)
    if mesh is None:
        return None
    tie = resumed(sharded(network(), mesh), FOLDER / "checkpoint", mesh.get_group())
    size = distributed.save(tie, FOLDER / "two.reef")
    return {"size": size}


@job
def written_in_parts():
    """A network of which no process may hold more than a tensor."""
    from reefknot.integrations import distributed

    distributed.SOLID_ELEMENTS = 0
    tie, _ = trained(sharded(network(), mesh_of(4)), paper, 3)
    tie.harden()
    content, alive, counts = tie.content(), [], []

    def watched():
        for tensor in content.tensors:
            alive.append(weakref.ref(tensor))
            counts.append(sum(one() is not None for one in alive))
            yield tensor

    tie.content = lambda: content._replace(tensors=watched())
    size = distributed.save(tie, FOLDER / "parts.reef")
    return {"size": size, "tensors": len(alive), "held at once": max(counts)}


@long_job
def budget_copies():
    """Columns instead of rows are shared out, and that is done twice."""
    from torch.distributed.tensor import Shard

    by_columns = {"shard_placement_fn": lambda parameter: Shard(parameter.ndim - 1)}
    return budget_run(sharded(network(), mesh_of(2, 2), **by_columns))


if __name__ == "__main__":
    main(*sys.argv[1:])
