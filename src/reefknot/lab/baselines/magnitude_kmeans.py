"""Magnitude pruning and k-means: the baseline of compression without training.

Takes     a model, the fraction of its weights to keep, and K.
Gives     the largest weights at K - 1 values, the others at zero.
Paper     the start of section 1: the simple pipeline that training improves on.
Unaware   of the training loop, the data and the file.

The soft phase is plain training, and may have no steps at all.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch

from reefknot.lab.baselines.pruned import Pruned
from reefknot.methods import TyingMethod
from reefknot.methods.settings import is_number, setting
from reefknot.phases import Frozen, Phase
from reefknot.tying import Group, Tying, ops


class MagnitudeKmeans(TyingMethod):
    """No penalty: keep the largest weights, then k-means."""

    name: ClassVar[str] = "magnitude_kmeans"

    density: float = setting(
        default=0.1,
        doc="the share of each group's weights that stay; the smallest go",
        check=is_number(most=1.0),
        kw_only=False,
    )

    def phases_of(self, tying: Tying) -> Sequence[Phase]:
        """Plain training until `harden()` prunes, then shared values."""
        return [KeepLargest(tying, self.density), Frozen(tying, prepare=tying.cluster)]


class KeepLargest(Pruned):
    """Plain training, after which the smallest weights of each group are pruned."""

    def __init__(self, tying: Tying, share: float) -> None:
        super().__init__(tying)
        self.share = share  # of each group's weights, which stay

    def leave(self) -> None:
        """Prune."""
        for group in self.tying.groups:
            threshold = self._threshold(group)
            for name in group.members:
                self.prune(group, name, threshold)

    def _threshold(self, group: Group) -> float:
        """The magnitude of the smallest weight that is kept."""
        magnitudes = torch.cat([ops.flat(p).double().abs() for p in group.members.values()])
        pruned = min(round((1 - self.share) * len(magnitudes)), len(magnitudes) - 1)
        return float(magnitudes.kthvalue(pruned + 1).values)
