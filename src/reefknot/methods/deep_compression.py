"""Deep Compression (Han, Mao and Dally, 2016), the first row of the paper's table.

Takes     a model, preferably trained; how much to prune, in how many rounds; values per tensor.
Gives     pruned weights, each tensor with a codebook of its own.
Paper     section 4.3, Table 1; section 3.2 on the difference of averaged and summed gradients.
Unaware   of the training loop, the data and the file.

A weight is pruned when it is smaller than a quality factor times the standard deviation of its
tensor, zeros included. The factor rises linearly over the rounds, with training between them.
Hardening clusters what is left of each tensor by k-means from evenly spread centers. Then the
shared values are trained: each with the sum of its weights' gradients, where APT has the mean.
Biases and other vectors are never pruned or clustered by default: they are kept exactly.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from torch import nn

from reefknot.errors import ConfigError
from reefknot.methods.hooks import Step
from reefknot.methods.pruned import PruningMethod
from reefknot.methods.settings import (
    clusters_mistakes,
    count_mistakes,
    number_mistakes,
    selection_mistakes,
)
from reefknot.methods.tied import NumClusters
from reefknot.tying.group import Shared
from reefknot.tying.selection import TENSOR, Norms, Scope, original_name, unwrapped

Quality = float | Mapping[str, float]


class DeepCompression(PruningMethod):
    """Deep Compression: iterated magnitude pruning, k-means per tensor, summed gradients.

    Args:
        model: any module, best a trained one; its state-dict keys stay as they are.
        num_clusters: values of each tensor, zero included, or a mapping from tensor to number.
        quality: a weight below quality times the tensor's standard deviation is pruned; a
            number, or a mapping from name patterns to numbers, of which the first match counts.
        prune_every: steps between two rounds of pruning; the first is after this many steps.
        prune_rounds: how many rounds; round r of R prunes with quality·r/R. If training hardens
            before the last one, that is made up for.
        scope: which parameters share a codebook: "tensor", "network", or a mapping from group
            names to name patterns, of which the first match counts.
        include: patterns of the parameters to compress.
        exclude: patterns of the parameters to keep exactly; None: all with less than two
            dimensions, such as biases.
        norms: scales and shifts of norm layers: with a codebook of their "own" and never pruned,
            "tied" with everything else, or "kept" exact.
    """

    name: ClassVar[str] = "deep_compression"
    shared: ClassVar[Shared] = "sum"

    def __init__(
        self,
        model: nn.Module,
        num_clusters: NumClusters = 64,
        quality: Quality = 1.0,
        *,
        prune_every: int = 1000,
        prune_rounds: int = 5,
        scope: Scope = TENSOR,
        include: Sequence[str] | str = ("*",),
        exclude: Sequence[str] | str | None = None,
        norms: Norms = "own",
    ) -> None:
        settings = {
            "num_clusters": num_clusters,
            "quality": quality,
            "prune_every": prune_every,
            "prune_rounds": prune_rounds,
            "scope": scope,
            "include": include,
            "exclude": _vectors(model) if exclude is None else exclude,
            "norms": norms,
        }
        super().__init__(model, settings)
        self.prune_every, self.prune_rounds = prune_every, prune_rounds
        self.quality = _quality_by_name(quality, [n for g in self.groups for n in g.members])

    @classmethod
    def mistakes(cls, settings: Mapping[str, Any]) -> list[str]:
        """All that is wrong with these settings."""
        quality = settings.get("quality", 1.0)
        table = quality if isinstance(quality, Mapping) else {"": quality}
        qualities = {f"quality.{key}" if key else "quality": v for key, v in table.items()}
        return [
            *clusters_mistakes(settings, least=2),
            *number_mistakes(qualities, *qualities),
            *count_mistakes(settings, "prune_every", "prune_rounds", least=1, meaning="at least 1"),
            *selection_mistakes(settings),
        ]

    # -- training ---------------------------------------------------------------------------

    def after_step(self, step: Step) -> None:
        """Soft phase: keep zeros, now and then prune. Hard phase: tie again."""
        super().after_step(step)
        if self.hard or not step.ends_round:
            return
        rounds, rest = divmod(self.step, self.prune_every)
        if rest == 0 and rounds <= self.prune_rounds:
            self._prune_all(rounds / self.prune_rounds)

    def _prune_all(self, share: float) -> None:
        for group in self.groups:
            for name, parameter in group.members.items():
                deviation = float(parameter.detach().double().std(correction=0))
                self._prune(group, name, share * self.quality[name] * deviation)

    def harden(self) -> None:
        """Prune if a round is still to come; cluster each tensor; freeze the assignment."""
        self._require_soft()
        if self.step < self.prune_every * self.prune_rounds:
            self._prune_all(1.0)
        for group in self.groups:
            group.start_sparse("even")
        self._hardened()


def _vectors(model: nn.Module) -> list[str]:
    named = unwrapped(model).named_parameters()
    return [original_name(name) for name, parameter in named if parameter.dim() < 2]


def _quality_by_name(quality: Quality, names: list[str]) -> dict[str, float]:
    """The factor of each parameter; every parameter must have one, every pattern a parameter."""
    if not isinstance(quality, Mapping):
        return dict.fromkeys(names, float(quality))

    def mistakes() -> Iterator[str]:
        for pattern in quality:
            if not any(fnmatchcase(name, pattern) for name in names):
                yield f"quality names {pattern!r}, which matches none of {names}"
        for name in names:
            if not any(fnmatchcase(name, pattern) for pattern in quality):
                yield f"quality has no entry for {name!r}; give one, or exclude this parameter"

    found = list(mistakes())
    if found:
        raise ConfigError(*found)
    return {
        name: next(float(q) for pattern, q in quality.items() if fnmatchcase(name, pattern))
        for name in names
    }
