"""How far the outputs of a packed network are from those of the original.

Takes     two models and batches of inputs that packing has not used.
Gives     an `OutputChange`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from torch.utils._pytree import tree_leaves

from reefknot.errors import UserCodeError
from reefknot.packing.walking import call

FAR_OFF, AGREEING = 0.3, 0.9  # a larger relative error, or less agreement, gives a warning


@dataclass(frozen=True)
class OutputChange:
    """What packing did to the outputs, on inputs that it has not used."""

    relative_error: float  # L2 norm of the change over that of the outputs
    cosine: float  # of each example's outputs, the mean
    agreement: float  # the share of examples (or positions) with the same largest output
    num_inputs: int
    random: bool = False  # the inputs are random ones

    def __str__(self) -> str:
        kind = "random" if self.random else "held-back"
        return (
            f"outputs on {self.num_inputs:,} {kind} inputs: relative error "
            f"{self.relative_error:.4f}, cosine {self.cosine:.5f}, "
            f"largest output the same for {100 * self.agreement:.1f} %"
        )

    @property
    def warnings(self) -> list[str]:
        """A sentence, if the outputs are far off."""
        if self.relative_error <= FAR_OFF and self.agreement >= AGREEING:
            return []
        return [
            f"outputs are off by {100 * self.relative_error:.0f} % of their norm, and the largest "
            f"output is a different one for {100 * (1 - self.agreement):.0f} % of the inputs: "
            "measure the accuracy before you use the file, allow more bytes, or give more inputs"
        ]


@torch.no_grad()
def change_of_outputs(before: nn.Module, after: nn.Module, batches: Iterable[Any]) -> OutputChange:
    """Compare two models in evaluation."""
    lost = norm = cosines = 0.0
    same = positions = count = 0
    for batch in batches:
        pairs = list(
            zip(tensors_of(call(before, batch)), tensors_of(call(after, batch)), strict=True)
        )
        for old, new in pairs:
            if not bool(torch.isfinite(old).all()):
                raise UserCodeError(
                    "the model's outputs are NaN or infinite for inputs that were held back; mend "
                    "the inputs, or pack without them"
                )
            lost += float((new - old).square().sum())
            norm += float(old.square().sum())
        old, new = pairs[0]
        rows = len(old) if old.dim() else 1
        cosines += float(cosine_similarity(old.reshape(rows, -1), new.reshape(rows, -1)).sum())
        agree = old.argmax(-1) == new.argmax(-1) if old.dim() else torch.ones(1)
        same += int(agree.sum())
        positions += agree.numel()
        count += rows
    return OutputChange(
        (lost / norm) ** 0.5 if norm else 0.0,
        cosines / max(count, 1),
        same / max(positions, 1),
        count,
    )


def tensors_of(output: Any) -> list[Tensor]:
    """The float tensors in what a model gives, in double precision."""
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    return [leaf.double() for leaf in leaves if leaf.is_floating_point()]
