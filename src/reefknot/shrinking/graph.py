"""From a model and an example input to the elements of its parameters that are dead.

Takes     a module whose zeros are final, and an example of its inputs; a batch of one is enough.
Gives     `Analysis`: for each parameter which elements may become zero without changing any output
          in evaluation, and what could not be followed.
Unaware   of methods, of files, and of how a network is cut.

A forward pass finds what is the same for every input: a unit without inputs is a constant. A
backward pass finds what no output needs: a unit that only feeds zeros. Both work on elements, not
on channels, and treat operations without a rule as alive. Torch-Pruning's dependency graph is not
used: it says which slices of layers must be cut together, which is a small part of the work here
(`kept.py`), and knows neither constants nor which elements are needed.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import Node
from torch.utils._pytree import tree_map

from reefknot.shrinking.masks import Masks, all_of, is_barrier, is_tracked
from reefknot.shrinking.rules import claims, trained, varies
from reefknot.shrinking.trace import Trace, Unfollowed, trace

NOT_KNOWN = "there is no rule for what it does to single elements"
NOT_USED = "the example input does not reach it"


@dataclass(frozen=True)
class Analysis:
    """What follows from a model's zeros. Masks are boolean, in the shapes of the tensors."""

    trace: Trace
    masks: Masks  # of each node: which elements vary
    needed: dict[Node, Any]  # of each node: which elements change an output
    dead: dict[str, Tensor]  # by name in the state dict: may become zero
    unfollowed: tuple[Unfollowed, ...]


def dead_elements(model: nn.Module, example_input: Any) -> dict[str, Tensor]:
    """For each parameter, and each statistic of BatchNorm, which elements may become zero.

    A mask holds for all its elements at once: zero them all, and no output changes in evaluation.
    """
    return analyse(model, example_input).dead


def analyse(model: nn.Module, example_input: Any, *, training: bool = False) -> Analysis:
    """Find what is dead in evaluation mode; the model is not changed.

    With `training` only zeros stay as they are; all other parameters may take any value.
    """
    own = trace(model, example_input)
    masks = Masks(own, training=training)
    for node in own.graph.nodes:
        if node.op != "output":
            masks.varies[node] = varies(masks, node)
            if training and is_tracked(own.values[node]):
                masks.varies[node] = masks.varies[node] | trained(masks, node)
    needed, _ = _backward(masks, lenient=False)
    _, alive = _backward(masks, lenient=True)
    dead, unfollowed = dict[str, Tensor](), list(own.unfollowed)
    followed = {found.name for found in unfollowed}
    for node in own.graph.nodes:
        if is_barrier(masks, node) and own.name(node) not in followed:
            unfollowed.append(Unfollowed(own.name(node), NOT_KNOWN))
    seen = _names_by_tensor(own.model)
    for names in seen:
        found = [alive[name] for name in names if name in alive]
        if not found:
            unfollowed.append(Unfollowed(names[0], NOT_USED))
            continue
        mask = ~torch.stack(found).any(0)
        dead |= dict.fromkeys(names, mask)
    return Analysis(own, masks, needed, dead, tuple(unfollowed))


def _names_by_tensor(model: nn.Module) -> list[list[str]]:
    """The names of each parameter, and of each statistic of a norm; shared ones have several."""
    found: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, nn.Parameter) or name.endswith(("running_mean", "running_var")):
            found.setdefault(id(tensor), []).append(name)
    return list(found.values())


def _backward(masks: Masks, *, lenient: bool) -> tuple[dict[Node, Any], dict[str, Tensor]]:
    """Which elements of each node's value are needed, and which of each tensor, by name."""
    own, alive = masks.trace, dict[str, Tensor]()
    needed = {node: all_of(own.values[node], False) for node in own.graph.nodes}
    for node in reversed(own.graph.nodes):
        if node.op == "output":
            for source in node.all_input_nodes:
                _mark(needed, source, all_of(own.values[source], True))
        elif node.op == "get_attr":
            name = str(node.target)
            alive[name] = alive.get(name, False) | needed[node]
        elif node.op != "placeholder":
            for target, mask in claims(masks, node, needed[node], lenient):
                if isinstance(target, Node):
                    _mark(needed, target, mask)
                else:
                    alive[target] = alive.get(target, False) | mask
            for name, tensor in own.tensors(node).items():  # not needed unless a rule claims it
                alive.setdefault(name, torch.zeros_like(tensor, dtype=torch.bool))
    return needed, alive


def _mark(needed: dict[Node, Any], node: Node, mask: Any) -> None:
    needed[node] = tree_map(
        lambda old, new: old | new if isinstance(old, Tensor) and old.dtype == torch.bool else old,
        needed[node],
        mask,
    )
