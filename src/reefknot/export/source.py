"""What every exporter starts from: a module with the values of a file, as a list of layers.

Takes     a `.reef` file (or a state, or nothing: the module's own values), a module, an example.
Gives     `Program` without dead units.
Unaware   of the zoo and of target languages.
"""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from reefknot.errors import ConfigError
from reefknot.export.chain import program
from reefknot.export.program import Program
from reefknot.loading import load, tensors
from reefknot.shrinking.network import shrink
from reefknot.state import TiedState

Source = Path | str | TiedState | None


def program_of(source: Source, model: nn.Module, example_input: Tensor | None = None) -> Program:
    """The network as layers, with the values of `source` and without dead units.

    Without an example input, the first layer with weights must be Linear: it has the input's size.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"an export takes a torch module, found a {type(model).__name__}")
    filled, example = with_values(source, model), example_of(model, example_input)
    program(filled, example)  # errors about layers refer to the network before shrinking
    return program(shrink(filled, example, selects=False).model, example)


def with_values(source: Source, model: nn.Module) -> nn.Module:
    """A copy of the model with the values of `source`, or the model itself."""
    if source is None:
        return model
    where = "the state" if isinstance(source, TiedState) else str(source)
    values = tensors(source) if isinstance(source, TiedState) else load(source)
    filled = copy.deepcopy(model)
    try:
        filled.load_state_dict(values)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where} does not fit the model: {reason}") from error
    return filled


def example_of(model: nn.Module, example_input: Tensor | None) -> Tensor:
    """The example, or one for a model whose first layer is dense."""
    if example_input is not None:
        return example_input
    weighted = [m for m in model.modules() if list(m.parameters(recurse=False))]
    if not weighted or not isinstance(weighted[0], nn.Linear):
        raise ConfigError(
            f"the input shape of {type(model).__name__} is not known: give an example such as "
            "torch.zeros(1, 1, 28, 28) (on the command line --input 1x28x28)"
        )
    return torch.zeros(1, weighted[0].in_features)
