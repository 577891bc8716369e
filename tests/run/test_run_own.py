"""`reefknot run` on a network and data of a user, and with a test set that is not looked at."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from digits_runs import command, digits_config, finished, record_of, refused, rows_of
from safetensors.torch import save_file

import reefknot

# -- the test set ---------------------------------------------------------------------------

# A network that refuses to look at the test set, whose inputs are all 1000.
BLIND = """
import torch
from torch import nn
from reefknot.lab.zoo import Data, Split

class Blind(nn.Linear):
    def forward(self, inputs):
        if inputs.max() > 500:
            raise AssertionError("the test set was looked at")
        return super().forward(inputs)

def network():
    return Blind(2, 2)

def data():
    inputs = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    part = Split(inputs, (inputs[:, 0] > 0).long())
    return Data("blind", part, part, Split(torch.full((4, 2), 1000.0), torch.zeros(4).long()))
"""


def test_without_evaluate_test_the_test_set_is_never_looked_at(
    own_module: Any, tmp_path: Path
) -> None:
    own_module("blind.py", BLIND)
    save_file({"weight": torch.eye(2), "bias": torch.zeros(2)}, tmp_path / "parent.safetensors")
    config = digits_config(tmp_path)
    entries = ("model=blind:network", "data=blind:data", "start=parent.safetensors")
    own = [word for entry in entries for word in ("--set", entry)]
    out = finished(config, tmp_path / "out", *own, "--set", "evaluate_test=false")
    assert record_of(out)["test_error"] is None
    assert record_of(out)["dense_test_error"] is None
    assert record_of(out)["val_error"] is not None
    # And the network does see it when asked to.
    done = command("run", config, "--out", tmp_path / "seen", *own)
    refused(done, "evaluating the network failed with AssertionError: the test set was looked at")


# -- a user's own network -------------------------------------------------------------------

MINE = """
import numpy as np
from torch import nn

def network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
    )

def data():
    images = np.random.default_rng(0).random((60, 1, 8, 8), np.float32)
    return images, (images[:, 0, 4, 4] > 0.5).astype(np.int64)

def nothing():
    return None
"""


def test_a_users_own_network_and_data_are_found_in_the_current_folder(
    own_module: Any, tmp_path: Path
) -> None:
    own_module("mine/parts.py", MINE)
    config = digits_config(tmp_path, settings='exclude = ["1.*"]')
    own = ("--set", "model=mine.parts:network", "--set", "data=mine.parts:data")
    out = finished(config, tmp_path / "out", *own)
    record = record_of(out)
    assert (record["network"], record["data"]) == ("mine.parts:network", "mine.parts:data")
    assert record["test_error"] is None  # it has no test set
    assert record["skipped"].keys() == {"1.weight", "1.bias"}
    loaded = reefknot.load(out / "model.reef")
    model = sys.modules["mine.parts"].network()
    model.load_state_dict(loaded)
    # Batch-norm statistics came along, estimated once more at the end: an epoch has one batch.
    assert loaded["1.num_batches_tracked"] == 1
    assert not torch.equal(loaded["1.running_var"], torch.ones(4))


def test_a_file_for_inference_is_a_start_its_batchnorm_gets_statistics_again(
    own_module: Any, tmp_path: Path
) -> None:
    own_module("mine/parts.py", MINE)
    own = ("--set", "model=mine.parts:network", "--set", "data=mine.parts:data")
    first = digits_config(tmp_path, settings='norms = "folded"')
    parent = finished(first, tmp_path / "parent", *own)
    folded = reefknot.load(parent / "model.reef")
    assert not folded["1.running_mean"].any()
    second = digits_config(tmp_path, settings='norms = "exact"\ninit = "kmeans"')
    small = ("--set", "training.soft_steps=1", "--set", "optimizer.lr=1e-9")
    start = ("--set", f"start={parent / 'model.reef'}")
    out = finished(second, tmp_path / "out", *own, *start, *small)
    assert record_of(out)["dense_val_error"] == record_of(parent)["val_error"]
    found = reefknot.load(out / "model.reef")
    deviation = (found["1.running_var"] + 1e-5).sqrt()
    assert found["1.running_mean"].any()
    assert torch.allclose(found["1.weight"] / deviation, folded["1.weight"], rtol=0.1)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model=mine.parts:nothing", "gave a NoneType; a torch module was expected"),
        ("model=mine.parts:netwrok", "has no 'netwrok' (did you mean 'network'?)"),
        ("model=mine.party:network", "no module 'mine.party'"),
        ("model=digits-mpl", "unknown network 'digits-mpl' (did you mean 'digits-mlp'?)"),
        ("data=mine.parts:nothing", "expected a reefknot.lab.zoo.Data, or a tuple of tensors"),
        ("data=digit", "unknown data set 'digit' (did you mean 'digits'?)"),
        ("settings.include=fc9*", "the pattern 'fc9*' matches no parameter"),
    ],
)
def test_what_is_not_a_network_or_data_is_refused_in_one_sentence(
    own_module: Any, tmp_path: Path, override: str, words: str
) -> None:
    own_module("mine/parts.py", MINE)
    config = digits_config(tmp_path)
    refused(command("run", config, "--out", tmp_path / "out", "--set", override), words)


FAULTY = """
import dataclasses
import torch
from torch import nn
from reefknot.lab.zoo import DATASETS

