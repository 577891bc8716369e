"""Accelerate, the real one: a plain loop, on one process and on two."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import reefknot

pytest.importorskip("accelerate")
from accelerate import Accelerator

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    inputs = torch.randn(64, 20)
    return model, optimizer, DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), 8)


def trained(accelerator, folder, *, steps=40, save_at=None, resume=False, **settings):
    model, optimizer, data = accelerator.prepare(*parts())
    tie = reefknot.SparseAPT(model, **({"target_bytes": 600, "steps": steps} | settings))
    tie.attach(optimizer)
    accelerator.register_for_checkpointing(tie)
    if resume:
        accelerator.load_state(folder / "state")
    while tie.step < steps:
        for inputs, labels in data:
            with accelerator.accumulate(model):
                accelerator.backward(cross_entropy(model(inputs), labels))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        if tie.step == save_at:
            accelerator.save_state(folder / "state")
    state = tie.finish()
    return reefknot.save(state, folder / "m.reef"), accelerator.unwrap_model(model)


def test_a_plain_loop_ends_in_a_file_within_its_budget(tmp_path):
    size, model = trained(Accelerator(cpu=True), tmp_path)
    assert size <= 600
    fresh = parts()[0]
    fresh.load_state_dict(reefknot.load(tmp_path / "m.reef"))
    inputs = torch.randn(5, 20)
    assert torch.equal(fresh(inputs), model(inputs))


def test_accelerates_checkpoint_holds_the_method(tmp_path):
    trained(Accelerator(cpu=True), tmp_path, save_at=16)
    whole = (tmp_path / "m.reef").read_bytes()
    trained(Accelerator(cpu=True), tmp_path, resume=True)
    assert (tmp_path / "m.reef").read_bytes() == whole


def test_accumulated_gradients_are_one_step(tmp_path):
    size, _ = trained(Accelerator(cpu=True, gradient_accumulation_steps=2), tmp_path, steps=20)
    assert size <= 600


def test_hooks_of_others_come_after_ours():
    model, optimizer, data = parts()
    seen = []
    optimizer.register_step_post_hook(
        lambda *_: seen.append(len(model[0].weight.detach().unique()))
    )
    tie = reefknot.SparseAPT(model, num_clusters=4).attach(optimizer)
    tie.harden()
    inputs, labels = next(iter(data))
    cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    assert seen[0] <= 4  # tied already


def test_the_tutorial_on_two_processes(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
    [tutorial] = [
        b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "Accelerator" in b
    ]
    # Each process says what it has, so that they can be compared.
    told = 'reefknot.save(state, f"rank{accelerator.process_index}.reef")\n'
    script = tmp_path / "train.py"
    script.write_text(tutorial.replace("accelerator.end_training()", told))
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--standalone", script),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    files = [(tmp_path / f"{name}.reef").read_bytes() for name in ("model", "rank0", "rank1")]
    assert files[0] == files[1] == files[2]
    assert len(files[0]) <= 900
