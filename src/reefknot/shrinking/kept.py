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
    indices_of,
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
        nodes = self.trace.graph.nodes
        self._layers = {node: weighted(self.trace, node) for node in nodes}
        # Why a node, its inputs and its value are left whole; empty if they need not be.
        self.left = {node: self._reason_to_leave(node) for node in nodes}
        self._grow()

    def count(self, node: Node) -> list[int]:
        """The shape that a node's value has after the cut."""
        return [int(one.sum()) for one in self.sets[node]]

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
            self._keep_whole(node)  # the network's inputs stay
        elif node.op == "output":
            for source in node.all_input_nodes:
                self._keep_whole(source)
        elif reason := self.left[node]:
            for touched in (node, *node.all_input_nodes):
                self._keep_whole(touched, reason)
        elif layer is not None:
            self._read(node, layer)

    def _reason_to_leave(self, node: Node) -> str:
        name, kind = self.trace.name(node), self.trace.kind(node)
        has_tensor = any(isinstance(leaf, Tensor) for leaf in leaves(self.trace.values[node]))
        if not node.op.startswith("call_") or not has_tensor:
            return ""
        if node in self.whole:
            return f"{name} does not work on a part of its inputs"
        if is_barrier(self.masks, node) or kind not in _FOLLOWED:
            return f"{name} needs all of its inputs"
        layer = self._layers[node]
        own = [f"{node.target}.weight"] if kind in ("batchnorm", "prelu") else []
        shared = self.masks.is_shared(own if layer is None else layer.names)
        return f"{name} is used more than once" if shared else ""

    def _read(self, node: Node, layer: Weighted) -> None:
        """Find the inputs that a layer must read: those that are not constants for its bias."""
        source = layer.source
        dimension = layer.dimension(self.trace.values[source])
        mine = dict(claims(self.masks, node, self.found.needed[node], False))
        if source not in mine:  # no output of this layer is needed
            self.reads[node] = self.folds[node] = torch.zeros_like(self.sets[source][dimension])
            return
        needed = over_all_but(mine[source], dimension)
        value = self.trace.values[source].movedim(dimension, 0).flatten(1)
        constant = ~self.masks.over(source, dimension)
        zero = constant & (value == 0).all(1)
        same = constant & (value == value[:, :1]).all(1)
        obstacle = self._obstacle(node, layer)
        self.folds[node] = needed & same & ~zero & torch.tensor(not obstacle)
        self.reads[node] = needed & ~zero & ~self.folds[node]
        reason = "it is not the same constant everywhere"
        if obstacle:
            reason = f"{self.trace.name(node)} {obstacle}"
        for at in indices_of(self.reads[node]):
            self._keep(source, dimension, [at], reason if constant[at] else "")

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

    def _fit(self, node: Node) -> None:
        """Make the indices that stay of a node's inputs and of its value consistent."""
        if not node.op.startswith("call_") or not isinstance(self.trace.values[node], Tensor):
            return
        if self.left[node]:
            return  # whole from the beginning
        inputs, layer, kind = self.masks.tracked(node), self._layers[node], self.trace.kind(node)
        state = [size for one in (node, *inputs) for size in self.count(one)]
        if self._seen.get(node) == state:
            return
        if layer is not None:
            dims = max(layer.tensors[0].ndim - 2, 0)
            channels = layer.dimension(self.trace.values[node])
            self._fit_windows(layer.source, node, channels, dims)
            if layer.groups > 1:
                self._fit_groups(node, layer, channels)
        elif kind in POOLS:
            dims = int(kind[-2])
            self._fit_windows(inputs[0], node, self.trace.values[node].ndim - dims, dims)
        elif kind in POINTWISE or kind == "batchnorm":
            label = f"{self.trace.name(node)} joins it with what is needed"
            for source in inputs:
                self._align(source, node, label if len(inputs) > 1 else "")
        else:
            self._fit_moving(node, inputs)
        self._seen[node] = state

    def _fit_windows(self, source: Node, node: Node, leading: int, dims: int) -> None:
        """The first dimensions keep the same indices on both sides, the last ones all of theirs."""
        for dimension in range(leading):
            self._pair(source, dimension, node, dimension)
        for dimension in range(-dims, 0):
            self._keep_all(source, dimension)
            self._keep_all(node, dimension)

    def _fit_groups(self, node: Node, layer: Weighted, channels: int) -> None:
        """All groups that stay have the same inputs and outputs, counted within the group."""
        groups, name = layer.groups, self.trace.name(node)
        sides = [
            (one, self.sets[one][channels].reshape(groups, -1)) for one in (layer.source, node)
        ]
        stay = torch.stack([one.any(1) for _, one in sides]).any(0)
        for owner, one in sides:
            places = one.any(0)
            if not places.any() and stay.any():
                places = torch.arange(one.shape[1]) == 0
            wanted = (stay[:, None] & places).flatten()
            self._keep(owner, channels, indices_of(wanted), f"the groups of {name} stay alike")

    def _fit_moving(self, node: Node, inputs: list[Node]) -> None:
        """Views and concatenation: run the operation itself to see where elements come from."""

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

    def _align(self, source: Node, node: Node, label: str) -> None:
        """Pair the dimensions of an input and the value; those that are broadcast stay whole."""
        ours, theirs = self.sets[source], self.sets[node]
        shift = len(theirs) - len(ours)
        for dimension, one in enumerate(ours):
            if len(one) == len(theirs[dimension + shift]):
                self._pair(source, dimension, node, dimension + shift, label)
            else:
                self._keep_all(source, dimension)

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

    def _keep_all(self, node: Node, dimension: int, reason: str = "") -> None:
        self._keep(node, dimension, list(range(len(self.sets[node][dimension]))), reason)

    def _keep_whole(self, node: Node, reason: str = "") -> None:
        for dimension in range(len(self.sets.get(node, ()))):
            self._keep_all(node, dimension, reason)

    def _pair(self, one: Node, dimension: int, other: Node, to: int, label: str = "") -> None:
        """What stays on one side stays on the other; a label is the reason for the first."""
        self._copy(one, dimension, other, to, "")
        self._copy(other, to, one, dimension, label)

    def _copy(self, one: Node, dimension: int, other: Node, to: int, label: str) -> None:
        """What stays on one side stays on the other, for the same reason, or else this one."""
        missing = self.sets[one][dimension] & ~self.sets[other][to]
        for at in indices_of(missing):
            reason = self.why[one][dimension].get(at, "")
            self._keep(other, to, [at], reason or label)

    def _cover(self, node: Node, mask: Tensor, label: str) -> None:
        """Keep every index that has one of these elements."""
        if node not in self.sets or not is_tracked(self.trace.values[node]):
            return
        for dimension in range(mask.ndim):
            missing = over_all_but(mask, dimension) & ~self.sets[node][dimension]
            self._keep(node, dimension, indices_of(missing), label)

    def idle(self, node: Node, dimension: int) -> Iterator[tuple[str, int]]:
        """Idle units, which stay although they are constant or not needed: reasons and numbers."""
        used = over_all_but(self.found.needed[node] & self.masks.varies[node], dimension)
        idle = indices_of(self.sets[node][dimension] & ~used)
        reasons = (self.why[node][dimension].get(at, "") for at in idle)
        found = Counter(reason or "it is a constant that is read" for reason in reasons)
        yield from found.most_common()
