"""The cut itself: tensors sliced, shapes of views corrected, inputs selected.

Takes     a model, its analysis, and which units stay.
Gives     a copy of the model with smaller tensors under the same names.
Unaware   of why a unit stays or goes.
"""

import copy
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Node, map_arg

from reefknot.shrinking.graph import Analysis
from reefknot.shrinking.kept import Kept
from reefknot.shrinking.masks import Weighted, along, weighted
from reefknot.shrinking.trace import Trace

# If a dense layer does not read at least this fraction of its inputs, a `Select` in front of it
# drops them. With fewer, the `Select` would cost more than it saves.
_SELECT = 0.25


class Select(nn.Module):
    """Some of the features of the last dimension: those that the dense layer after it reads."""

    indices: Tensor

    def __init__(self, indices: Tensor) -> None:
        super().__init__()
        self.register_buffer("indices", indices)

    def forward(self, features: Tensor) -> Tensor:
        """The features that are read, in order."""
        return features.index_select(-1, self.indices)

    def extra_repr(self) -> str:
        """How many features are read."""
        return f"{len(self.indices)} features"


class Cut:
    """One attempt: a copy of the model with sliced tensors, and with corrected shapes of views."""

    def __init__(self, model: nn.Module, kept: Kept, *, selects: bool = True) -> None:
        self.kept, self.trace = kept, kept.trace
        self.selects = selects  # whether inputs may be selected in front of a dense layer
        self.slices: dict[str, list[Tensor]] = {}  # by tensor: what is left along each dimension
        self.model = copy.deepcopy(model)
        self.selected: dict[Node, Tensor] = {}  # of a dense layer: which remaining inputs it reads
        self.folded: dict[Node, int] = {}
        self.shapes: dict[Node, list[int]] = {}  # new shapes of views
        with torch.no_grad():
            for node in self.trace.graph.nodes:
                self._cut(node)

    def _cut(self, node: Node) -> None:
        if node.op == "get_attr":
            layers = [weighted(self.trace, user) for user in node.users]
            if node in self.kept.sets and not any(layers):
                self._slice(str(node.target), *self.kept.sets[node])
            return
        if not node.op.startswith("call_"):
            return
        kind = self.trace.kind(node)
        layer = weighted(self.trace, node)
        if layer is not None and not self.kept.left[node]:
            self._cut_layer(node, layer)
        elif kind in ("batchnorm", "prelu") and not self.kept.left[node]:
            for name, tensor in self.trace.tensors(node).items():
                units = self.kept.sets[node][1]
                if tensor.ndim and len(tensor) == len(units):
                    self._slice(name, units)
        elif kind in ("view", "reshape"):
            self.shapes[node] = self.kept.count(node)

    def _cut_layer(self, node: Node, layer: Weighted) -> None:
        into = layer.dimension(self.trace.values[layer.source])
        units = self.kept.sets[node][self.kept.masks.channels(node)]
        there, reads = self.kept.sets[layer.source][into], self.kept.reads[node]
        is_dense = self.trace.kind(node) == "linear" and node.op == "call_module" and self.selects
        inputs = there
        few = int((there & reads).sum()) <= (1 - _SELECT) * int(there.sum())
        if is_dense and reads.any() and few:
            self.selected[node] = torch.nonzero(reads[there]).flatten()
            inputs = there & reads
        shift = self._constants(node, layer, into, ~inputs)
        if layer.groups > 1:
            stay = there.reshape(layer.groups, -1).any(1)
            places = there.reshape(layer.groups, -1).any(0)
            self._slice(layer.names[0], units, places)
        else:
            stay = torch.ones(1, dtype=torch.bool)
            self._slice(layer.names[0], units, inputs)
        if len(layer.names) > 1:
            self._slice(layer.names[1], units, added=shift)
        owner = self.model.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(owner, nn.Linear):
            owner.in_features, owner.out_features = int(inputs.sum()), int(units.sum())
        elif owner is not None and layer.tensors[0].ndim > 2:
            sizes = {"in_channels": int(there.sum()), "out_channels": int(units.sum())}
            for name, size in (sizes | {"groups": int(stay.sum())}).items():
                setattr(owner, name, size)

    def _constants(self, node: Node, layer: Weighted, into: int, gone: Tensor) -> Tensor:
        """What the removed inputs, which were constants, contributed to each unit."""
        value = self.trace.values[layer.source]
        constant = ~self.kept.masks.over(layer.source, into)
        folded = along(gone & constant, value, into)
        own = [layer.tensors[0], *(torch.zeros_like(bias) for bias in layer.tensors[1:])]
        added = layer.run(torch.where(folded, value, torch.zeros_like(value)), *own)
        self.folded[node] = int((gone & self.kept.folds[node]).sum())
        channels = self.kept.masks.channels(node)
        return added.movedim(channels, 0).flatten(1)[:, 0].double()

    def _slice(self, name: str, *sets: Tensor, added: Tensor | None = None) -> None:
        """Slice a tensor of the copy along its first dimensions, after adding `added` to it."""
        path, _, key = name.rpartition(".")
        owner = self.model.get_submodule(path)
        tensor = getattr(owner, key)
        whole = tensor.detach()
        if added is not None:
            whole = (whole.double().cpu() + added).to(whole)
        self.slices[name] = [torch.nonzero(one).flatten() for one in sets]
        new = sliced(whole, self.slices[name]).clone(memory_format=torch.contiguous_format)
        if isinstance(tensor, nn.Parameter):
            setattr(owner, key, nn.Parameter(new, tensor.requires_grad))
        else:
            setattr(owner, key, new)
        if isinstance(owner, nn.modules.batchnorm._BatchNorm):
            owner.num_features = len(new)
        elif isinstance(owner, nn.PReLU):
            owner.num_parameters = len(new)

    # -- the network -----------------------------------------------------------------------------

    def result(self) -> nn.Module:
        """The copy itself, or its traced graph if its code does not fit the new shapes."""
        patches = dict(self.patches())
        if not patches and not self.selected:
            return self.model
        names = {str(node.target): indices for node, indices in self.selected.items()}
        if not patches and type(self.model) is nn.Sequential and not any("." in n for n in names):
            layers: OrderedDict[str, nn.Module] = OrderedDict()
            for name, module in self.model.named_children():
                if name in names:
                    layers[f"{name}_inputs"] = self._select(names[name], module)
                layers[name] = module
            return nn.Sequential(layers).train(self.model.training)
        graph, copies = fx.Graph(), dict[Node, Any]()
        graph.output(graph.graph_copy(self.trace.graph, copies))
        for old, arguments in patches.items():
            copies[old].args = (copies[old].args[0], *map_arg(arguments, copies.__getitem__))
        for old, indices in self.selected.items():
            name, new = f"{old.target}_inputs", copies[old]
            parent, _, key = name.rpartition(".")
            owner = self.model.get_submodule(parent)
            owner.add_module(key, self._select(indices, self.model.get_submodule(str(old.target))))
            with graph.inserting_before(new):
                chosen = graph.call_module(name, (new.args[0],))
            new.args = (chosen, *new.args[1:])
        made = fx.GraphModule(self.model, graph, type(self.model).__name__)
        return made.train(self.model.training)

    @staticmethod
    def _select(indices: Tensor, layer: nn.Module) -> Select:
        return Select(indices).to(next(layer.parameters()).device)

    def patches(self) -> Iterator[tuple[Node, list[Any]]]:
        """Views whose literal sizes no longer fit, each with its new arguments."""
        for node, shape in self.shapes.items():
            told = list(node.args[1:])
            if len(told) == 1 and isinstance(told[0], tuple | list):
                told = list(told[0])
            old = self.trace.values[node].shape
            new = [
                size if isinstance(one, int) and one == before and size != before else one
                for one, size, before in zip(told, shape, old, strict=True)
            ]
            if new != told:
                yield node, [tuple(new)] if node.op == "call_function" else new

    def first_misfit(self, example_input: Any) -> Node | None:
        """The first node that fails, or whose value has another shape than was planned."""
        patches = dict(self.patches())
        own = Trace(self.model, self.trace.graph)
        tried: Node | None = None

        def call(node: Node, values: dict[Node, Any]) -> Any:
            nonlocal tried
            tried = node
            if node in self.selected:
                source = node.all_input_nodes[0]
                chosen = self.selected[node].to(values[source].device)
                values = values | {source: values[source].index_select(-1, chosen)}
            args = (node.args[0], *patches[node]) if node in patches else None
            return own.call(node, values, args)

        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                for node, value in own.evaluated(example_input, call):
                    is_new = node.op.startswith("call_") and isinstance(value, Tensor)
                    if is_new and list(value.shape) != self.kept.count(node):
                        return node
        except (RuntimeError, ValueError, IndexError, TypeError):
            return tried
        self.model.train(was_training)
        return None

    def macs(self, node: Node, layer: Weighted) -> tuple[int, int]:
        """Multiplications of a layer for one example, before and after."""
        value = self.trace.values[node]
        batch = max(len(value), 1) if value.ndim > 1 else 1
        before, after = layer.tensors[0], self.model.get_parameter(layer.names[0])
        return (
            value.numel() // batch * before[:1].numel(),
            math.prod(self.kept.count(node)) // batch * after[:1].numel(),
        )


def fitting_cut(
    model: nn.Module, found: Analysis, example_input: Any, *, selects: bool, traced: bool = True
) -> Cut:
    """The smallest cut whose shapes fit; without `traced`, one that keeps the model's code."""
    whole: frozenset[Node] = frozenset()
    while True:
        cut = Cut(model, Kept(found, whole), selects=selects)
        odd = cut.first_misfit(example_input)
        if odd is None and not traced and isinstance(cut.result(), fx.GraphModule):
            odd = next(iter([*dict(cut.patches()), *cut.selected]))
        if odd is None:
            return cut
        whole |= {odd}


def sliced(tensor: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """These indices along the first dimensions of a tensor."""
    for dimension, one in enumerate(indices):
        if len(one) < tensor.shape[dimension]:
            tensor = tensor.index_select(dimension, one.to(tensor.device))
    return tensor
