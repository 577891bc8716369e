"""Accelerate, the real one: a plain loop, on one process and on two."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

import reefknot
from reefknot.integrations.session import numbers

pytest.importorskip("accelerate")
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import GeneralTracker
from accelerate.utils import TorchDynamoPlugin

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def own_settings():
    """Accelerate keeps the first settings of a process for all that follow."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    inputs = torch.randn(64, 20)
    return model, optimizer, DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), 8)


class Block(nn.Linear):
    """Accelerate compiles the blocks of a list one by one."""

    def forward(self, inputs):
        return super().forward(inputs).relu()


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(20, 20), Block(20, 20)]), nn.Linear(20, 3)

    def forward(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def blocks():
    torch.manual_seed(0)
    model = Blocks()
    return model, torch.optim.Adam(model.parameters(), lr=1e-2), parts()[2]


def trained(accelerator, folder, *, steps=40, save_at=None, resume=False, parts=parts, **settings):
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


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at every tensor
@pytest.mark.parametrize(
    "regional",
    [
        pytest.param(False, id="as a whole"),
        pytest.param(True, id="block by block", marks=pytest.mark.slow),
    ],
)
def test_a_compiled_model_ends_in_a_file_for_a_plain_one(tmp_path, regional):
    torch.compiler.reset()
    made = blocks if regional else parts

    def compiling():
        plugin = TorchDynamoPlugin(backend="aot_eager", use_regional_compilation=regional)
        return Accelerator(cpu=True, dynamo_plugin=plugin)

    size, model = trained(compiling(), tmp_path, save_at=16, parts=made)
    assert any("_orig_mod" in name for name in model.state_dict())  # it was compiled
    assert size <= 600
    fresh = made()[0]
    found = reefknot.load(tmp_path / "m.reef")
    assert found.keys() == fresh.state_dict().keys()
    fresh.load_state_dict(found)
    inputs = torch.randn(5, 20)
    assert torch.equal(fresh(inputs), model(inputs))
    whole = (tmp_path / "m.reef").read_bytes()
    trained(compiling(), tmp_path, resume=True, parts=made)
    assert (tmp_path / "m.reef").read_bytes() == whole


class Words(nn.Module):
    """Input and output embeddings are one tensor; the layer between them is frozen."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.middle = nn.Linear(16, 16)
        self.head = nn.Linear(16, 20)
        self.head.weight = self.embedding.weight
        self.middle.requires_grad_(False)

    def forward(self, inputs):
        return self.head(torch.tanh(self.middle(self.embedding(inputs.argmax(1)))))


def words():
    torch.manual_seed(0)
    model = Words()
    groups = [{"params": [model.embedding.weight]}, {"params": [model.head.bias], "lr": 0.1}]
    return model, torch.optim.Adam(groups, lr=1e-2), parts()[2]


def test_bf16_groups_frozen_layers_and_tied_embeddings(tmp_path):
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    size, model = trained(accelerator, tmp_path, parts=words, target_bytes=1_600)
    assert size <= 1_600
    found = reefknot.load(tmp_path / "m.reef")
    assert found["head.weight"].data_ptr() == found["embedding.weight"].data_ptr()
    fresh = words()[0]
    assert torch.equal(found["middle.weight"], fresh.middle.weight)
    fresh.load_state_dict(found)
    assert all(map(torch.equal, fresh.parameters(), model.parameters()))
    assert {value.dtype for value in found.values()} == {torch.float32}


def test_accelerates_trackers_receive_our_figures(tmp_path):
    class Notes(GeneralTracker):
        name, requires_logging_directory = "notes", False

        def __init__(self):
            super().__init__()
            self.rows = []

        @property
        def tracker(self):
            return self.rows

        def log(self, values, step, **more):
            self.rows.append((step, values))

    notes = Notes()
    accelerator = Accelerator(cpu=True, log_with=notes)
    accelerator.init_trackers("tied")
    model, optimizer, data = accelerator.prepare(*parts())
    tie = reefknot.SparseAPT(model, target_bytes=600, steps=16).attach(optimizer)
    for inputs, labels in [*data, *data]:
        accelerator.backward(cross_entropy(model(inputs), labels))
        optimizer.step()
        accelerator.log(numbers(tie), step=tie.step)
    assert [step for step, _ in notes.rows] == list(range(1, 17))
    names = ["density", "kmeans_penalty", "bytes", "phase"]
    assert all(list(row) == [f"reefknot/{name}" for name in names] for _, row in notes.rows)
    phases = [row["reefknot/phase"] for _, row in notes.rows]
    assert phases == sorted(phases) and phases[0] == 0 and phases[-1] == 3
    assert notes.rows[-1][1]["reefknot/bytes"] <= 600


def test_hooks_of_others_come_after_ours():
    model, optimizer, data = parts()
    seen = []
    optimizer.register_step_post_hook(
        lambda *_: seen.append(len(model[0].weight.detach().unique()))
    )
    for_all = register_optimizer_step_post_hook(
        lambda *_: seen.append(len(model[0].weight.detach().unique()))
    )
    tie = reefknot.SparseAPT(model, num_clusters=4).attach(optimizer)
    tie.harden()
    inputs, labels = next(iter(data))
    cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    for_all.remove()
    assert len(seen) == 2
    assert max(seen) <= 4  # tied already


@pytest.mark.slow
@pytest.mark.timeout(500)  # of the slowest machine
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
        command, capture_output=True, text=True, timeout=400, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    files = [(tmp_path / f"{name}.reef").read_bytes() for name in ("model", "rank0", "rank1")]
    assert files[0] == files[1] == files[2]
    assert len(files[0]) <= 900
