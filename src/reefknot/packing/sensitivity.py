"""How much an error of each weight changes the outputs of a network.

Takes     a model and batches of calibration inputs.
Gives     for a weight, or some of its rows, the squared change of the outputs, relative to their
          square, for noise of a given size in it.
Unaware   of quantization.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reefknot.packing.calibration import call
from reefknot.packing.outputs import tensors_of

BATCHES = 4  # that are looked at, at most
NOISE = 1 / 16  # relative to the root mean square of the weight


class Sensitivity:
    """Measures by finite differences; the model is left as it was."""

    def __init__(self, model: nn.Module, batches: Sequence[Any]) -> None:
        self._model = model
        self._batches = batches[:: -(-len(batches) // BATCHES)]
        self._outputs = [tensors_of(call(model, batch)) for batch in self._batches]
        squares = (float(o.square().sum()) for outputs in self._outputs for o in outputs)
        self._norm = sum(squares) or 1.0

    @torch.no_grad()
    def of(self, rows: Tensor) -> float:
        """The change for noise of variance 1 in these rows, if it were as linear as a small one."""
        before = rows.clone()
        size = NOISE * float(rows.double().square().mean().sqrt())
        if not size:
            return 0.0
        noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))
        rows.add_(size * noise)
        try:
            found = [tensors_of(call(self._model, batch)) for batch in self._batches]
        finally:
            rows.copy_(before)
        changed = sum(
            float((new - old).square().sum())
            for olds, news in zip(self._outputs, found, strict=True)
            for old, new in zip(olds, news, strict=True)
        )
        return changed / self._norm / size**2
