"""BatchNorm of a packed network: statistics of its new inputs, and the form with the fewest bytes.

Takes     BatchNorm layers and their inputs.
Gives     their statistics changed in place.
Unaware   of how the weights in front of them were packed.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from reefknot.batchnorm import inference_form

FLOOR = 1e-3  # of the mean variance over channels; added to both sides of a ratio of variances


class Statistics(NamedTuple):
    """Mean and variance of each channel."""

    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, batches: Iterable[Tensor]) -> "Statistics":
        """The statistics of inputs (n, channels, ...), every element with the same weight."""
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
    """Adjust a layer's statistics by how packing has changed those of the calibration inputs.

    The running statistics come from more inputs than the calibration set has, so they are adjusted,
    not replaced.
    """
    if norm.running_mean is None or norm.running_var is None:
        return
    floor = FLOOR * original.variance.mean() + norm.eps  # a single input has no variance
    ratio = (packed.variance + floor) / (original.variance + floor)
    norm.running_mean += (packed.mean - original.mean).to(norm.running_mean)
    norm.running_var *= ratio.to(norm.running_var)


@torch.no_grad()
def make_canonical(norm: _BatchNorm, bias: nn.Parameter | None) -> None:
    """Fold a layer's statistics into its scale and shift, rounded to few significant bits.

    `bias` is added to its inputs just before; it becomes 0. `update_batchnorm` undoes it.
    """
    for name, values in inference_form(norm, bias).items():
        getattr(norm, name).copy_(values)
        if bias is not None:
            bias.zero_()
