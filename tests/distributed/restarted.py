"""A training that is killed in the middle and started again, as `test_restart.py` wants it.

    torchrun --nproc-per-node 2 --max-restarts 1 restarted.py FOLDER

A checkpoint is written every four steps. In the first attempt process 1 is killed after step 7.
Each attempt appends the step that it begins at.
"""

import os
import signal
import sys
from pathlib import Path

import process_jobs
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from reefknot.integrations import distributed

EVERY, KILLED_AT = 4, 7


def main(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = process_jobs.sharded(process_jobs.network(), process_jobs.mesh_of(2))
    tie, optimizer = process_jobs.budget(model), torch.optim.Adam(model.parameters(), lr=0.02)
    saved = sorted(folder.glob("step-*/.metadata"))
    done = 0
    if saved:
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=saved[-1].parent)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        distributed.load_state(tie, saved[-1].parent)
        done = int(saved[-1].parent.name.removeprefix("step-"))
    with (folder / f"began-{dist.get_rank()}").open("a") as log:
        log.write(f"{done}\n")
    tie.attach(optimizer)
    first_attempt = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for step in range(done, process_jobs.STEPS):
        process_jobs.set_gradients(model, step)
        optimizer.step()
        if (step + 1) % EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "tie": tie.state_dict()}
            dcp.save(state, checkpoint_id=folder / f"step-{step + 1:02}")
        if step + 1 == KILLED_AT and first_attempt and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    distributed.save(tie, folder / "model.reef")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
