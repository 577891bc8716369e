"""Sparse Variational Dropout: each weight learns its own noise, and noisy weights are zero.

Takes     a model and settings.
Gives     what `NoisyMethod` needs: a Gaussian for each weight and its KL to the log-uniform prior.
Paper     Molchanov, Ashukha, Vetrov 2017; section 4 of ours compares with it.
Unaware   of the training loop, the data and the file.

A weight is N(theta, sigma²): theta is the model's own parameter, log sigma² an extra one. The KL
depends on log alpha = log sigma² − log theta² alone and falls as alpha grows, so that weights which
the data does not need drown in noise. From `threshold` on they are zero.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reefknot.methods.noisy import (
    Layer,
    NoisyLayer,
    NoisyMethod,
    apply,
    draw,
    log_alpha,
    log_uniform_kl,
)
from reefknot.methods.settings import real_mistakes
from reefknot.methods.tied import NumClusters
from reefknot.tying.selection import NETWORK, Norms, Scope

CLIP = 8.0  # of log alpha in the KL: beyond it nothing is gained


class DropoutLayer(NoisyLayer):
    """Weights N(theta, sigma²), one sigma each; the bias has no noise."""

    def __init__(
        self, name: str, layer: Layer, *, initial_log_variance: float, threshold: float
    ) -> None:
        super().__init__(name, layer)
        self.threshold = threshold
        start = torch.full_like(layer.weight, initial_log_variance)
        self.log_variance = self.learn("log_variance", start)

    def log_alpha(self) -> Tensor:
        """Of each weight, clipped."""
        return log_alpha(self.layer.weight, self.log_variance).clamp(-CLIP, CLIP)

    def sample(self, x: Tensor) -> Tensor:
        """Each output is a Gaussian: its mean and variance are sums over the weights'."""
        mean = apply(self.layer, x, self.layer.weight, self.layer.bias)
        return draw(mean, apply(self.layer, x.square(), self.log_variance.exp(), None))

    def means(self) -> tuple[Tensor, Tensor | None]:
        """Theta, and zero where log alpha has reached the threshold."""
        alive = self.log_alpha() < self.threshold
        return self.layer.weight * alive, self.layer.bias

    def kl(self) -> Tensor:
        """To the log-uniform prior."""
        return log_uniform_kl(self.log_alpha()).sum()


class SparseVD(NoisyMethod):
    """Sparse Variational Dropout: a learned noise for each weight, noisy weights are zero.

    Args:
        model: its layers with noise are Linear, Conv1d, Conv2d and Conv3d; norms and biases are
            only tied; a parameter elsewhere must be excluded. State-dict keys stay as they are.
        num_examples: training examples; the KL is divided by it.
        num_clusters: K, zero included, or a mapping from group name to K.
        threshold: log alpha from which on a weight is zero.
        initial_log_variance: log sigma² of every weight at the start.
        warmup_start: steps without the KL.
        warmup_steps: steps in which its weight then grows to 1.
        scope: which parameters share a codebook: "network", "tensor", or a mapping from group
            names to name patterns, of which the first match counts.
        include: patterns of the parameters to treat and tie.
        exclude: patterns of the parameters to leave as they are.
        norms: scales and shifts of norm layers: with a codebook of their "own" and never pruned,
            "tied" with everything else, or "kept" exact.
    """

    name: ClassVar[str] = "sparse_vd"

    def __init__(
        self,
        model: nn.Module,
        num_examples: int,
        num_clusters: NumClusters = 33,
        threshold: float = 3.0,
        initial_log_variance: float = -10.0,
        *,
        warmup_start: int = 0,
        warmup_steps: int = 0,
        scope: Scope = NETWORK,
        include: Sequence[str] | str = ("*",),
        exclude: Sequence[str] | str = (),
        norms: Norms = "own",
    ) -> None:
        super().__init__(
            model,
            {
                "num_examples": num_examples,
                "num_clusters": num_clusters,
                "threshold": threshold,
                "initial_log_variance": initial_log_variance,
                "warmup_start": warmup_start,
                "warmup_steps": warmup_steps,
                "scope": scope,
                "include": include,
                "exclude": exclude,
                "norms": norms,
            },
        )

    @classmethod
    def mistakes(cls, settings: Mapping[str, Any]) -> list[str]:
        """All that is wrong with these settings."""
        found = super().mistakes(settings)
        found += real_mistakes(settings, "threshold", "initial_log_variance")
        return found

    def _noisy(self, layers: Mapping[str, Layer]) -> list[NoisyLayer]:
        own = {key: float(self.settings[key]) for key in ("threshold", "initial_log_variance")}
        return [DropoutLayer(name, layer, **own) for name, layer in layers.items()]
