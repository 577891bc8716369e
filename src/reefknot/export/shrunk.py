"""What exporters start from: a module with the values of a file, without its dead units.

Takes     a `.reef` file or a state (or nothing: the module's own values), a module, an example.
Gives     the shrunk module, or it as a `Program`; or a safetensors file with the names that the
          module has, and smaller shapes: `NAME_inputs.indices` are the inputs that a dense layer
          reads, where it does not read all.
Unaware   of methods, and of the language that a program becomes.
"""

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from reefknot.errors import ConfigError
from reefknot.export.layers import program
from reefknot.export.program import Program
from reefknot.files import check_target, write_atomically
from reefknot.loading import load, tensors
from reefknot.progress import doing
from reefknot.shrinking.network import Shrunk, shrink
from reefknot.state import TiedState

Source = Path | str | TiedState | None


def with_values(
    source: Source, model: nn.Module, example_input: Tensor | None = None
) -> tuple[nn.Module, Tensor]:
    """A copy of the model with the values of `source`, or the model itself; and an example.

    Without an example input, the first layer with weights must be Linear: it has the input's size.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"an export takes a torch module, found a {type(model).__name__}")
    filled = model if source is None else _filled(source, model)
    return filled, _example_of(model) if example_input is None else example_input


def _filled(source: Path | str | TiedState, model: nn.Module) -> nn.Module:
    where = "the state" if isinstance(source, TiedState) else str(source)
    values = tensors(source) if isinstance(source, TiedState) else load(source)
    filled = copy.deepcopy(model)
    try:
        filled.load_state_dict(values)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where} does not fit the model: {reason}") from error
    return filled


def _example_of(model: nn.Module) -> Tensor:
    weighted = [m for m in model.modules() if list(m.parameters(recurse=False))]
    if not weighted or not isinstance(weighted[0], nn.Linear):
        raise ConfigError(
            f"the input shape of {type(model).__name__} is not known: give an example such as "
            "torch.zeros(1, 1, 28, 28) (on the command line --input 1x28x28)"
        )
    return torch.zeros(1, weighted[0].in_features)


def program_of(source: Source, model: nn.Module, example_input: Tensor | None = None) -> Program:
    """The network as layers, with the values of `source` and without dead units."""
    filled, example = with_values(source, model, example_input)
    program(filled, example)  # errors about layers refer to the network before shrinking
    return program(shrink(filled, example, selects=False).model, example)


@dataclass(frozen=True)
class Written:
    """A file, and the network in it."""

    path: Path
    bytes: int
    shrunk: Shrunk
    checked: bool = False  # whether another runtime gave the same outputs


@doing("exporting")
def safetensors(
    source: Source, model: nn.Module, out: Path | str, example_input: Tensor | None = None
) -> Written:
    """Write the tensors of a network without its dead units; see `reefknot.shrink`.

    Args:
        source: a `.reef` file or a state; None for the values that the model has.
        model: the module that the values belong to.
        out: the file to write.
        example_input: a batch of one; not needed if the first layer is dense.
    """
    check_target(out)
    shrunk = shrink(*with_values(source, model, example_input))
    values = shrunk.model.state_dict().items()
    data = save(
        {name: tensor.detach().cpu().clone().contiguous() for name, tensor in values},
        {"format": "pt"},
    )
    write_atomically(out, data)
    return Written(Path(out), len(data), shrunk)
