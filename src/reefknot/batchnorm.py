"""Statistics of BatchNorm, estimated again: after tying they belong to other weights.

Takes     a model, and batches of its inputs; labels are not needed.
Gives     the model with running means and variances of these inputs.
Unaware   of tying.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim.swa_utils import update_bn


def update_batchnorm(model: nn.Module, batches: Iterable[Any]) -> None:
    """Estimate the running statistics of all BatchNorm layers from these batches alone.

    A batch is what a DataLoader gives: inputs, or a tuple that begins with them. All batches count
    the same, so a hundred are enough. The model stays in the mode it is in, training or evaluation;
    a model without BatchNorm is left alone.
    """
    update_bn(batches, model)
