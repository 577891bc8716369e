"""BatchNorm after its network was tied: new statistics, and the form with the fewest bytes.

Takes     a model, and batches of its inputs, without labels; or one layer.
Gives     the model with running means and variances of these inputs; or the layer's tensors as two
          numbers a channel, for inference.
Unaware   of tying.
"""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from reefknot.dtypes import significant

log = logging.getLogger("reefknot")

SIGNIFICANT_BITS = 8  # of scales and shifts in the form for inference


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


@torch.no_grad()
def inference_form(norm: _BatchNorm, bias: Tensor | None = None) -> dict[str, Tensor]:
    """A layer's tensors with its statistics folded into its scale and shift.

    It is the same function in evaluation, up to rounding: the mean is 0, the variance 1 - eps, and
    scale and shift have few significant bits. With `bias`, which is added to the inputs just
    before, the layer is that of inputs without it. A layer without statistics or without scale and
    shift gives nothing.
    """
    if norm.running_mean is None or norm.running_var is None or not norm.affine:
        return {}
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    scale = _rounded(scale)
    mean = norm.running_mean.double() - (0 if bias is None else bias.double())
    return {
        "weight": scale.to(norm.weight),
        "bias": _rounded(norm.bias.double() - scale * mean).to(norm.bias),
        "running_mean": torch.zeros_like(norm.running_mean),
        "running_var": torch.full_like(norm.running_var, 1 - norm.eps),
    }


def _rounded(values: Tensor) -> Tensor:
    return torch.from_numpy(significant(values.cpu().numpy(), SIGNIFICANT_BITS)).to(values)
