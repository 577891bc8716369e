"""`reefknot.pack` with inputs: sizes that are asked for, and requests that cannot be met."""

import pytest
import torch
from torch import nn

import reefknot
from reefknot.errors import ConfigError, ReefknotError, UserCodeError

NAN = float("nan")


def small_net():
    """1,920 weights and a norm layer: its values run out long before the budget does."""
    torch.manual_seed(0)
    layers = nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)
    generator = torch.Generator().manual_seed(1)
    return nn.Sequential(*layers), [torch.randn(32, 20, generator=generator) for _ in range(8)]


SOME, OTHERS = (1000, 1800, 3000, 6000), (1400, 2200, 2600, 3400, 3700)


@pytest.mark.parametrize(
    "size", [*SOME, *(pytest.param(size, marks=pytest.mark.slow) for size in OTHERS)]
)
def test_every_size_that_can_be_reached_is_found(tmp_path, size):
    model, batches = small_net()
    packed = reefknot.pack(model, tmp_path / "m.reef", size=size, inputs=batches)
    assert (tmp_path / "m.reef").stat().st_size == packed.file_bytes <= size
    assert packed.file_bytes > 0.8 * min(size, 3700)  # which is what the finest steps take


def test_a_size_that_cannot_be_reached_is_refused_before_the_work(tmp_path):
    model, batches = small_net()
    visited = []
    model.register_forward_hook(lambda *_: visited.append(1))
    with pytest.raises(ConfigError, match=r"300 bytes are too few: .* the file has \d{3}"):
        reefknot.pack(model, tmp_path / "m.reef", size=300, inputs=batches)
    assert not visited and not list(tmp_path.iterdir())


def test_a_missing_folder_is_noticed_before_the_work(tmp_path):
    model, batches = small_net()
    with pytest.raises(ReefknotError, match="there is no folder"):
        reefknot.pack(model, tmp_path / "no" / "m.reef", bits=4, inputs=batches)


def test_tensors_that_follow_the_weights_are_shown_with_their_change(tmp_path):
    model, batches = small_net()
    packed = reefknot.pack(model, tmp_path / "m.reef", bits=4, inputs=batches)
    after = reefknot.load(tmp_path / "m.reef")
    changes = {change.name: change for change in packed.changes}
    for name in ("0.bias", "1.running_var"):
        before = model.state_dict()[name]
        away = (after[name] - before).abs()
        assert changes[name].done == "made to fit the packed weights"
        assert changes[name].largest_error == pytest.approx(float(away.max()), rel=1e-5)
        norm = float(before.double().norm())
        assert changes[name].relative_error == pytest.approx(float(away.norm()) / norm, rel=1e-5)


def test_a_single_input_is_enough_to_run(tmp_path):
    model, batches = small_net()
    packed = reefknot.pack(model, tmp_path / "m.reef", bits=8, inputs=[batches[0][:1]])
    assert packed.outputs.relative_error < 0.1


@pytest.mark.parametrize("where", [0, -1])
def test_inputs_that_are_not_finite_are_refused(tmp_path, where):
    model, batches = small_net()
    batches[where] = torch.full((32, 20), NAN)
    with pytest.raises(UserCodeError, match="NaN or infinite"):
        reefknot.pack(model, tmp_path / "m.reef", bits=4, inputs=batches)
    assert not list(tmp_path.iterdir())


def test_weights_that_are_not_finite_are_refused_with_inputs_only(tmp_path):
    model, batches = small_net()
    model[0].weight.data[3, 4] = NAN
    with pytest.raises(UserCodeError, match=r"3\.weight .* NaN or infinite"):
        reefknot.pack(model, tmp_path / "m.reef", bits=20, inputs=batches)
    reefknot.pack(model, tmp_path / "m.reef", bits=20)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"size": "4KB"}, "size is a number above 0, found '4KB'"),
        ({"bits": True}, "bits is a number above 0, found True"),
        ({"bits": 4, "inputs": small_net}, "such as a DataLoader, found a function"),
        ({"bits": 4, "inputs": [], "example_input": torch.zeros(1, 20)}, "not both"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        reefknot.pack(small_net()[0], tmp_path / "m.reef", **options)