def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def too_narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(60, 10))

def too_few_classes():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))

def images():
    return nn.Linear(8, 10)

class Pair(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs.flatten(1)), 1

def pair():
    return Pair(64, 10)

class Tired(nn.Linear):
    def forward(self, inputs):
        if self.training and torch.is_grad_enabled():
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps > 3:
                raise OverflowError("no more,\\n  please")
        return super().forward(inputs.flatten(1))

def tired():
    return Tired(64, 10)

def raises():
    raise ZeroDivisionError("one of mine")

def data():
    return DATASETS["digits"]()

def torn():
    def augment(inputs, generator):
        raise KeyError("torn")
    return dataclasses.replace(data(), augment=augment)
"""


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model=mine.faulty:raises", "the network 'mine.faulty:raises' failed with ZeroDivision"),
        ("data=mine.faulty:raises", "the data 'mine.faulty:raises' failed with ZeroDivisionError"),
        (
            "model=mine.faulty:too_narrow",
            "the network 'mine.faulty:too_narrow' on inputs of shape (2, 1, 8, 8) failed with "
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        ),
        (
            "model=mine.faulty:too_few_classes",
            "gave outputs of shape (2, 7); expected (2, classes) with at least 10 classes, since "
            "the largest label of 'digits' is 9",
        ),
        ("model=mine.faulty:images", "gave outputs of shape (2, 1, 8, 10); expected (2, classes)"),
        ("model=mine.faulty:pair", "gave a tuple; expected (2, classes)"),
        (
            "model=mine.faulty:tired",
            "step 4 failed with OverflowError: no more, please; add --debug",
        ),
        ("data=mine.faulty:torn", "step 1 failed with KeyError: 'torn'; add --debug to see where"),
    ],
)
def test_what_a_users_own_code_raises_is_one_sentence(
    own_module: Any, tmp_path: Path, override: str, words: str
) -> None:
    own_module("mine/faulty.py", FAULTY)
    config, out = digits_config(tmp_path), tmp_path / "out"
    refused(command("run", config, "--out", out, "--set", override), words)
    assert not out.exists()


def test_debug_shows_the_traceback(own_module: Any, tmp_path: Path) -> None:
    own_module("mine/faulty.py", FAULTY)
    wrong = ("--out", tmp_path / "out", "--set", "model=mine.faulty:raises")
    done = command("run", digits_config(tmp_path), *wrong, "--debug")
    assert done.exit_code == 2
    assert 'mine/faulty.py", line' in done.stderr
    assert done.stderr.splitlines()[-1].endswith("failed with ZeroDivisionError: one of mine")
    assert "Traceback" not in command("run", digits_config(tmp_path), *wrong).stderr


BLOTS = """
import dataclasses
import torch
from reefknot.lab.zoo import DATASETS

def plain():
    return DATASETS["digits"]()

def blotted():
    return dataclasses.replace(plain(), augment=lambda inputs, _: torch.zeros_like(inputs))

def empty():
    inputs, labels = plain().train
    return dataclasses.replace(plain(), train=(torch.zeros_like(inputs), labels))
"""


def test_teachers_judge_the_images_that_the_model_sees(
    dense: Path, tmp_path: Path, own_module: Any
) -> None:
    """To blot every image out by augmentation is as if all of them were empty."""
    own_module("mine/blots.py", BLOTS)
    config = digits_config(tmp_path)
    teachers = ("--set", f'distillation.teachers=["{dense / "model.reef"}"]')
    losses = {}
    for name in ("plain", "blotted", "empty"):
        out = finished(config, tmp_path / name, "--set", f"data=mine.blots:{name}", *teachers)
        losses[name] = [row["loss"] for row in rows_of(out)]
    assert losses["blotted"] == pytest.approx(losses["empty"], rel=1e-5)
    assert losses["blotted"] != pytest.approx(losses["plain"], rel=1e-2)


DRAWN = """
import torch

def network():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 2))

def data():
    inputs = torch.randn(100, 5)
    return inputs, (inputs.sum(1) > 0).long()
"""


def test_data_that_is_drawn_is_the_same_in_every_run(own_module: Any, tmp_path: Path) -> None:
    own_module("mine.py", DRAWN)
    config = digits_config(tmp_path, settings="num_clusters = 3")
    own = ("--set", "model=mine:network", "--set", "data=mine:data")
    files = [finished(config, tmp_path / name, *own) / "model.reef" for name in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()
