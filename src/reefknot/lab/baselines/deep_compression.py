"""Deep Compression (Han, Mao and Dally, 2016), the first row of the paper's table.

Takes     a model, preferably trained; how much to prune, in how many rounds; values per tensor.
Gives     pruned weights, each tensor with a codebook of its own.
Paper     section 4.3, Table 1; section 3.2 on averaged against summed gradients.
Unaware   of the training loop, the data and the file.

A weight is pruned if its magnitude is below a quality factor times the standard deviation of its
tensor, zeros included. The factor rises linearly over the rounds, with training between them.
Hardening clusters the rest of each tensor by k-means from evenly spaced centers. Then the shared
values are trained, each by the sum of its weights' gradients, where APT takes the mean. By default
biases and other vectors are neither pruned nor clustered, but kept exactly.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from reefknot.lab.baselines.by_name import Numbers, are_numbers, by_name
from reefknot.lab.baselines.pruned import Pruned
from reefknot.methods import TyingMethod
from reefknot.methods.settings import (
    are_clusters,
    are_patterns,
    is_count,
    is_number,
    is_scope,
    setting,
)
from reefknot.phases import Frozen, Phase, Step
from reefknot.tying import TENSOR, NumClusters, Scope, Tying, original_name, unwrapped


class DeepCompression(TyingMethod):
    """Deep Compression: iterated magnitude pruning, k-means per tensor, summed gradients."""

    name: ClassVar[str] = "deep_compression"

    num_clusters: NumClusters = setting(
        default=64,
        doc="values of each tensor, zero included, or a table from tensor to number",
        check=are_clusters(least=2),
        kw_only=False,
    )
    quality: Numbers = setting(
        default=1.0,
        doc="a weight below quality times the tensor's standard deviation is pruned; a number, or "
        "a table from name patterns to numbers, of which the first match counts",
        check=are_numbers(is_number()),
        kw_only=False,
    )
    prune_every: int = setting(
        default=1000,
        doc="steps between two rounds of pruning; the first is after this many steps",
        check=is_count("at least 1", least=1),
    )
    prune_rounds: int = setting(
        default=5,
        doc="how many rounds; round r of R prunes with quality·r/R; hardening before the last one "
        "prunes with the full quality",
        check=is_count("at least 1", least=1),
    )
    scope: Scope = setting(
        default=TENSOR,
        doc='which parameters share a codebook: "tensor", "network", or a table from group names '
        "to name patterns, of which the first match counts",
        check=is_scope,
    )
    exclude: Sequence[str] | str | None = setting(  # type: ignore[assignment]
        default=None,
        doc="patterns of the parameters to keep exactly; None: all with less than two dimensions, "
        "such as biases",
        check=are_patterns,
    )

    def make_tying(self, **options: Any) -> Tying:
        """Each tensor with a codebook; vectors are kept unless patterns say otherwise."""
        exclude = _vectors(self.model) if self.exclude is None else self.exclude
        return super().make_tying(exclude=exclude, **options)

    def phases_of(self, tying: Tying) -> Sequence[Phase]:
        """Pruning in rounds until `harden()`, then shared values."""
        rounds = PruneInRounds(tying, self.quality, self.prune_every, self.prune_rounds)
        return [rounds, Frozen(tying, prepare=lambda: tying.cluster("even"), shared="sum")]


class PruneInRounds(Pruned):
    """Training that prunes every so many steps, a little more each time."""

    def __init__(self, tying: Tying, quality: Numbers, every: int, rounds: int) -> None:
        super().__init__(tying)
        names = [name for group in tying.groups for name in group.members]
        self.quality = by_name("quality", quality, names)
        self.every, self.rounds = every, rounds

    def after_step(self, step: Step) -> None:
        """Keep zeros, and prune when a round is due."""
        super().after_step(step)
        done, rest = divmod(self.step, self.every)
        if step.ends_round and rest == 0 and done <= self.rounds:
            self._prune_all(done / self.rounds)

    def leave(self) -> None:
        """Prune to the full quality if rounds are left."""
        if self.step < self.every * self.rounds:
            self._prune_all(1.0)

    def _prune_all(self, share: float) -> None:
        for group in self.tying.groups:
            for name, parameter in group.members.items():
                deviation = float(parameter.detach().double().std(correction=0))
                self.prune(group, name, share * self.quality[name] * deviation)


def _vectors(model: nn.Module) -> list[str]:
    named = unwrapped(model).named_parameters()
    return [original_name(name) for name, parameter in named if parameter.dim() < 2]
