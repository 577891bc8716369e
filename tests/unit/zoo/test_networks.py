"""The networks: their sizes, their shapes and their initialisation."""

import math

import pytest
import torch
from torch import nn

from reefknot.lab.zoo import NETWORKS


def num_parameters(model: nn.Module, *, norms: bool = True) -> int:
    return sum(
        parameter.numel()
        for module in model.modules()
        if norms or not isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
        for parameter in module.parameters(recurse=False)
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lenet-300-100", 266_610),  # 784*300+300 + 300*100+100 + 100*10+10
        ("lenet-5-caffe", 431_080),  # 520 + 25,050 + 400,500 + 5,010
        ("lenet-5-local", 2_308_230),  # 576*(500+20) + 64*(25,000+50) + 400,500 + 5,010
        ("lenet-5-full", 18_667_910),  # 785*11,520 + 2,881*3,200 + 400,500 + 5,010
        ("vgg-16", 14_982_474),
        ("digits-mlp", 50_610),  # 19,500 + 30,100 + 1,010
    ],
)
def test_numbers_of_parameters(name: str, expected: int) -> None:
    assert num_parameters(NETWORKS[name](), norms=False) == expected


def test_vgg_16_has_13_convolutions_and_its_norms() -> None:
    model = NETWORKS["vgg-16"]()
    kinds = [type(module) for module in model.modules()]
    assert (kinds.count(nn.Conv2d), kinds.count(nn.Linear)) == (13, 2)
    # Scale and shift for 4,224 channels and 512 dense units.
    assert num_parameters(model) - num_parameters(model, norms=False) == 2 * (4_224 + 512)
    rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    assert rates == [0.3, 0.3]  # around the dense layer alone


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lenet-300-100", (1, 28, 28)),
        ("lenet-5-caffe", (1, 28, 28)),
        ("lenet-5-local", (1, 28, 28)),
        ("lenet-5-full", (1, 28, 28)),
        ("vgg-16", (3, 32, 32)),
        ("vgg-16", (3, 24, 24)),
        ("vgg-16", (3, 16, 16)),
        ("digits-mlp", (1, 8, 8)),
        ("digits-mlp", (64,)),
    ],
)
def test_a_batch_gives_ten_scores_each(name: str, shape: tuple[int, ...]) -> None:
    with torch.no_grad():
        scores = NETWORKS[name]()(torch.randn(2, *shape))
    assert scores.shape == (2, 10)
    assert scores.isfinite().all()


def test_layer_names_are_readable() -> None:
    names = [name for name, _ in NETWORKS["lenet-5-caffe"]().named_parameters()]
    assert names == [
        f"{layer}.{kind}"
        for layer in ("conv1", "conv2", "fc1", "fc2")
        for kind in ("weight", "bias")
    ]
    vgg = dict(NETWORKS["vgg-16"]().named_modules())
    assert {"conv1", "bn1", "conv13", "bn13", "fc1", "bn14", "fc2"} <= set(vgg)


def test_weights_start_as_glorot_proposed_and_biases_at_zero() -> None:
    torch.manual_seed(0)
    model = NETWORKS["lenet-5-caffe"]()
    # The limit is sqrt(6 / (fan in + fan out)); a kernel position counts in both.
    for name, fans in [("conv2", 25 * (20 + 50)), ("fc1", 800 + 500)]:
        layer = model.get_submodule(name)
        weight, limit = layer.get_parameter("weight").detach(), math.sqrt(6 / fans)
        assert 0.99 * limit < float(weight.abs().max()) <= limit
        assert abs(float(weight.std()) / (limit / math.sqrt(3)) - 1) < 0.02
        assert not layer.get_parameter("bias").any()


def test_the_seed_decides_the_network() -> None:
    def build(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(NETWORKS["lenet-300-100"]().parameters())

    assert torch.equal(build(1), build(1))
    assert not torch.equal(build(1), build(2))
