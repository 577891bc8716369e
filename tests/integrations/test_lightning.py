"""Lightning's Trainer, the real one, on a small residual network with BatchNorm."""

import csv

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, relu
from torch.utils.data import DataLoader, TensorDataset

import reefknot
from reefknot import ConfigError, TyingError

pytest.importorskip("lightning")
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from reefknot.integrations.lightning import TyingCallback

pytestmark = [
    # Lightning's advice about loggers and workers, and what torch tells it about its own calls.
    pytest.mark.filterwarnings("ignore::UserWarning:lightning.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        return relu(x + self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))))


class Residual(LightningModule):
    def __init__(self, channels=8):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.blocks = nn.Sequential(Block(channels), Block(channels))
        self.head = nn.Linear(channels, 2)

    def forward(self, x):
        return self.head(self.blocks(relu(self.stem(x))).mean((2, 3)))

    def training_step(self, batch, number):
        inputs, labels = batch
        loss = cross_entropy(self(inputs), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class OfTwo(Residual):
    """Several parameter groups."""

    def configure_optimizers(self):
        groups = [
            {"params": self.blocks.parameters()},
            {"params": self.head.parameters(), "lr": 0.1},
        ]
        return torch.optim.SGD([*groups, {"params": self.stem.parameters()}], lr=0.01)


class Words(LightningModule):
    """Input and output embeddings are one tensor; the layer between them is frozen."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.middle = nn.Linear(16, 16)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.embedding.weight
        self.middle.requires_grad_(False)

    def forward(self, words):
        return self.head(torch.tanh(self.middle(self.embedding(words))))

    def training_step(self, batch, number):
        words = (batch[0][:, 0, 0, 0] * 10).long() % 30
        return cross_entropy(self(words), (words + 1) % 30)

    def configure_optimizers(self):
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=1e-2)


class Quiet(Residual):
    """Logs nothing itself: the compiler cannot trace Lightning's `log` in `training_step`."""

    def training_step(self, batch, number):
        return cross_entropy(self(batch[0]), batch[1])


class CompiledInside(Residual):
    """A part of it is compiled, so that its state dict has other names."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.compile(self.blocks, backend="aot_eager")


def loader():
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 1, 6, 6, generator=random)
    data = TensorDataset(inputs, (inputs.mean((1, 2, 3)) > 0).long())
    return DataLoader(data, batch_size=8)  # eight batches an epoch


def fitted(folder, callback, network=Residual, *, resume=None, callbacks=(), **more):
    seed_everything(5, verbose=False)
    module = network()
    trainer = Trainer(
        **{
            "max_epochs": 3, "accelerator": "cpu", "callbacks": [callback, *callbacks],
            "logger": CSVLogger(folder), "enable_progress_bar": False, "log_every_n_steps": 4,
            "enable_model_summary": False, "enable_checkpointing": bool(callbacks),
        } | more
    )  # fmt: skip
    trainer.fit(module, loader(), ckpt_path=resume)
    return module, trainer


def test_a_budget_ends_in_a_file_that_loads_with_equal_outputs(tmp_path):
    path = tmp_path / "m.reef"
    module, _ = fitted(tmp_path, TyingCallback(path, target_bytes=1_200))
    assert path.stat().st_size <= 1_200
    fresh = Residual()
    fresh.load_state_dict(reefknot.load(path))
    inputs = torch.randn(4, 1, 6, 6)
    with torch.no_grad():
        assert torch.equal(module.eval()(inputs), fresh.eval()(inputs))
    logged = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    assert {
        "reefknot/density",
        "reefknot/kmeans_penalty",
        "reefknot/bytes",
        "reefknot/phase",
    } <= set(logged[0].split(","))
    assert len(logged) > 4


def test_a_resumed_training_gives_the_same_file(tmp_path):
    path = tmp_path / "m.reef"
    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=16, save_top_k=-1)
    fitted(tmp_path, TyingCallback(path, target_bytes=1_200), callbacks=[keep])
    whole = path.read_bytes()
    path.unlink()
    half = tmp_path / "step=16.ckpt"
    fitted(tmp_path, TyingCallback(path, target_bytes=1_200), resume=half, callbacks=[])
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("network", "more"),
    [
        (Residual, {"accumulate_grad_batches": 2}),
        pytest.param(Residual, {"precision": "bf16-mixed"}, marks=pytest.mark.slow),
        pytest.param(Residual, {"gradient_clip_val": 0.1}, marks=pytest.mark.slow),
        (OfTwo, {}),
    ],
    ids=["accumulation", "bf16", "clipping", "parameter groups"],
)
def test_the_trainers_own_ways_stay_within_the_budget(tmp_path, network, more):
    path = tmp_path / "m.reef"
    callback = TyingCallback(path, target_bytes=1_200)
    _, trainer = fitted(tmp_path, callback, network, **more)
    assert callback.session.method.step == trainer.global_step
    assert path.stat().st_size <= 1_200


@pytest.mark.slow
@pytest.mark.parametrize(
    "network",
    [lambda: torch.compile(Quiet(), backend="aot_eager"), CompiledInside],
    ids=["the module", "a part of it"],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at every tensor
def test_a_compiled_module_ends_in_a_file_for_a_plain_one(tmp_path, network):
    torch.compiler.reset()
    path = tmp_path / "m.reef"
    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=16, save_top_k=-1)
    module, trainer = fitted(
        tmp_path, TyingCallback(path, target_bytes=1_200), network, callbacks=[keep],
        log_every_n_steps=1,
    )  # fmt: skip
    assert any("_orig_mod" in name for name in module.state_dict())  # it was compiled
    logged = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    rows = csv.DictReader(logged.splitlines())
    phases = [float(row["reefknot/phase"]) for row in rows if row["reefknot/phase"]]
    assert phases == sorted(phases) and set(phases) == {0, 1, 2, 3}
    assert path.stat().st_size <= 1_200
    fresh, found = Residual(), reefknot.load(path)
    assert found.keys() == fresh.state_dict().keys()
    fresh.load_state_dict(found)
    inputs = torch.randn(4, 1, 6, 6)
    with torch.no_grad():
        assert torch.equal(trainer.lightning_module.eval()(inputs), fresh.eval()(inputs))
    whole = path.read_bytes()
    fitted(
        tmp_path, TyingCallback(path, target_bytes=1_200), network,
        resume=tmp_path / "step=16.ckpt",
    )  # fmt: skip
    assert path.read_bytes() == whole


def test_tied_embeddings_are_stored_once_and_frozen_layers_stay(tmp_path):
    path = tmp_path / "m.reef"
    seed_everything(5, verbose=False)
    before = Words().middle.weight
    module, _ = fitted(tmp_path, TyingCallback(path, target_bytes=1_800), Words)
    found = reefknot.load(path)
    assert path.stat().st_size <= 1_800
    assert found["head.weight"].data_ptr() == found["embedding.weight"].data_ptr()
    assert torch.equal(found["middle.weight"], before)
    fresh = Words()
    fresh.load_state_dict(found)
    words = torch.arange(30)
    with torch.no_grad():
        assert torch.equal(module(words), fresh(words))


def test_a_fit_that_was_stopped_goes_on_with_the_same_callback(tmp_path):
    class Stop(Callback):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step == 18:
                raise RuntimeError("stop")

    path, stopped = tmp_path / "m.reef", tmp_path / "stopped.reef"
    fitted(tmp_path, TyingCallback(path, target_bytes=1_200))
    callback = TyingCallback(stopped, target_bytes=1_200)
    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=16, save_top_k=-1)
    with pytest.raises(RuntimeError, match="stop"):
        fitted(tmp_path, callback, callbacks=[keep, Stop()])
    fitted(tmp_path, callback, resume=tmp_path / "step=16.ckpt")
    assert stopped.read_bytes() == path.read_bytes()


def test_a_callback_that_averages_weights_is_refused(tmp_path):
    callback = TyingCallback(tmp_path / "m.reef", target_bytes=1_200)
    with pytest.raises(ConfigError, match="EMAWeightAveraging would put averages"):
        fitted(tmp_path, callback, callbacks=[EMAWeightAveraging()])


def test_a_training_without_an_end_is_refused(tmp_path):
    with pytest.raises(TyingError, match="how many optimizer steps there will be, found inf"):
        fitted(tmp_path, TyingCallback(tmp_path / "m.reef", target_bytes=1_200), max_epochs=-1)


def test_a_training_that_stops_early_still_ends_in_a_file(tmp_path):
    class Stop(TyingCallback):
        def on_train_batch_end(self, trainer, *args, **kwargs):
            super().on_train_batch_end(trainer, *args, **kwargs)
            trainer.should_stop = trainer.global_step >= 20

    path = tmp_path / "m.reef"
    fitted(tmp_path, Stop(path, target_bytes=1_200))
    assert path.stat().st_size <= 1_200
