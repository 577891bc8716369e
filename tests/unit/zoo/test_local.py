"""Locally connected layers: a convolution with repeated weights is one of them."""

import math

import torch
from torch import nn

from reefknot.lab.zoo import NETWORKS
from reefknot.lab.zoo.local import LocallyConnected2d, LocalMaxPool2d


def repeat_(local: LocallyConnected2d, convolution: nn.Conv2d) -> None:
    """The same filter at every position."""
    assert convolution.bias is not None
    with torch.no_grad():
        local.weight.copy_(convolution.weight.flatten(1).expand_as(local.weight))
        local.bias.copy_(convolution.bias.expand_as(local.bias))


def test_repeated_weights_make_it_a_convolution_forward_and_backward() -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 4, 5).double()
    local = LocallyConnected2d(3, 4, 5, input_size=9).double()
    repeat_(local, convolution)
    images = torch.randn(2, 3, 9, 9, dtype=torch.float64, requires_grad=True)
    outputs, expected = local(images), convolution(images)
    torch.testing.assert_close(outputs, expected)
    wanted = torch.randn_like(expected)
    (own,) = torch.autograd.grad((outputs * wanted).sum(), images, retain_graph=True)
    (theirs,) = torch.autograd.grad((expected * wanted).sum(), images, retain_graph=True)
    torch.testing.assert_close(own, theirs)
    # A shared filter's gradient is the sum over the positions that share it.
    each, shared = (
        torch.autograd.grad((made * wanted).sum(), layer.weight)[0]
        for made, layer in ((outputs, local), (expected, convolution))
    )
    torch.testing.assert_close(each.sum(0), shared.flatten(1))


def test_a_position_has_weights_of_its_own() -> None:
    local = LocallyConnected2d(1, 2, 3, input_size=5)
    image = torch.randn(1, 1, 5, 5)
    before = local(image)
    with torch.no_grad():
        local.weight[4] += 1  # the middle of 3 x 3 positions
    changed = (local(image) != before).any(1)[0]
    assert changed.nonzero().tolist() == [[1, 1]]


def test_the_local_network_with_repeated_filters_is_lenet_5() -> None:
    torch.manual_seed(0)
    lenet, local = NETWORKS["lenet-5-caffe"](), NETWORKS["lenet-5-local"]()
    for number in (1, 2):
        repeat_(local.get_submodule(f"local{number}"), lenet.get_submodule(f"conv{number}"))
    for name in ("fc1", "fc2"):
        local.get_submodule(name).load_state_dict(lenet.get_submodule(name).state_dict())
    images = torch.randn(3, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(local(images), lenet(images), rtol=1e-4, atol=1e-5)


def test_it_starts_as_the_convolution_would_and_saves_its_weights_alone() -> None:
    torch.manual_seed(0)
    local = LocallyConnected2d(20, 50, 5, input_size=12)
    limit = math.sqrt(6 / (25 * (20 + 50)))
    assert 0.99 * limit < float(local.weight.detach().abs().max()) <= limit
    assert not local.bias.any()
    assert set(local.state_dict()) == {"weight", "bias"}


def test_its_pool_is_that_of_torch_wherever_the_batch_lies_in_memory() -> None:
    torch.manual_seed(0)
    own, theirs = LocalMaxPool2d(2), nn.MaxPool2d(2)
    first = torch.randn(3, 4, 8, 6)
    for images in (first, first.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)):
        images = images.clone().requires_grad_()
        outputs, expected = own(images), theirs(images)
        assert torch.equal(outputs, expected)
        wanted = torch.randn_like(expected)
        (mine,) = torch.autograd.grad((outputs * wanted).sum(), images)
        (other,) = torch.autograd.grad((expected * wanted).sum(), images)
        assert torch.equal(mine, other)


def test_nothing_but_windows_is_copied_between_the_layers() -> None:
    local, pool = LocallyConnected2d(2, 3, 3, input_size=6), LocalMaxPool2d(2)
    maps = local(torch.randn(5, 2, 6, 6))
    for images in (maps, pool(maps)):
        assert images.permute(2, 3, 1, 0).is_contiguous()
