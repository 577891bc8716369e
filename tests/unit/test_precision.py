"""Convolutions over few pixels, as matrix products, beside torch's own."""

import pytest
import torch
from torch import nn

from reefknot.lab.runs.precision import SmallMaps


@pytest.mark.parametrize("side", [1, 2, 4])
@pytest.mark.parametrize("has_bias", [True, False])
def test_outputs_and_gradients_are_those_of_the_convolution(side, has_bias):
    torch.manual_seed(0)
    layer = nn.Conv2d(128, 96, 3, padding=1, bias=has_bias)
    images = torch.randn(5, 128, side, side, requires_grad=True)

    def run():
        layer.zero_grad()
        images.grad = None
        with torch.autocast("cpu", torch.bfloat16):
            outputs = layer(images)
        assert outputs.dtype == torch.bfloat16
        outputs.float().square().sum().backward()
        return [outputs.float(), images.grad, *(p.grad for p in layer.parameters())]

    with SmallMaps():
        found = run()
    for ours, torchs in zip(found, run(), strict=True):
        assert ours.shape == torchs.shape
        assert (ours - torchs).norm() <= 0.02 * torchs.norm()


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(128, 128, 3),
        nn.Conv2d(128, 128, 3, padding=1, stride=2),
        nn.Conv2d(128, 128, 3, padding=2, dilation=2),
        nn.Conv2d(256, 128, 3, padding=1, groups=2),
        nn.Conv2d(128, 8, 1),
        nn.Conv2d(128, 8, 3, padding="same"),
    ],
)
def test_other_convolutions_are_left_to_torch(layer):
    images = torch.randn(2, layer.in_channels, 4, 4)
    with SmallMaps():
        found = layer(images)
    assert torch.equal(found, layer(images))
