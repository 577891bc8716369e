"""What a budget leaves for weights: which bytes are fixed, and what weighs most among them.

Takes     a model, its tied weights, and a function that says what some tensors would weigh.
Gives     the fixed bytes by their cause, and a way out for the largest of them.
Unaware   of phases and of steps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from reefknot.phases.target import Target
from reefknot.state import KeptTensor, TiedTensor
from reefknot.tying.selection import NORM_LAYERS, original_name

Tensors = Sequence[TiedTensor | KeptTensor]

BATCHNORM, NORMS, BUFFERS = "BatchNorm", "norm layers", "buffers"
UNTIED, NAMES = "frozen or excluded parameters", "names, shapes and what is left of tied weights"
_WAYS_OUT = {
    BATCHNORM: 'set norms = "folded", which writes two numbers of 8 bits a channel',
    NORMS: 'set norms = "separate", which ties them',
    UNTIED: "tie them as well (requires_grad, include, exclude)",
    BUFFERS: "register them with persistent=False if they can be computed again",
    NAMES: "raise the target",
}
# Measured (docs/method.md, "How small is too small"): where the expected share of the weights that
# survive, times the steps, was less than this, networks lost more than 2.5 points as a rule.
USUAL_BYTES = 0.6  # of a weight that survives
ENOUGH, PLENTY = 60.0, 0.3  # and a share that is enough for any number of steps


class Fixed(NamedTuple):
    """The size of a file whose tied weights are all zero, and the parts of it."""

    total: int
    parts: Mapping[str, int]  # by cause, the largest first
    is_folded: bool  # whether BatchNorm is written for inference

    def __str__(self) -> str:
        return ", ".join(f"{cause} {size:,}" for cause, size in self.parts.items())

    @property
    def least(self) -> int:
        """The size if all that can become zero does: folded channels of BatchNorm can die."""
        return self.total - (self.parts.get(BATCHNORM, 0) if self.is_folded else 0)

    def way_out(self) -> str:
        """What weighs most of `least`, and what to do about it: the end of a sentence."""
        for cause, size in self.parts.items():
            if cause != BATCHNORM or not self.is_folded:
                return f", {size:,} of them for {cause}: {_WAYS_OUT[cause]}"
        return ""


def fixed_bytes(
    model: nn.Module, tensors: Tensors, size_of: Callable[[Tensors], int], *, is_folded: bool
) -> Fixed:
    """The size of these tensors, tied ones at zero, and what each kind of the others adds to it."""
    causes = _causes(model, tensors)
    total, parts = size_of(tensors), {}
    for cause in dict.fromkeys(causes.values()):
        rest = [tensor for tensor in tensors if causes.get(tensor.name) != cause]
        parts[cause] = total - size_of(rest)
    parts[NAMES] = total - sum(parts.values())
    return Fixed(total, dict(sorted(parts.items(), key=lambda part: -part[1])), is_folded)


def _causes(model: nn.Module, tensors: Iterable[TiedTensor | KeptTensor]) -> dict[str, str]:
    """Why each kept tensor is in the file."""
    parameters = {original_name(name) for name, _ in model.named_parameters()}
    norms = {
        f"{original_name(name)}.{key}".removeprefix("."): module
        for name, module in model.named_modules()
        if isinstance(module, NORM_LAYERS)
        for key in module.state_dict(keep_vars=True)
    }
    found = {}
    for tensor in tensors:
        if isinstance(tensor, KeptTensor):
            if (norm := norms.get(tensor.name)) is not None:
                found[tensor.name] = BATCHNORM if isinstance(norm, _BatchNorm) else NORMS
            else:
                found[tensor.name] = UNTIED if tensor.name in parameters else BUFFERS
    return found


class Bought(NamedTuple):
    """How many weights a target would keep, as they are before training."""

    survivors: int
    total: int
    target: Target
    fixed: Fixed | None  # None with a density

    @property
    def _room(self) -> float:
        return self.target.value - (self.fixed.total if self.fixed else 0)

    def lines(self) -> Iterator[str]:
        """What is fixed, and what the rest buys."""
        left = "the density leaves"
        if self.fixed:
            yield f"{self.fixed.total:,} of {self.target.value:,} bytes are fixed: {self.fixed}"
            left = f"{max(self._room, 0):,} bytes buy"
        share = 100 * self.survivors / self.total
        yield f"{left} about {self.survivors:,} of {self.total:,} weights, {share:.2g} %"

    def too_few(self, steps: int) -> str:
        """A warning if fewer are left than networks survive well with, and what would do."""
        share, wanted = self.survivors / self.total, min(ENOUGH / steps, PLENTY)
        if share >= wanted:
            return ""
        size, few = f"target_density = {wanted:g}", ""
        if self.fixed:
            each = self._room / self.survivors if self.survivors > 1 else USUAL_BYTES
            size = f"target_bytes = {1.1 * (self.fixed.total + each * wanted * self.total):,.0f}"
            few = "" if self._room > 0 else "; it can fit only if most channels die"
        enough = f"steps = {1.1 * ENOUGH / share:,.0f} or " if not few else ""
        return (
            f"{100 * share:.2g} % of the weights and {steps:,} steps are few: networks with so "
            f"little lost more than 2.5 points as a rule{few}; {enough}{size} would do"
        )
