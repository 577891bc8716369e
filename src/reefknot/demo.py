"""The whole story in under a minute: train, tie, pack, read back, check. Needs no download.

Takes     scikit-learn's embedded digits.
Gives     a table, a `.reef` file if asked for, and a failure if the file is not exact.
"""

import gzip
import lzma
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import save as to_safetensors
from torch import nn

import reefknot
from reefknot.errors import CheckError
from reefknot.progress import ProgressBar
from reefknot.rates import rate_file
from reefknot.runs.training import Batches, Plan, error_percent, train
from reefknot.state import TiedState
from reefknot.summary import facts_table
from reefknot.zoo import DATASETS, NETWORKS, Data

DENSE = Plan(soft_steps=1_000, hard_steps=0, rate=1e-3, hard_rate=0.0, decay="cosine")
TIED = Plan(soft_steps=4_000, hard_steps=1_000, rate=2e-3, hard_rate=1e-3, decay="cosine")
SETTINGS = {"num_clusters": 17, "tying_strength": 1e-3, "l1_strength": 2e-4, "refit_every": 100}
BATCH_SIZE = 128


def run_demo(*, out: Path | None = None, seed: int = 0) -> None:
    """Train a dense and a tied network on the digits, and show what the tied one weighs."""
    began = time.monotonic()
    torch.set_num_threads(1)  # for a network this small, a second thread waits more than it works
    data = DATASETS["digits"]()
    assert data.test is not None
    console = Console()
    console.print("Handwritten digits, 8x8 pixels; a 64-300-100-10 network, trained twice.")
    with ProgressBar(DENSE.steps + TIED.steps, Console(stderr=True)) as bar:
        dense_error, _, _, _ = _fit("dense", DENSE, data, seed, bar, 0)
        soft, hardened, state, model = _fit("sparse_apt", TIED, data, seed, bar, DENSE.steps)
    assert state is not None
    final = error_percent(model, *data.test)
    with tempfile.TemporaryDirectory() as folder:
        path = out or Path(folder) / "digits.reef"
        file_bytes = reefknot.save(state, path)
        _check_exact(model, path, data)
    plain = to_safetensors(model.state_dict())
    rows = [
        ("test error, dense network", f"{dense_error:.2f} %"),
        ("test error, after soft tying", f"{soft:.2f} %"),
        ("test error, after hardening", f"{hardened:.2f} %"),
        ("test error, final", f"{final:.2f} %"),
        ("density", f"{state.density:.4f}"),
        ("clusters", f"{state.num_clusters}"),
        ("bytes, fp32", f"{state.original_bytes:,}"),
        ("bytes, fp32 and gzip -9", f"{len(gzip.compress(plain, 9)):,}"),
        (
            "bytes, fp32 and xz -9e",
            f"{len(lzma.compress(plain, preset=9 | lzma.PRESET_EXTREME)):,}",
        ),
        ("bytes, .reef", f"{file_bytes:,}"),
        ("rate, fp32 / .reef", f"{rate_file(state, file_bytes):.0f}x"),
        ("seconds", f"{time.monotonic() - began:.0f}"),
    ]
    console.print(facts_table(rows))
    console.print("The file was read back: the loaded network gives the same outputs, bit for bit.")
    if out:
        console.print(f"wrote {out}")


def _fit(
    name: str, plan: Plan, data: Data, seed: int, bar: ProgressBar, offset: int
) -> tuple[float, float, TiedState | None, nn.Module]:
    """Train one network; gives its test error before and after hardening, its state and itself."""
    assert data.test is not None
    torch.manual_seed(seed)
    model = NETWORKS["digits-mlp"]()
    method = reefknot.METHODS[name](model, **(SETTINGS if name == "sparse_apt" else {}))
    optimizer = torch.optim.Adam(model.parameters(), lr=plan.rate)
    method.attach(optimizer)
    batches = Batches(*data.train, BATCH_SIZE, seed)
    before = after = float("nan")
    for progress in train(model, method, optimizer, batches, plan):
        if progress.event == "soft":
            before = error_percent(model, *data.test)
        elif progress.event == "hardened":
            after = error_percent(model, *data.test)
        elif progress.step % 500 == 0:
            validation = error_percent(model, *data.validation)
            row = {"val_error": validation, "loss": progress.loss, "step": progress.step + offset}
            bar.measured(method.stats() | row)
        bar.stepped(progress._replace(step=progress.step + offset))
    return before, after, method.finish(), model


def _check_exact(model: nn.Module, path: Path, data: Data) -> None:
    """The network in the file must give the outputs of the one that was trained."""
    assert data.test is not None
    loaded = NETWORKS["digits-mlp"]()
    loaded.load_state_dict(reefknot.load(path))
    with torch.no_grad():
        same = torch.equal(model(data.test.inputs), loaded(data.test.inputs))
    if not same:
        raise CheckError("the network read back from the file gives other outputs")
