"""What an operation does to masks: which outputs vary, which inputs are needed.

Takes     a node of a trace, masks of its inputs (forward) or of its outputs (backward).
Gives     masks of its outputs, or claims: what of its inputs and parameters is needed.
Unaware   of the order of operations, and of how a network is cut.

Most rules run the operation itself on masks of zeros and ones, with weights replaced by masks of
their non-zeros: an output above zero depends on something that varies. Backward, autograd of the
same run shows which inputs reach a needed output, and which weights are used on the way. So
strides, groups, padding and views need no code of their own.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import Node
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from reefknot.shrinking.masks import (
    MOVING,
    MULTILINEAR,
    POINTWISE,
    POOLS,
    Masks,
    all_of,
    along,
    any_of,
    as_float,
    is_barrier,
    is_tracked,
    leaves,
    over_all_but,
    weighted,
)

Claim = tuple[Node | str, Any]  # of an input, or of a parameter by its name; a mask or masks


# -- forward ---------------------------------------------------------------------------------


def varies(masks: Masks, node: Node) -> Any:
    """Which elements of a node's value are not the same for every input of the network."""
    trace, value = masks.trace, masks.trace.values[node]
    kind, inputs = trace.kind(node), masks.tracked(node)
    if kind == "placeholder":
        return all_of(value, True)
    if kind == "get_attr":
        return all_of(value, False)
    if is_barrier(masks, node):
        return all_of(value, True)
    if not isinstance(value, Tensor) and not any(map(is_tracked, leaves(value))):
        return value  # such as a size
    if not any(bool(part.any()) for n in inputs for part in leaves(masks.varies[n])):
        return all_of(value, False)
    layer = weighted(trace, node)
    if layer is not None:
        weights = [(tensor != 0).float() for tensor in layer.tensors]
        weights[1:] = [torch.zeros_like(bias) for bias in weights[1:]]
        return layer.run(masks.varies[layer.source].float(), *weights) > 0
    run = _on_masks(masks, node)
    if run is None:
        return torch.ones_like(value, dtype=torch.bool) & _scaled(masks, node, masks.varies)
    varying = {n: as_float(masks.varies[n]) for n in inputs}
    if not _is_product(masks, node):
        return tree_map(lambda part: part > 0, run(varying))
    others = {n: as_float(masks.nonzero(n)) for n in inputs}
    return torch.stack([run(others | {n: varying[n]}) > 0 for n in inputs]).any(0)


def _scaled(masks: Masks, node: Node, given: dict[Node, Any]) -> Tensor:
    """Which outputs of a norm or an embedding can vary: those whose scale is not zero."""
    kind, module = masks.trace.kind(node), masks.trace.module(node)
    assert module is not None
    value, weight = masks.trace.values[node], getattr(module, "weight", None)
    if kind == "embedding":
        return (weight != 0).any(0).expand(value.shape)  # type: ignore[union-attr]
    whole = torch.ones_like(value, dtype=torch.bool)
    if kind == "layernorm":
        return whole if weight is None else (weight != 0).expand(value.shape)
    scale = whole if weight is None else along(weight != 0, value, 1).expand(value.shape)
    return scale & given[node.args[0]]  # type: ignore[index]


def trained(masks: Masks, node: Node) -> Any:
    """Which elements of a node's value change when parameters that are not zero are trained."""
    value, layer = masks.trace.values[node], weighted(masks.trace, node)
    if node.op == "get_attr" and isinstance(value, torch.nn.Parameter):
        return value != 0
    if layer is not None:
        weights = [(tensor != 0).float() for tensor in layer.tensors]
        return layer.run(masks.nonzero(layer.source).float(), *weights) > 0
    if masks.trace.kind(node) == "prelu":
        return masks.nonzero(masks.tracked(node)[0])
    if masks.trace.kind(node) in ("batchnorm", "layernorm", "embedding"):
        return all_of(value, True)
    return all_of(value, False)


# -- backward --------------------------------------------------------------------------------


def claims(masks: Masks, node: Node, needed: Any, lenient: bool) -> Iterator[Claim]:
    """Which elements of its inputs and parameters a node needs for these outputs.

    `lenient` claims only what must not become zero: nothing of a unit whose output would be zero
    anyway, such as a ReLU of a negative bias.
    """
    trace = masks.trace
    kind, inputs = trace.kind(node), masks.tracked(node)
    if is_barrier(masks, node):
        if not all(map(is_tracked, leaves(trace.values[node]))) or any_of(needed):
            yield from ((n, all_of(trace.values[n], True)) for n in inputs)
            for name, tensor in trace.tensors(node).items():
                yield name, torch.ones_like(tensor, dtype=torch.bool)
        return
    if not any_of(needed):
        return
    layer = weighted(trace, node)
    if layer is not None:
        weights = [(tensor != 0).float() for tensor in layer.tensors]
        reached = reaching(layer.run, [masks.nonzero(layer.source).float(), *weights], needed)
        yield from zip([layer.source, *layer.names], reached, strict=True)
    elif (run := _on_masks(masks, node)) is not None:
        if lenient and kind in POINTWISE:
            needed = needed & ~_zero_anyway(masks, node, inputs)
        if _is_product(masks, node):
            given = {n: as_float(masks.nonzero(n)) for n in inputs}
        else:
            given = {n: as_float(all_of(trace.values[n], True)) for n in inputs}
        flat, spec = tree_flatten(list(given.values()))
        reached = reaching(
            lambda *parts: run(dict(zip(given, tree_unflatten(parts, spec), strict=True))),
            flat,
            needed,
        )
        yield from zip(given, tree_unflatten(reached, spec), strict=True)
        if kind == "prelu" and node.op == "call_module":
            own = f"{node.target}.weight"
            several = trace.model.get_parameter(own).numel() > 1
            yield own, over_all_but(needed, 1) if several else needed.any().reshape(1)
    else:
        yield from _claims_of_norm(masks, node, needed)


