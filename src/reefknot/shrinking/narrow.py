"""Training without the units that fixed zeros have made dead, exactly: cheaper steps.

Takes     a model that is trained, which of its elements are zero and stay so, and an example input.
Gives     `Narrowed`: called instead of the model, it computes with slices of its parameters.
Unaware   of methods, optimizers and phases.

Parameters, and all state that optimizers and methods keep for them, keep their shapes: only forward
and backward run on slices. Each parameter gets its gradient through its slice, and zero elsewhere.
That is the gradient of the whole network, except at fixed zeros, which stay zero anyway. So there
is nothing to convert or to save. Dropout draws other random numbers, because it draws fewer; the
statistics of channels that are left out are not estimated.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from reefknot.shrinking.cut import fitting_cut, sliced
from reefknot.shrinking.graph import analyse
from reefknot.shrinking.masks import weighted


class Narrowed:
    """A model's function, on the part of it that its fixed zeros leave alive.

    `macs` are the multiplications of dense layers and convolutions for one example, before and
    after. The model must keep its parameters; make a new `Narrowed` when more zeros are fixed.
    """

    def __init__(self, model: nn.Module, fixed: Mapping[str, Tensor], example_input: Any) -> None:
        self.model = model
        found = analyse(_generic(model, fixed), example_input, training=True)
        # Traced code is for evaluation only.
        is_plain = type(model) is nn.Sequential
        cut = fitting_cut(model, found, example_input, selects=is_plain, traced=False)
        self._small, self._slices = cut.result(), cut.slices
        layers = ((node, weighted(cut.trace, node)) for node in cut.trace.graph.nodes)
        macs = [cut.macs(node, layer) for node, layer in layers if layer is not None]
        self.macs = sum(before for before, _ in macs), sum(after for _, after in macs)

    def __call__(self, *inputs: Any) -> Any:
        """What the model gives for these inputs, up to rounding."""
        self._small.train(self.model.training)
        parameters = {
            name: sliced(tensor, self._slices.get(name, ()))
            for name, tensor in self.model.named_parameters()
        }
        outputs = functional_call(self._small, parameters, inputs)
        if self.model.training:
            self._return_buffers()
        return outputs

    def _return_buffers(self) -> None:
        """Write the running statistics of the computed channels back to the model."""
        own = dict(self.model.named_buffers())
        with torch.no_grad():
            for name, new in self._small.named_buffers():
                if name in own and name in self._slices:
                    [indices] = self._slices[name]
                    own[name].index_copy_(0, indices.to(new.device), new)
                elif name in own:
                    own[name].copy_(new)


def _generic(model: nn.Module, fixed: Mapping[str, Tensor]) -> nn.Module:
    """A copy with zeros where they are fixed, and no others."""
    generic = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in generic.named_parameters():
            parameter[parameter == 0] = 1.0
            if name in fixed:
                parameter[fixed[name].to(parameter.device)] = 0.0
    return generic
