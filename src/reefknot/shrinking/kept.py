"""Which units stay, so that the remaining shapes fit together.

Takes     an `Analysis`.
Gives     `Kept`: for each dimension of each value in the network which indices stay, and for those
          that are not needed the reason.
Unaware   of modules: nothing is cut here.

It starts with what each layer must read, and grows until the inputs of every operation fit: both
sides of a sum have the same channels, groups have the same size, and operations without a rule are
left whole. A constant need not be read: the layer adds it to its bias, where that is exact.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import Node

from reefknot.shrinking.graph import Analysis
from reefknot.shrinking.masks import (
    MOVING,
    POINTWISE,
    POOLS,
    Weighted,
    along,
    is_barrier,
    is_tracked,
    leaves,
    over_all_but,
    weighted,
)
from reefknot.shrinking.rules import claims, reaching, rerun

# Operations that address elements by index or size, or that create new ones.
_COUNTING = {
    *("chunk", "split", "getitem", "stack", "expand", "expandas", "repeat", "roll", "flip"),
    *("pad", "zeropad1d", "zeropad2d", "pixelshuffle", "unflatten", "indexselect"),
}
_FOLLOWED = POINTWISE | POOLS | (MOVING - _COUNTING) | {"batchnorm", "linear", "conv"}


class Kept:
    """The indices that stay, along each dimension of each value; `why`, if they are not needed."""

    def __init__(self, found: Analysis, whole: frozenset[Node] = frozenset()) -> None:
        self.found, self.masks, self.trace = found, found.masks, found.masks.trace
        self.whole = whole  # nodes to be left whole, because cutting them did not work
        self.sets: dict[Node, list[Tensor]] = {}
        self.why: dict[Node, list[dict[int, str]]] = {}
        self.reads: dict[Node, Tensor] = {}  # the inputs that a layer must read
        self.folds: dict[Node, Tensor] = {}  # those that it adds to its bias instead
        for node, value in self.trace.values.items():
            if isinstance(value, Tensor):
                self.sets[node] = [torch.zeros(n, dtype=torch.bool) for n in value.shape]
                self.why[node] = [{} for _ in value.shape]
        self._seen: dict[Node, list[int]] = {}  # what has been fitted already
        self._layers = {node: self._layer(node) for node in self.trace.graph.nodes}
        self._left = {node: self._reason_to_leave(node) for node in self.trace.graph.nodes}
        self._grow()

    def count(self, node: Node) -> list[int]:
        """The shape that a node's value has after the cut."""
        return [int(one.sum()) for one in self.sets[node]]

    def fits(self, node: Node, value: Tensor) -> bool:
        """Whether a value of the smaller network has the shape that was planned."""
        return list(value.shape) == self.count(node)

    def box(self, node: Node, needed: bool = False) -> Tensor:
        """Which elements of a node's value stay; or only those that are needed."""
        mask = torch.ones(self.trace.values[node].shape, dtype=torch.bool)
        for dimension, one in enumerate(self.sets[node]):
            if needed:
                one = one.clone()
                one[[at for at, reason in self.why[node][dimension].items() if reason]] = False
            mask &= along(one, mask, dimension)
        return mask

    # -- growing ---------------------------------------------------------------------------------

    def _grow(self) -> None:
        nodes = list(self.trace.graph.nodes)
        for node in nodes:
            self._begin(node)
        while True:
            before = self._total()
            for node in [*reversed(nodes), *nodes]:
                self._fit(node)
            if self._total() == before and not self._revive(nodes):
                return

    def _total(self) -> int:
        return sum(int(one.sum()) for sets in self.sets.values() for one in sets)

    def _begin(self, node: Node) -> None:
        """Keep what a node needs, whatever the others keep."""
        layer = self._layers[node]
        if node.op == "get_attr" and self.masks.is_shared([str(node.target)]):
            self._keep_whole(node, f"{node.target} is used more than once")
        elif node.op == "placeholder":
            self._keep_whole(node, "")  # the network's inputs stay
        elif node.op == "output":
            for source in node.all_input_nodes:
                self._keep_whole(source, "")
        elif reason := self.left(node):
            for touched in (node, *node.all_input_nodes):
                self._keep_whole(touched, reason)
        elif layer is not None:
            self._read(node, layer)

    def _layer(self, node: Node) -> Weighted | None:
        is_operation = node.op.startswith("call_")
        return weighted(self.trace, node) if is_operation else None

    def left(self, node: Node) -> str:
        """Why a node, its inputs and its value are left whole; empty if they need not be."""
        return self._left[node]

    def _reason_to_leave(self, node: Node) -> str:
        name, kind = self.trace.name(node), self.trace.kind(node)
        if not node.op.startswith("call_") or not any(
            isinstance(leaf, Tensor) for leaf in leaves(self.trace.values[node])
        ):
            return ""
        if node in self.whole:
            return f"{name} does not work on a part of its inputs"
        if is_barrier(self.masks, node) or kind not in _FOLLOWED:
            return f"{name} needs all of its inputs"
        layer = self._layer(node)
        if layer is not None and self.masks.is_shared(layer.names):
            return f"{name} is used more than once"
        own = [f"{node.target}.weight"] if kind in ("batchnorm", "prelu") else []
        return f"{name} is used more than once" if self.masks.is_shared(own) else ""

    def _read(self, node: Node, layer: Weighted) -> None:
        """Find the inputs that a layer must read: those that are not constants for its bias."""
        source = layer.source
        dimension = self.input_dimension(node, layer)
        mine = dict(claims(self.masks, node, self.found.needed[node], False))
        if source not in mine:  # no output of this layer is needed
            self.reads[node] = self.folds[node] = torch.zeros_like(self.sets[source][dimension])
            return
        needed = over_all_but(mine[source], dimension)
        value = self.trace.values[source].movedim(dimension, 0).flatten(1)
        constant = ~over_all_but(self.masks.varies[source], dimension)
        zero = constant & (value == 0).all(1)
        same = constant & (value == value[:, :1]).all(1)
        obstacle = self._obstacle(node, layer)
        self.folds[node] = needed & same & ~zero & torch.tensor(not obstacle)
        self.reads[node] = needed & ~zero & ~self.folds[node]
        for at in torch.nonzero(self.reads[node]).flatten().tolist():
            reason = f"{self.trace.name(node)} {obstacle}" if constant[at] else ""
            if constant[at] and not obstacle:
                reason = "it is not the same constant everywhere"
            self._keep(source, dimension, [at], reason)

    def _obstacle(self, node: Node, layer: Weighted) -> str:
        """Why a layer cannot add a constant input to its bias."""
        module = self.trace.module(node)
        if self.masks.training:
            return "is trained with the constant"
        if len(layer.names) < 2:
            return "has no bias to hold the constant"
        if self.trace.kind(node) == "linear":
            return ""
        if module is None:
            return "may pad with zeros"
        padding: Any = getattr(module, "padding", 0)
        is_padded = padding == "same" or (
            padding != "valid" and any(torch.tensor(padding).tolist())
        )
        if is_padded and getattr(module, "padding_mode", "zeros") == "zeros":
            return "pads the constant with zeros"
        return ""

    def input_dimension(self, node: Node, layer: Weighted) -> int:
        """Along which dimension the inputs of a layer lie."""
        return self.trace.values[layer.source].ndim - max(layer.tensors[0].ndim - 1, 1)

    def _fit(self, node: Node) -> None:
        """Make the indices that stay of a node's inputs and of its value consistent."""
        if not node.op.startswith("call_") or not isinstance(self.trace.values[node], Tensor):
            return
        if self._left[node]:
            return  # whole from the beginning
        inputs, layer = self.masks.tracked(node), self._layers[node]
        state = [size for one in (node, *inputs) for size in self.count(one)]
        if self._seen.get(node) == state:
            return
        if layer is not None:
            self._fit_layer(node, layer)
        elif self.trace.kind(node) in POINTWISE or self.trace.kind(node) == "batchnorm":
            label = f"{self.trace.name(node)} joins it with what is needed"
            for source in inputs:
                self._align(source, node, label if len(inputs) > 1 else "")
        else:
            self._fit_moving(node, inputs)
        self._seen[node] = state

    def _fit_layer(self, node: Node, layer: Weighted) -> None:
        source, into = layer.source, self.input_dimension(node, layer)
        outof = self.masks.channels(node)
        for dimension in range(self.trace.values[source].ndim):
            if dimension == into:
                continue
            other = dimension - into + outof
            if dimension < into:
                self._copy(source, dimension, node, other, "")
                self._copy(node, other, source, dimension, "")
            else:
                self._keep_all(source, dimension, "")
                self._keep_all(node, other, "")
        if layer.groups > 1:
            self._fit_groups(node, layer, into, outof)

    def _fit_groups(self, node: Node, layer: Weighted, into: int, outof: int) -> None:
        """All groups that stay have the same inputs and outputs, counted within the group."""
        groups, name = layer.groups, self.trace.name(node)
        inside = self.sets[layer.source][into].reshape(groups, -1)
        outside = self.sets[node][outof].reshape(groups, -1)
        stay = inside.any(1) | outside.any(1)
        for owner, dimension, one in ((layer.source, into, inside), (node, outof, outside)):
            places = one.any(0)
            if not places.any() and stay.any():
                places = torch.arange(one.shape[1]) == 0
            wanted = (stay[:, None] & places).flatten()
            indices = torch.nonzero(wanted).flatten().tolist()
            self._keep(owner, dimension, indices, f"the groups of {name} stay alike")

    def _fit_moving(self, node: Node, inputs: list[Node]) -> None:
        """Views and concatenation: run the operation itself to see where elements come from."""
        if self.trace.kind(node) in POOLS:
            return self._fit_pool(node, inputs[0])

        def again(*parts: Tensor) -> Tensor:
            return rerun(self.masks, node, dict(zip(inputs, parts, strict=True)))

        for needed in (True, False):  # first what is needed, to give the rest its own reason
            label = "" if needed else f"{self.trace.name(node)} moves it with what is needed"
            boxes = [self.box(source, needed).float() for source in inputs]
            self._cover(node, again(*boxes) > 0, "" if needed else self._reason(inputs) or label)
            reached = reaching(again, boxes, self.box(node, needed))
            for source, mask in zip(inputs, reached, strict=True):
                self._cover(source, mask, "" if needed else self._reason([node]) or label)

    def _reason(self, nodes: list[Node]) -> str:
        """The most frequent reason why something of these nodes stays."""
        found = Counter(w for node in nodes for one in self.why[node] for w in one.values() if w)
        return found.most_common(1)[0][0] if found else ""

    def _fit_pool(self, node: Node, source: Node) -> None:
        dims = int(self.trace.kind(node)[-2])
        for dimension in range(self.trace.values[node].ndim):
            if dimension < self.trace.values[node].ndim - dims:
                self._copy(source, dimension, node, dimension, "")
                self._copy(node, dimension, source, dimension, "")
            else:
                self._keep_all(source, dimension, "")
                self._keep_all(node, dimension, "")

    def _align(self, source: Node, node: Node, label: str) -> None:
        """The same indices on both sides, where the source is not broadcast."""
        ours, theirs = self.sets[source], self.sets[node]
        shift = len(theirs) - len(ours)
        for dimension, one in enumerate(ours):
            if len(one) == len(theirs[dimension + shift]):
                self._copy(source, dimension, node, dimension + shift, "")
                self._copy(node, dimension + shift, source, dimension, label)
            else:
                self._keep_all(source, dimension, "")

    def _revive(self, nodes: list[Node]) -> bool:
        """Give one unit back to a layer that has none left; whether there was such a layer."""
        for node in nodes:
            if node in self.sets and node.op.startswith("call_"):
                for dimension, one in enumerate(self.sets[node]):
                    if len(one) and not one.any():
                        self._keep(node, dimension, [0], "a layer needs one unit at least")
                        return True
        return False

    # -- keeping ---------------------------------------------------------------------------------

    def _keep(self, node: Node, dimension: int, indices: list[int], reason: str) -> None:
        if node not in self.sets:
            return
        own = self.sets[node][dimension]
        for at in indices:
            if not own[at]:
                own[at] = True
                self.why[node][dimension][at] = reason if len(own) > 1 else ""

    def _keep_all(self, node: Node, dimension: int, reason: str) -> None:
        self._keep(node, dimension, list(range(len(self.sets[node][dimension]))), reason)

    def _keep_whole(self, node: Node, reason: str) -> None:
        for dimension in range(len(self.sets.get(node, ()))):
            self._keep_all(node, dimension, reason)

    def _copy(self, one: Node, dimension: int, other: Node, to: int, label: str) -> None:
        """What stays on one side stays on the other, for the same reason, or else this one."""
        missing = self.sets[one][dimension] & ~self.sets[other][to]
        for at in torch.nonzero(missing).flatten().tolist():
            reason = self.why[one][dimension].get(at, "")
            self._keep(other, to, [at], reason or label)

    def _cover(self, node: Node, mask: Tensor, label: str) -> None:
        """Keep every index that has one of these elements."""
        if node not in self.sets or not is_tracked(self.trace.values[node]):
            return
        for dimension in range(mask.ndim):
            missing = over_all_but(mask, dimension) & ~self.sets[node][dimension]
            self._keep(node, dimension, torch.nonzero(missing).flatten().tolist(), label)

    def idle(self, node: Node, dimension: int) -> Iterator[tuple[str, int]]:
        """Idle units, which stay although they are constant or not needed: reasons and numbers."""
        used = over_all_but(self.found.needed[node] & self.masks.varies[node], dimension)
        idle = self.sets[node][dimension] & ~used
        reasons = (
            self.why[node][dimension].get(at, "") for at in torch.nonzero(idle).flatten().tolist()
        )
        yield from Counter(
            reason or "it is a constant that is read" for reason in reasons
        ).most_common()
