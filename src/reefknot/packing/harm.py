"""What packing one tensor alone does to the outputs of a network.

Takes     a model, batches of calibration inputs, and tensors to put in place of its own.
Gives     the squared change of the outputs, relative to their square.
Unaware   of quantization.

BatchNorm normalizes by the statistics of each batch here: packing renews the statistics, so a
change of them alone does no harm. Where that fails, as with batches of one, it uses its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from reefknot.errors import UserCodeError
from reefknot.packing.outputs import tensors_of
from reefknot.packing.walking import call

BATCHES = 4  # that are looked at, at most


class Harm:
    """Measures with changed tensors; the model is left as it was."""

    def __init__(self, model: nn.Module, batches: Sequence[Any]) -> None:
        self._model = model
        self._batches = batches[:: -(-len(batches) // BATCHES)]
        self._by_batch = True
        try:
            self._before = self._outputs()
        except UserCodeError:
            self._by_batch = False
            self._before = self._outputs()
        squares = (float(o.square().sum()) for outputs in self._before for o in outputs)
        self._norm = sum(squares) or 1.0

    @torch.no_grad()
    def of(self, changed: Mapping[str, Tensor]) -> float:
        """The harm of having these tensors instead of the model's own."""
        own = {name: self._model.get_parameter(name) for name in changed}
        kept = {name: tensor.detach().clone() for name, tensor in own.items()}
        try:
            for name, tensor in own.items():
                tensor.copy_(changed[name])
            after = self._outputs()
        finally:
            for name, tensor in own.items():
                tensor.copy_(kept[name])
        lost = sum(
            float((new - old).square().sum())
            for olds, news in zip(self._before, after, strict=True)
            for old, new in zip(olds, news, strict=True)
        )
        return lost / self._norm

    def _outputs(self) -> list[list[Tensor]]:
        with _normalizing_by_batch(self._model) if self._by_batch else nullcontext():
            return [tensors_of(call(self._model, batch)) for batch in self._batches]


@contextmanager
def _normalizing_by_batch(model: nn.Module) -> Iterator[None]:
    """Let BatchNorm layers use the statistics of each batch, and leave their own alone."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    kept = [(m.training, m.track_running_stats) for m in norms]
    for norm in norms:
        norm.training, norm.track_running_stats = True, False
    try:
        yield
    finally:
        for norm, (training, tracking) in zip(norms, kept, strict=True):
            norm.training, norm.track_running_stats = training, tracking
