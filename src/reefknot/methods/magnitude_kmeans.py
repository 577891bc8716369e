"""Magnitude pruning and k-means of a network as it is: what compression is without training.

Takes     a model, the share of its weights to keep, and K.
Gives     the largest weights at K - 1 values, the others at zero.
Paper     the first lines of section 1: the simple pipeline that training improves on.
Unaware   of the training loop, the data and the file.

The soft phase trains as if the method were not there, and may have no steps at all.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from reefknot.methods.pruned import PruningMethod
from reefknot.methods.settings import clusters_mistakes, number_mistakes, selection_mistakes
from reefknot.methods.tied import NumClusters
from reefknot.tying import ops
from reefknot.tying.group import Group
from reefknot.tying.selection import NETWORK, Norms, Scope


class MagnitudeKmeans(PruningMethod):
    """No penalty: keep the largest weights, then k-means.

    Args:
        model: any module, best a trained one; its state-dict keys stay as they are.
        num_clusters: K, zero included, or a mapping from group name to K.
        density: the share of each group's weights that stay; the smallest go.
        scope: which parameters share a codebook, and a threshold: "network", "tensor", or a
            mapping from group names to name patterns, of which the first match counts.
        include: patterns of the parameters to tie.
        exclude: patterns of the parameters not to tie.
        norms: scales and shifts of norm layers: with a codebook of their "own" and never pruned,
            "tied" with everything else, or "kept" exact.
    """

    name: ClassVar[str] = "magnitude_kmeans"

    def __init__(
        self,
        model: nn.Module,
        num_clusters: NumClusters = 17,
        density: float = 0.1,
        *,
        scope: Scope = NETWORK,
        include: Sequence[str] | str = ("*",),
        exclude: Sequence[str] | str = (),
        norms: Norms = "own",
    ) -> None:
        settings = {
            "num_clusters": num_clusters,
            "density": density,
            "scope": scope,
            "include": include,
            "exclude": exclude,
            "norms": norms,
        }
        super().__init__(model, settings)
        self.density = float(density)

    @classmethod
    def mistakes(cls, settings: Mapping[str, Any]) -> list[str]:
        """All that is wrong with these settings."""
        found = list(number_mistakes(settings, "density"))
        if not found and settings.get("density", 1) > 1:
            found.append(f"density must be at most 1, found {settings['density']!r}")
        return [*found, *clusters_mistakes(settings, least=2), *selection_mistakes(settings)]

    def harden(self) -> None:
        """Prune, cluster the rest by k-means, freeze the assignment."""
        self._require_soft()
        for group in self.groups:
            threshold = self._threshold(group)
            for name in group.members:
                self._prune(group, name, threshold)
            group.start_sparse("kmeans")
        self._hardened()

    def _threshold(self, group: Group) -> float:
        """The magnitude of the smallest weight that stays."""
        sizes = torch.cat([ops.flat(p).double().abs() for p in group.members.values()])
        going = min(round((1 - self.density) * len(sizes)), len(sizes) - 1)
        return float(sizes.kthvalue(going + 1).values)
