"""Masks of elements, and what the rules for them know about operations.

Takes     a trace.
Gives     `Masks`, the kinds of operations, and `Weighted`: what layers with weights share.
Unaware   of what any operation does to a mask.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.fx.node import Node
from torch.utils._pytree import tree_flatten, tree_map

from reefknot.shrinking.trace import Trace

# fmt: off
# Elements are moved, copied or summed with positive coefficients: the operation is run on masks.
MOVING = {
    "flatten", "unflatten", "view", "reshape", "permute", "transpose", "t", "movedim", "swapaxes",
    "squeeze", "unsqueeze", "contiguous", "clone", "to", "float", "double", "detach", "identity",
    "chunk", "split", "getitem", "indexselect", "cat", "stack", "expand", "expandas", "repeat",
    "roll", "flip", "mean", "sum", "pad", "zeropad1d", "zeropad2d", "interpolate", "upsample",
    "pixelshuffle", "dropout", "dropout1d", "dropout2d", "dropout3d", "alphadropout",
    "featuredropout", "avgpool1d", "avgpool2d", "avgpool3d",
    "adaptiveavgpool1d", "adaptiveavgpool2d", "adaptiveavgpool3d",
}
# Each output depends on the elements of its inputs in the same place.
POINTWISE = {
    "add", "sub", "rsub", "mul", "truediv", "div", "maximum", "minimum", "pow", "where", "neg",
    "abs", "sqrt", "rsqrt", "exp", "log", "square", "clamp", "clip", "sin", "cos", "erf", "sign",
    "gt", "lt", "ge", "le", "eq", "ne", "relu", "relu6", "leakyrelu", "prelu", "rrelu", "elu",
    "selu", "celu", "gelu", "silu", "mish", "sigmoid", "logsigmoid", "tanh", "tanhshrink",
    "hardtanh", "hardsigmoid", "hardswish", "hardshrink", "softshrink", "softplus", "softsign",
    "threshold",
}
POOLS = {f"{kind}maxpool{dims}d" for kind in ("", "adaptive") for dims in (1, 2, 3)}
MULTILINEAR = {"matmul", "bmm", "mm", "einsum"}
WEIGHTED = {"linear", "conv", "convtranspose1d", "convtranspose2d", "convtranspose3d"}
FOLLOWED = MOVING | POINTWISE | POOLS | MULTILINEAR | WEIGHTED
FOLLOWED |= {"batchnorm", "layernorm", "embedding"}
# fmt: on


def is_tracked(value: Any) -> bool:
    """Whether a value has a mask: real numbers and booleans have, indices do not."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.dtype == torch.bool)


@dataclass
class Masks:
    """A trace and, for each node, which elements differ between inputs of the network."""

    trace: Trace
    varies: dict[Node, Any] = field(default_factory=dict)
    training: bool = False  # parameters vary, too, unless they are zero; so do batch statistics

    def nonzero(self, node: Node) -> Any:
        """Which elements of a node's value can be anything but zero."""
        values = self.trace.values[node]
        return tree_map(
            lambda value, varies: varies | (value != 0) if is_tracked(value) else value,
            values,
            self.varies[node],
        )

    def tracked(self, node: Node) -> list[Node]:
        """The inputs of a node that have masks."""
        values = self.trace.values
        return [n for n in node.all_input_nodes if any(map(is_tracked, tree_flatten(values[n])[0]))]

    def channels(self, node: Node) -> int:
        """Along which dimension the units of a layer's output lie."""
        layer = weighted(self.trace, node)
        return 1 if layer is None else layer.dimension(self.trace.values[node])

    def over(self, node: Node, dimension: int) -> Tensor:
        """Which units along a dimension vary."""
        return over_all_but(self.varies[node], dimension)

    def is_shared(self, names: list[str]) -> bool:
        """Whether a tensor of these names is used by more than one operation."""
        return any(self._uses.get(id(self._tensors.get(name)), 1) > 1 for name in names)

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return self.trace.model.state_dict(keep_vars=True)

    @cached_property
    def _uses(self) -> dict[int, int]:
        """How often each tensor of the model is used, by its identity."""
        found: dict[int, int] = {}
        for node in self.trace.graph.nodes:
            used = list(self.trace.tensors(node).values())
            if node.op == "get_attr":
                used = [self.trace.values[node]] * len(node.users)
            for tensor in used:
                found[id(tensor)] = found.get(id(tensor), 0) + 1
        return found


