"""BatchNorm of a packed network: statistics for its new inputs, and the form with least bytes.

Takes     BatchNorm layers, and the inputs that they get.
Gives     their statistics changed in place.
Unaware   of how the weights in front of them were packed.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from reefknot.packing.quantiser import significant

SIGNIFICANT_BITS = 8
FLOOR = 1e-3  # of the mean variance over channels: what a channel's variance is compared with


class Statistics(NamedTuple):
    """Mean and variance of each channel."""

    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, batches: Iterable[Tensor]) -> "Statistics":
        """Those of inputs (n, channels, ...), each element counting the same."""
        first = second = torch.zeros((), dtype=torch.double)
        count = 0
        for batch in batches:
            rows = batch.transpose(0, 1).flatten(1).double()
            first, second = first + rows.sum(1), second + rows.square().sum(1)
            count += rows.shape[1]
        mean = first / max(count, 1)
        return cls(mean, (second / max(count, 1) - mean.square()).clamp(min=0))


@torch.no_grad()
def renew(norm: _BatchNorm, original: Statistics, packed: Statistics) -> None:
    """Change a layer's statistics by what the same inputs say that packing has changed.

    The statistics of training are of more inputs than we have: what is known of them better than
    from our inputs, stays.
    """
    if norm.running_mean is None or norm.running_var is None:
        return
    floor = FLOOR * original.variance.mean()
    ratio = (packed.variance + floor) / (original.variance + floor)
    norm.running_mean += (packed.mean - original.mean).to(norm.running_mean)
    norm.running_var *= ratio.to(norm.running_var)


@torch.no_grad()
def make_canonical(norm: _BatchNorm, bias: nn.Parameter | None) -> None:
    """Put all that a layer does in evaluation into scale and shift, of few significant bits.

    `bias` is added to its inputs just before; it becomes 0. The result must neither be trained on
    nor have its statistics estimated again.
    """
    if norm.running_mean is None or norm.running_var is None or not norm.affine:
        return
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    scale = _rounded(scale)
    mean = norm.running_mean.double() - (0 if bias is None else bias.double())
    shift = _rounded(norm.bias.double() - scale * mean)
    norm.weight.copy_(scale)
    norm.bias.copy_(shift)
    norm.running_mean.zero_()
    norm.running_var.fill_(1 - norm.eps)
    if bias is not None:
        bias.zero_()


def _rounded(values: Tensor) -> Tensor:
    return torch.from_numpy(significant(values.numpy(), SIGNIFICANT_BITS))
