"""BatchNorm of a tied or packed network: new statistics, and the form with the fewest bytes.

Takes     a model, and batches of its inputs, without labels; or one layer and its inputs.
Gives     the model with running means and variances of these inputs; the layer with statistics
          adjusted to its new inputs; or its tensors as two numbers a channel, for inference, which
          the first undoes.
Unaware   of how weights were changed.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from reefknot.dtypes import significant

SIGNIFICANT_BITS = 8  # of scales and shifts in the form for inference
FLOOR = 1e-3  # of the mean variance over channels; added to both sides of a ratio of variances


def update_batchnorm(model: nn.Module, batches: Iterable[Any]) -> None:
    """Estimate the running statistics of all BatchNorm layers from these batches alone.

    A batch is what a DataLoader gives: inputs, or a tuple that begins with them. All batches have
    equal weight; a hundred are enough. The model stays in its mode, training or evaluation. A model
    without BatchNorm is left alone. Layers that were written for inference get statistics again,
    and a scale and shift with which they compute the same as before; then they can be trained.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    folded = [layer for layer in layers if is_folded(layer)]
    if folded:
        batches = list(batches)
        _unfold(model, folded, batches)
    if len(folded) < len(layers):
        update_bn(batches, model)


@torch.no_grad()
def _unfold(model: nn.Module, layers: list[_BatchNorm], batches: Iterable[Any]) -> None:
    """Give layers in their form for inference the statistics of their inputs, the function kept."""
    seen: dict[_BatchNorm, list[tuple[Tensor, Tensor]]] = {layer: [] for layer in layers}

    def look(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, _BatchNorm)
        rows = inputs[0].transpose(0, 1).flatten(1).double()
        seen[layer].append((rows.mean(1), rows.square().mean(1)))

    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    was_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        for batch in batches:
            model(batch[0] if isinstance(batch, tuple | list) else batch)
    finally:
        for hook in hooks:
            hook.remove()
        for module in was_training:
            module.training = True
    for layer, found in seen.items():
        if not found or layer.running_mean is None or layer.running_var is None:
            continue
        mean = torch.stack([first for first, _ in found]).mean(0)
        variance = torch.stack([second for _, second in found]).mean(0) - mean.square()
        variance = variance.clamp(min=0)
        scale = layer.weight.double()
        layer.bias.copy_(layer.bias.double() + scale * mean)
        layer.weight.copy_(scale * (variance + layer.eps).sqrt())
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(variance)


def is_folded(module: nn.Module) -> bool:
    """Whether a layer is in its form for inference; new layers are not."""
    if not isinstance(module, _BatchNorm) or module.running_mean is None:
        return False
    mean, variance = module.running_mean, module.running_var
    ones = torch.full_like(mean, 1 - module.eps)
    return variance is not None and not bool(mean.any()) and torch.equal(variance, ones)


@torch.no_grad()
def channel_scale(norm: _BatchNorm) -> Tensor:
    """The factor by which a layer with statistics multiplies each channel in evaluation."""
    assert norm.running_var is not None
    deviation = (norm.running_var.double() + norm.eps).sqrt()
    return (1 if norm.weight is None else norm.weight.double()) / deviation


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
    scale = _rounded(channel_scale(norm))
    mean = norm.running_mean.double() - (0 if bias is None else bias.double())
    return {
        "weight": scale.to(norm.weight),
        "bias": _rounded(norm.bias.double() - scale * mean).to(norm.bias),
        "running_mean": torch.zeros_like(norm.running_mean),
        "running_var": torch.full_like(norm.running_var, 1 - norm.eps),
    }


def _rounded(values: Tensor) -> Tensor:
    return torch.from_numpy(significant(values.cpu().numpy(), SIGNIFICANT_BITS)).to(values)


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


@contextmanager
def filled(model: nn.Module) -> Iterator[None]:
    """While this lasts, statistics that are still those of a new layer hold arbitrary numbers.

    A file with them has the size that it will have after some training.
    """
    noise = torch.Generator().manual_seed(0)
    before = [
        (statistic, statistic.clone())
        for layer in model.modules()
        if isinstance(layer, _BatchNorm) and is_new(layer)
        for statistic in (layer.running_mean, layer.running_var)
        if statistic is not None
    ]
    try:
        for statistic, _ in before:
            values = torch.empty(statistic.shape).log_normal_(generator=noise)
            statistic.copy_(values)
        yield
    finally:
        for statistic, values in before:
            statistic.copy_(values)


def has_statistics(model: nn.Module) -> bool:
    """Whether a model has a BatchNorm that can be folded."""
    return any(
        isinstance(layer, _BatchNorm) and layer.affine and layer.running_mean is not None
        for layer in model.modules()
    )


def is_new(layer: _BatchNorm) -> bool:
    """Whether a layer's statistics have never been estimated."""
    mean, variance = layer.running_mean, layer.running_var
    return (
        mean is not None and variance is not None and not mean.any() and bool((variance == 1).all())
    )