@dataclass
class Weighted:
    """A linear map with weights of its own: a dense layer or a convolution."""

    source: Node
    names: list[str]  # of weight and bias, as in the state dict
    tensors: list[Tensor]
    run: Callable[..., Tensor]  # of input, weight and, where there is one, bias
    groups: int = 1

    def dimension(self, value: Tensor) -> int:
        """Along which dimension of the layer's input or output its inputs or units lie."""
        return value.ndim - max(self.tensors[0].ndim - 1, 1)


def weighted(trace: Trace, node: Node) -> Weighted | None:
    """The linear map that a node is, if it is one and its weights are parameters."""
    if trace.kind(node) not in WEIGHTED:
        return None
    module = trace.module(node)
    if module is not None:
        if len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], Node):
            return None
        keys = ["weight"] if module.bias is None else ["weight", "bias"]
        return Weighted(
            node.args[0],
            [f"{node.target}.{key}" for key in keys],
            [module.get_parameter(key) for key in keys],
            lambda x, *w: functional_call(module, dict(zip(keys, w, strict=True)), (x,)),
            int(getattr(module, "groups", 1)),
        )
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    own = [given[key] for key in ("weight", "bias") if given.get(key) is not None]
    if not isinstance(given.get("input"), Node) or not all(
        isinstance(n, Node) and n.op == "get_attr" for n in own
    ):
        return None
    source, groups = given["input"], given.get("groups", 1)
    assert isinstance(source, Node) and isinstance(groups, int)

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        values = {n: trace.values[n].float() if n in own else x for n in node.all_input_nodes}
        return trace.call(node, values | dict(zip(own, tensors, strict=True)))  # type: ignore[arg-type]

    tensors = [trace.values[n] for n in own]  # type: ignore[index]
    return Weighted(source, [str(n.target) for n in own], tensors, run, groups)  # type: ignore[union-attr]


def is_barrier(masks: Masks, node: Node) -> bool:
    """Whether there is no rule for a node: its whole value varies, all of its inputs are needed."""
    trace = masks.trace
    kind, value, module = trace.kind(node), trace.values[node], trace.module(node)
    if node.op not in ("call_module", "call_function", "call_method"):
        return False
    if not any(isinstance(leaf, Tensor) for leaf in leaves(value)):
        return False  # such as a size
    if kind not in FOLLOWED or not all(map(is_tracked, leaves(value))):
        return True
    unknown = [n for n in node.all_input_nodes if n not in masks.tracked(node)]
    if kind in POINTWISE and any(isinstance(trace.values[n], Tensor) for n in unknown):
        return True
    if kind in WEIGHTED:
        return weighted(trace, node) is None
    if kind == "batchnorm":
        return module is None or getattr(module, "running_mean", None) is None
    return kind in ("layernorm", "embedding") and module is None


# -- trees of masks --------------------------------------------------------------------------


def leaves(tree: Any) -> list[Any]:
    """What a value is made of: itself, or the parts of a tuple."""
    return tree_flatten(tree)[0]


def any_of(tree: Any) -> bool:
    """Whether a mask, or one of several, has an element."""
    return any(isinstance(leaf, Tensor) and bool(leaf.any()) for leaf in leaves(tree))


def all_of(tree: Any, flag: bool) -> Any:
    """A mask of one flag for everything that is tracked; other things as they are."""
    return tree_map(
        lambda v: torch.full(v.shape, flag, dtype=torch.bool) if is_tracked(v) else v, tree
    )


def as_float(tree: Any) -> Any:
    """Masks as zeros and ones."""
    return tree_map(lambda v: v.float() if isinstance(v, Tensor) else v, tree)


def indices_of(mask: Tensor) -> list[int]:
    """Where a mask of one dimension is true."""
    return torch.nonzero(mask).flatten().tolist()


def along(vector: Tensor, like: Tensor, dimension: int) -> Tensor:
    """A vector laid along one dimension, to be broadcast over the others."""
    shape = [1] * like.ndim
    shape[dimension] = -1
    return vector.reshape(shape)


def over_all_but(mask: Tensor, dimension: int) -> Tensor:
    """Which slices along a dimension have an element."""
    return mask.transpose(0, dimension).flatten(1).any(1) if mask.ndim > 1 else mask
