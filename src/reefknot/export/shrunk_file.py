"""safetensors: the shrunk network's tensors.

Takes     a `.reef` file or a state (or nothing: the module's own values), a module, an example.
Gives     a file with the names that the module has, and smaller shapes; `NAME_inputs.indices` are
          the inputs that a dense layer reads, where it does not read all.
Unaware   of methods.
"""

from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save
from torch import Tensor, nn

from reefknot.errors import ConfigError
from reefknot.export.source import Source, example_of, with_values
from reefknot.files import check_target, write_atomically
from reefknot.progress import doing
from reefknot.shrinking.network import Shrunk, shrink


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
    if not isinstance(model, nn.Module):
        raise ConfigError(f"an export takes a torch module, found a {type(model).__name__}")
    check_target(out)
    shrunk = shrink(with_values(source, model), example_of(model, example_input))
    tensors = {
        n: t.detach().cpu().contiguous().clone() for n, t in shrunk.model.state_dict().items()
    }
    data = save(tensors, {"format": "pt"})
    write_atomically(out, data)
    return Written(Path(out), len(data), shrunk)