def _claims_of_norm(masks: Masks, node: Node, needed: Tensor) -> Iterator[Claim]:
    module, kind = masks.trace.module(node), masks.trace.kind(node)
    assert module is not None
    weight = getattr(module, "weight", None)
    if kind == "embedding":
        yield f"{node.target}.weight", needed.reshape(-1, needed.shape[-1]).any(0).expand_as(weight)  # type: ignore[arg-type]
        return
    source = node.args[0]
    assert isinstance(source, Node)
    if kind == "layernorm":
        mixed = needed if weight is None else needed & (weight != 0)
        yield source, torch.ones_like(mixed) & mixed.any()
        if weight is not None:
            own = needed.reshape(-1, *weight.shape).any(0)
            yield from ((f"{node.target}.{key}", own) for key, _ in module.named_parameters())
        return
    unit = over_all_but(needed, 1)
    scaled = unit if weight is None else unit & (weight != 0)
    wanted = torch.ones_like(needed) if masks.training else needed  # a batch shares its mean
    yield source, wanted & along(scaled, needed, 1)
    yield from ((f"{node.target}.{key}", unit) for key, _ in module.named_parameters())
    yield from ((f"{node.target}.{key}", scaled) for key in ("running_mean", "running_var"))


def _zero_anyway(masks: Masks, node: Node, inputs: list[Node]) -> Tensor:
    """Units that are always zero, also if weights and bias of the layer before were zero.

    The layer's output must not be used elsewhere, where the change would have an effect.
    """
    value, source = masks.trace.values[node], inputs[0]
    none = torch.zeros(value.shape, dtype=torch.bool)
    layer = weighted(masks.trace, source)
    if len(inputs) > 1 or layer is None or len(source.users) > 1 or masks.is_shared(layer.names):
        return none
    of_zeros = rerun(masks, node, {source: torch.zeros_like(masks.trace.values[source])})
    quiet = ~masks.varies[node] & (value == 0) & (of_zeros == 0)
    dimension = masks.channels(source)
    return none | along(~over_all_but(~quiet, dimension), value, dimension)


# -- helpers ---------------------------------------------------------------------------------


def _is_product(masks: Masks, node: Node) -> bool:
    """Whether a zero in one input of a node hides what is in another."""
    kind = masks.trace.kind(node)
    return kind in MULTILINEAR or (kind == "mul" and len(masks.tracked(node)) == 2)


def _on_masks(masks: Masks, node: Node) -> Callable[[dict[Node, Any]], Any] | None:
    """What shows on zeros and ones how elements depend on inputs; None for norms and the like."""
    kind, value, inputs = masks.trace.kind(node), masks.trace.values[node], masks.tracked(node)
    if kind in MOVING or _is_product(masks, node):
        return lambda given: rerun(masks, node, given)
    if kind in POOLS:
        pool = _pooled(masks, node)
        return lambda given: pool(given[inputs[0]])
    if kind in POINTWISE:
        return lambda given: sum(part.expand(value.shape) for part in given.values())
    return None


_POOLING = {"kernel_size": 0, "stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}


def _pooled(masks: Masks, node: Node) -> Callable[[Tensor], Tensor]:
    """Average pooling in place of max pooling: it depends on the same elements."""
    kind, value = masks.trace.kind(node), masks.trace.values[node]
    dims = int(kind[-2])
    if "adaptive" in kind:
        adaptive = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[dims - 1]
        return lambda x: adaptive(x, value.shape[-dims:])
    given = masks.trace.options(node, _POOLING)
    if set(torch.tensor(given.pop("dilation")).reshape(-1).tolist()) != {1}:
        over = tuple(range(-dims, 0))  # conservative: the whole of each channel
        return lambda x: x.mean(over, keepdim=True).expand(value.shape)
    pool: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1]
    return lambda x: pool(x, **given)


def rerun(masks: Masks, node: Node, given: dict[Node, Any]) -> Any:
    """A node with some of its inputs replaced."""
    others = {n: masks.trace.values[n] for n in node.all_input_nodes}
    return masks.trace.call(node, others | given)


def reaching(run: Callable[..., Any], inputs: list[Tensor], needed: Any) -> list[Tensor]:
    """Which elements of the inputs can change a needed output."""
    own = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    with torch.enable_grad():
        outputs, wanted = leaves(run(*own)), leaves(needed)
        pairs = [(o, w) for o, w in zip(outputs, wanted, strict=True) if o.requires_grad]
        gradients = torch.autograd.grad(
            [o for o, _ in pairs], own, [w.to(o.dtype) for o, w in pairs], allow_unused=True
        )
    return [
        torch.zeros_like(tensor, dtype=torch.bool) if gradient is None else gradient > 0
        for tensor, gradient in zip(own, gradients, strict=True)
    ]
