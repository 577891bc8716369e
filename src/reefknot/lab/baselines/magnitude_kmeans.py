"""Magnitude pruning and k-means: the baseline of compression without training.

Takes     a model, the fraction of its weights to keep, and K.
Gives     the largest weights at K - 1 values, the others at zero.
Paper     the start of section 1: the simple pipeline that training improves on.
Unaware   of the training loop, the data and the file.

The soft phase is plain training, and may have no steps at all.
"""

from typing import ClassVar

import torch

from reefknot.lab.baselines.pruned import PruningMethod
from reefknot.methods.settings import is_number, setting
from reefknot.tying import ops
from reefknot.tying.group import Group


class MagnitudeKmeans(PruningMethod):
    """No penalty: keep the largest weights, then k-means."""

    name: ClassVar[str] = "magnitude_kmeans"

    density: float = setting(
        default=0.1,
        doc="the share of each group's weights that stay; the smallest go",
        check=is_number(most=1.0),
        kw_only=False,
    )

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
        """The magnitude of the smallest weight that is kept."""
        magnitudes = torch.cat([ops.flat(p).double().abs() for p in group.members.values()])
        pruned = min(round((1 - self.density) * len(magnitudes)), len(magnitudes) - 1)
        return float(magnitudes.kthvalue(pruned + 1).values)
