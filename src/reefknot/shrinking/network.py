"""A network without its dead units: the same outputs, smaller layers.

Takes     a model whose zeros are final, and an example of its inputs.
Gives     `Shrunk`: a copy of the model with smaller layers under the same names, and a table of
          what was removed, which idle units stay, and why.
Unaware   of files and of what made the zeros.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import Node

from reefknot.errors import ReefknotError
from reefknot.progress import doing
from reefknot.shrinking.cut import Cut
from reefknot.shrinking.graph import analyse
from reefknot.shrinking.kept import Kept
from reefknot.shrinking.masks import weighted
from reefknot.shrinking.trace import Unfollowed

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
    whole: frozenset[Node] = frozenset()
    while True:
        kept = Kept(found, whole)
        smaller = Cut(model, found, kept, selects=selects)
        odd = smaller.first_misfit(example_input)
        if odd is None:
            break
        whole |= {odd}
    result = smaller.result()
    _check(model, result, example_input)
    before, after = (sum(p.numel() for p in m.parameters()) for m in (model, result))
    return Shrunk(result, tuple(_table(smaller)), found.unfollowed, (before, after))


def _check(model: nn.Module, smaller: nn.Module, example_input: Any) -> None:
    """Compare outputs on the example: a difference would be a bug."""
    inputs = example_input if isinstance(example_input, tuple | list) else (example_input,)
    outputs = []
    for one in (model, smaller):
        was_training = one.training
        one.eval()
        with torch.no_grad():
            outputs.append(one(*inputs))
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
        layer = weighted(cut.trace, node) if node.op.startswith("call_") else None
        if layer is None:
            continue
        channels = cut.kept.masks.channels(node)
        value, into = cut.trace.values[node], cut.kept.input_dimension(node, layer)
        new = [cut.model.get_parameter(name) for name in layer.names]
        old_size, new_size = value.shape, cut.kept.count(node)
        batch = max(int(value.shape[0]), 1) if value.ndim > 1 else 1
        macs = tuple(
            math.prod(size) // batch * weight[0].numel() if len(weight) else 0
            for size, weight in ((old_size, layer.tensors[0]), (new_size, new[0]))
        )
        reads = cut.kept.sets[layer.source][into]
        yield Layer(
            name=cut.trace.name(node),
            kind=cut.trace.kind(node),
            inputs=(
                len(reads),
                len(cut.selected[node]) if node in cut.selected else int(reads.sum()),
            ),
            units=(old_size[channels], new_size[channels]),
            parameters=(sum(t.numel() for t in layer.tensors), sum(t.numel() for t in new)),
            macs=(macs[0], macs[1]),
            folded=cut.folded.get(node, 0),
            stuck=tuple(cut.kept.idle(node, channels)),
        )
