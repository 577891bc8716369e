"""How far packing moves the outputs of a network: packed as a whole, or one tensor alone.

Takes     two models and batches of inputs, those that packing has not used if there are any; or one
          model, calibration inputs, and tensors to put in place of its own.
Gives     an `OutputChange`; or the squared change of the outputs, relative to their square.
Unaware   of quantization.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from reefknot.errors import UserCodeError
from reefknot.packing.suspended import call

FAR_OFF, AGREEING = 0.3, 0.9  # a larger relative error, or less agreement, gives a warning
BATCHES = 4  # that a sensitivity is measured on, at most


@dataclass(frozen=True)
class OutputChange:
    """What packing did to the outputs, on inputs that it has not used unless they are `seen`."""

    relative_error: float  # L2 norm of the change over that of the outputs
    cosine: float  # of each example's outputs, the mean
    agreement: float  # the share of examples (or positions) with the same largest output
    num_inputs: int
    random: bool = False  # the inputs are random ones
    seen: bool = False  # the network was packed for these very inputs
    few: bool = False  # it was packed for very few inputs

    def __str__(self) -> str:
        kind = "random" if self.random else "fitted" if self.seen else "held-back"
        return (
            f"outputs on {self.num_inputs:,} {kind} inputs: relative error "
            f"{self.relative_error:.4f}, cosine {self.cosine:.5f}, "
            f"largest output the same for {100 * self.agreement:.1f} %"
        )

    @property
    def warnings(self) -> list[str]:
        """A sentence if there were too few inputs, and one if the outputs are far off."""
        found: list[str] = []
        others = "give some hundred different inputs, or one batch as example_input"
        if self.seen:
            found = [
                "outputs are measured on inputs that the network was packed for, and may be off "
                f"by far more on others: {others}"
            ]
        elif self.few:
            found = [f"very few inputs may be worse than none: {others}"]
        if self.relative_error <= FAR_OFF and self.agreement >= AGREEING:
            return found
        return [
            *found,
            f"outputs are off by {100 * self.relative_error:.0f} % of their norm, and the largest "
            f"output is a different one for {100 * (1 - self.agreement):.0f} % of the inputs: "
            "measure the accuracy before you use the file, allow more bytes, or give more inputs",
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
                    "the model's outputs are NaN or infinite for some inputs; mend these, or "
                    "pack without them"
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


class Sensitivity:
    """How the outputs of a model change with its tensors; the model is left as it was.

    BatchNorm normalizes by the statistics of each batch here: packing renews the statistics, so a
    change of them alone does no harm. Where that fails, as with batches of one, it uses its own.
    """

    def __init__(self, model: nn.Module, batches: Sequence[Any]) -> None:
        self._model = model
        self._batches = batches[:: -(-len(batches) // BATCHES)]
        self._by_batch = True
        try:
            self._before = self._outputs()
        except UserCodeError:
            self._by_batch = False
            self._before = self._outputs()
        squares = (float(o.square().sum()) for outputs in self._before for o in outputs)
        self._norm = sum(squares) or 1.0

    @torch.no_grad()
    def of(self, changed: Mapping[str, Tensor]) -> float:
        """The squared change of the outputs with these tensors, relative to their square."""
        own = {name: self._model.get_parameter(name) for name in changed}
        kept = {name: tensor.detach().clone() for name, tensor in own.items()}
        try:
            for name, tensor in own.items():
                tensor.copy_(changed[name])
            after = self._outputs()
        finally:
            for name, tensor in own.items():
                tensor.copy_(kept[name])
        lost = sum(
            float((new - old).square().sum())
            for olds, news in zip(self._before, after, strict=True)
            for old, new in zip(olds, news, strict=True)
        )
        return lost / self._norm

    def _outputs(self) -> list[list[Tensor]]:
        with _normalizing_by_batch(self._model) if self._by_batch else nullcontext():
            return [tensors_of(call(self._model, batch)) for batch in self._batches]


@contextmanager
def _normalizing_by_batch(model: nn.Module) -> Iterator[None]:
    """Let BatchNorm layers use the statistics of each batch, and leave their own alone."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    kept = [(m.training, m.track_running_stats) for m in norms]
    for norm in norms:
        norm.training, norm.track_running_stats = True, False
    try:
        yield
    finally:
        for norm, (training, tracking) in zip(norms, kept, strict=True):
            norm.training, norm.track_running_stats = training, tracking


def tensors_of(output: Any) -> list[Tensor]:
    """The float tensors in what a model gives, in double precision; there has to be one."""
    leaves = tree_leaves(output)
    found = [v.double() for v in leaves if isinstance(v, Tensor) and v.is_floating_point()]
    if not found:
        kinds = {str(v.dtype) if isinstance(v, Tensor) else type(v).__name__ for v in leaves}
        raise UserCodeError(
            "a model that is packed with inputs returns at least one tensor of floats, to measure "
            f"what packing changes; this one returns {', '.join(sorted(kinds)) or 'nothing'}: let "
            "it return what that is computed from, such as logits, or pack without inputs"
        )
    return found
