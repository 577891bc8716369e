"""Sparse Variational Dropout: each weight learns its own noise, and noisy weights are zero.

Takes     a model and settings.
Gives     what `NoisyMethod` needs: a Gaussian for each weight and its KL to the log-uniform prior.
Paper     Molchanov, Ashukha, Vetrov 2017; section 4 of ours compares with it.
Unaware   of the training loop, the data and the file.

A weight is N(theta, sigma²): theta is the model's own parameter, log sigma² an extra one. The KL
depends only on log alpha = log sigma² − log theta² and falls as alpha grows, so weights that the
data does not need become all noise. From `threshold` on their means are zero, during training as
well; in convolutions their noise is zero too.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from reefknot.lab.baselines.noisy import (
    Layer,
    NoisyLayer,
    NoisyMethod,
    apply,
    draw,
    log_alpha,
    log_uniform_kl,
)
from reefknot.methods.settings import are_clusters, is_any_number, setting
from reefknot.tying import NumClusters, Tying

CLIP = 8.0  # |log alpha| is clipped to this, in the KL and in the noise


class DropoutLayer(NoisyLayer):
    """Weights N(theta, sigma²), one sigma each; the bias has no noise."""

    def __init__(self, name: str, layer: Layer, settings: "SparseVD") -> None:
        super().__init__(name, layer)
        self.threshold = settings.threshold
        start = torch.full_like(layer.weight, settings.initial_log_variance)
        self.log_variance = self.learn("log_variance", start)

    def log_alpha(self) -> Tensor:
        """Log alpha of each weight, clipped."""
        return log_alpha(self.layer.weight, self.log_variance).clamp(-CLIP, CLIP)

    def sample(self, x: Tensor) -> Tensor:
        """Draw each output from its Gaussian, whose mean and variance are sums over weights."""
        weight, bias = self.means()
        noisy = self.layer.weight if isinstance(self.layer, nn.Linear) else weight
        variance = self.log_alpha().exp() * noisy.square()
        return draw(
            apply(self.layer, x, weight, bias), apply(self.layer, x.square(), variance, None)
        )

    def means(self) -> tuple[Tensor, Tensor | None]:
        """Theta, and zero where log alpha has reached the threshold."""
        alive = self.log_alpha() < self.threshold
        return self.layer.weight * alive, self.layer.bias

    def kl(self) -> Tensor:
        """The KL divergence from the log-uniform prior."""
        return log_uniform_kl(self.log_alpha()).sum()


class SparseVD(NoisyMethod):
    """Sparse Variational Dropout: a learned noise for each weight, noisy weights are zero."""

    name: ClassVar[str] = "sparse_vd"

    num_clusters: NumClusters = setting(
        default=33,
        doc="K, zero included, or a table from group names to K",
        check=are_clusters(least=2),
        kw_only=False,
    )
    threshold: float = setting(
        default=3.0,
        doc="weights with log alpha at or above this are zero",
        check=is_any_number,
        kw_only=False,
    )
    initial_log_variance: float = setting(
        default=-10.0,
        doc="log sigma² of every weight at the start",
        check=is_any_number,
        kw_only=False,
    )

    def noisy_layers(self, layers: Mapping[str, Layer], tying: Tying) -> Sequence[NoisyLayer]:
        """A Gaussian for each weight."""
        return [DropoutLayer(name, layer, self) for name, layer in layers.items()]
