"""A network without its dead units: the same outputs, smaller layers.

Takes     a model whose zeros are final, and an example of its inputs.
Gives     `Shrunk`: a copy of the model with smaller layers under the same names, and a table of
          what was removed, which idle units stay, and why.
Unaware   of files and of what made the zeros.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reefknot.errors import ReefknotError
from reefknot.progress import doing
from reefknot.shrinking.cut import Cut, fitting_cut
from reefknot.shrinking.graph import analyse
from reefknot.shrinking.masks import weighted
from reefknot.shrinking.trace import Unfollowed, arguments

_RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the check on the example


@dataclass(frozen=True)
class Layer:
    """What became of one layer."""

    name: str
    kind: str
    inputs: tuple[int, int]  # before and after
    units: tuple[int, int]
    parameters: tuple[int, int]
    macs: tuple[int, int]  # multiplications for one example
    folded: int  # constants among its inputs that went into its bias
    stuck: tuple[tuple[str, int], ...]  # reasons, and how many idle units stay for each


@dataclass(frozen=True)
class Shrunk:
    """A smaller network, and what was done."""

    model: nn.Module
    table: tuple[Layer, ...]
    unfollowed: tuple[Unfollowed, ...]
    parameters: tuple[int, int]  # before and after, of the whole network

    @property
    def macs(self) -> tuple[int, int]:
        """Multiplications of dense layers and convolutions for one example, before and after."""
        return sum(row.macs[0] for row in self.table), sum(row.macs[1] for row in self.table)


@doing("shrinking")
def shrink(model: nn.Module, example_input: Any, *, selects: bool = True) -> Shrunk:
    """Remove dead units from a network; its outputs in evaluation stay the same up to rounding.

    Removed are rows, filters, channels and inputs that are zero, feed only zeros, or are constants
    that the next bias can hold. Layers and tensors keep their names. A dense layer that reads only
    some of its inputs may get a `Select` in front of it, with one more tensor: their indices. The
    result has the model's mode, but is for evaluation only: constants are computed with BatchNorm's
    running statistics. The model itself is not changed.

    Args:
        model: any module that `torch.fx` can trace; parts that it cannot are left alone.
        example_input: a tensor, or a tuple of them, as the model takes them; a batch of one.
        selects: whether a `Select` may be put in front of a dense layer.
    """
    found = analyse(model, example_input)
    smaller = fitting_cut(model, found, example_input, selects=selects)
    result = smaller.result()
    _check(model, result, example_input)
    before, after = (sum(p.numel() for p in m.parameters()) for m in (model, result))
    return Shrunk(result, tuple(_table(smaller)), found.unfollowed, (before, after))


def _check(model: nn.Module, smaller: nn.Module, example_input: Any) -> None:
    """Compare outputs on the example: a difference would be a bug."""
    outputs = []
    for one in (model, smaller):
        was_training = one.training
        one.eval()
        with torch.no_grad():
            outputs.append(one(*arguments(example_input)))
        one.train(was_training)
    if isinstance(outputs[0], Tensor) and outputs[0].is_floating_point():
        scale = max(float(outputs[0].abs().max()), 1.0) if outputs[0].numel() else 1.0
        tolerance = _RELATIVE.get(outputs[0].dtype, 1e-1)
        away = float((outputs[0] - outputs[1]).abs().max()) / scale if outputs[0].numel() else 0.0
        if outputs[0].shape != outputs[1].shape or not away <= tolerance:
            raise ReefknotError(
                f"the shrunk {type(model).__name__} is off by {away:.1e} on the example input; "
                "nothing was changed: please report this network"
            )


def _table(cut: Cut) -> Iterator[Layer]:
    """What became of each layer with weights."""
    for node in cut.trace.graph.nodes:
        layer = weighted(cut.trace, node)
        if layer is None:
            continue
        channels = cut.kept.masks.channels(node)
        new = [cut.model.get_parameter(name) for name in layer.names]
        reads = cut.kept.sets[layer.source][layer.dimension(cut.trace.values[layer.source])]
        left = len(cut.selected[node]) if node in cut.selected else int(reads.sum())
        yield Layer(
            name=cut.trace.name(node),
            kind=cut.trace.kind(node),
            inputs=(len(reads), left),
            units=(cut.trace.values[node].shape[channels], cut.kept.count(node)[channels]),
            parameters=(sum(t.numel() for t in layer.tensors), sum(t.numel() for t in new)),
            macs=cut.macs(node, layer),
            folded=cut.folded.get(node, 0),
            stuck=tuple(cut.kept.idle(node, channels)),
        )
