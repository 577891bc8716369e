"""Re-estimates the running statistics of BatchNorm: after tying, the old ones do not fit.

Takes     a model, and batches of its inputs; labels are not needed.
Gives     the model with running means and variances of these inputs.
Unaware   of tying.
"""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

log = logging.getLogger("reefknot")


def update_batchnorm(model: nn.Module, batches: Iterable[Any]) -> None:
    """Estimate the running statistics of all BatchNorm layers from these batches alone.

    A batch is what a DataLoader gives: inputs, or a tuple that begins with them. All batches have
    equal weight; a hundred are enough. The model stays in its mode, training or evaluation. A model
    without BatchNorm is left alone. A layer that was packed for inference would be ruined, because
    its old statistics are part of its scale and shift; a logged warning says so.
    """
    ruined = [name for name, module in model.named_modules() if _for_inference(module)]
    if ruined:
        log.warning(
            "reefknot: %d BatchNorm layers, %r first, were packed for inference and have no "
            "statistics of their own; new ones change the network: start from the parent instead",
            len(ruined),
            ruined[0],
        )
    update_bn(batches, model)


def _for_inference(module: nn.Module) -> bool:
    """Whether a layer has the form that packing for inference gives it; new layers do not."""
    if not isinstance(module, _BatchNorm) or module.running_mean is None:
        return False
    mean, variance = module.running_mean, module.running_var
    ones = torch.full_like(mean, 1 - module.eps)
    return variance is not None and not bool(mean.any()) and torch.equal(variance, ones)
