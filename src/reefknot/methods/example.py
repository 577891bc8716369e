"""The inputs of a model's first forward pass, and what can be learnt from them.

Takes     a model that is about to be trained.
Gives     a few of its inputs; which elements of its parameters are dead; whether its outputs depend
          on its inputs at all.
Unaware   of methods and of tying.
"""

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from reefknot.errors import ReefknotError
from reefknot.shrinking.graph import dead_elements

log = logging.getLogger("reefknot")

_KEPT = 8  # examples of the first batch


class FirstInputs:
    """A hook that keeps some inputs of the first forward pass, and removes itself.

    A model whose forward is compiled as a whole is not looked into.
    """

    def __init__(self, model: nn.Module, example_input: Any = None) -> None:
        self.model = model
        self.inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.example = example_input  # of one example, positional
        self._handle = model.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a copy of the first few examples."""
        if torch.compiler.is_compiling():
            return
        self.remove()
        self.inputs = _first_of((args, kwargs), _KEPT)
        if self.example is None and not kwargs:
            self.example = _first_of(args, 1)

    def remove(self) -> None:
        """Look no longer."""
        self._handle.remove()

    def dead(self) -> dict[str, Tensor]:
        """The elements of parameters that no output needs; none where that cannot be known."""
        if self.example is None:
            return {}
        try:
            return dead_elements(self.model, self.example)
        except (ReefknotError, RuntimeError, TypeError, ValueError) as error:
            log.info("dead units of %s cannot be found: %s", type(self.model).__name__, error)
            self.example = None
            return {}

    @torch.no_grad()
    def are_ignored(self) -> bool:
        """Whether the model gives the same outputs for different inputs, in evaluation."""
        if self.inputs is None or not _differ(self.inputs):
            return False
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            outputs = self.model(*self.inputs[0], **self.inputs[1])
        except Exception:  # the model was moved, or wants more than a few of its inputs
            return False
        finally:
            for module in training:
                module.training = True
        rows = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.dim()]
        return bool(rows) and all(len(row) > 1 for row in rows) and not _differ(rows)


def _first_of(inputs: Any, number: int) -> Any:
    """A copy of inputs; of the first examples where all tensors have as many."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    lengths = {len(tensor) if tensor.dim() else 0 for tensor in tensors}
    cut = slice(number) if len(lengths) == 1 and min(lengths) else slice(None)

    def copied(leaf: Any) -> Any:
        return (
            leaf.detach()[cut if leaf.dim() else ...].clone() if isinstance(leaf, Tensor) else leaf
        )

    return tree_map(copied, inputs)


def _differ(inputs: Any) -> bool:
    """Whether any tensor has rows that are not all the same."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    return any(bool((tensor != tensor[:1]).any()) for tensor in tensors)
