"""A mixture of Gaussians as the prior of weights, one component fixed at zero.

Takes     weights, the number of components, and Gamma priors of the components' precisions.
Gives     the gradients of -log p, computed in chunks; and at the end values and an assignment.
Paper     section 1 names it as prior work: Nowlan and Hinton (1992), Ullrich et al. (2017).
Unaware   of groups, steps and optimizers.

Component 0 has mean 0 and a fixed weight. The others share the rest: their weights are a softmax
of `log_weights`. Everything is computed in chunks of `PIECE` weights, so that no tensor with an
entry for each weight and component is ever allocated.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

PIECE = 1 << 12  # weights per chunk; with 17 float32 components, a quarter MB
SMALLEST = -60.0  # responsibilities are clamped to exp(-60): denormal numbers are slow


class Gamma(NamedTuple):
    """A Gamma distribution, by shape and rate."""

    shape: float
    rate: float

    def slope(self, log_values: Tensor) -> Tensor:
        """The derivative of -log p(value) with respect to the logarithm of the value."""
        return self.rate * log_values.exp() - (self.shape - 1)


class Components(NamedTuple):
    """Means, precisions and weights of Gaussians, in float64."""

    means: np.ndarray
    precisions: np.ndarray
    weights: np.ndarray


class Mixture:
    """The prior: `means`, `log_precisions` and `log_weights` are learned, its `parameters`."""

    def __init__(
        self,
        weights: Tensor,
        num_components: int,
        *,
        zero_weight: float,
        std: float,
        zero_prior: Gamma,
        prior: Gamma,
    ) -> None:
        """Means evenly over the range of the weights, all with this standard deviation."""
        low, high = float(weights.min()), float(weights.max())
        even = torch.linspace(low, high, num_components - 1, dtype=torch.float64)
        log_precisions = torch.full((num_components,), -2 * math.log(std))
        real = torch.promote_types(weights.dtype, torch.float32)
        log_weights = torch.zeros(num_components - 1)
        starts = {"means": even, "log_precisions": log_precisions, "log_weights": log_weights}
        self.parameters = {
            name: nn.Parameter(start.to(weights.device, real)) for name, start in starts.items()
        }
        self.means, self.log_precisions, self.log_weights = self.parameters.values()
        self.zero_weight, self.zero_prior, self.prior = zero_weight, zero_prior, prior

    @torch.no_grad()
    def gradients(self, rows: list[Tensor], scale: float) -> tuple[list[Tensor], list[Tensor]]:
        """The gradients of scale·(-log p of all weights and of the precisions).

        First with respect to each row of weights, then to means, log-precisions and log-weights.
        """
        precisions = self.log_precisions.exp()
        # For each component: the sums of responsibility, of it times distance, times its square.
        sums = torch.zeros(3, len(precisions), dtype=torch.float64, device=precisions.device)
        slopes = []
        for row in rows:
            slope = torch.empty_like(row)
            for place, joint, away in self._pieces(row):
                share = _shares(joint)
                weighted = share * away
                slope[place] = (precisions @ weighted) * scale
                sums[0] += share.sum(1)
                sums[1] += weighted.sum(1)
                sums[2] += (weighted * away).sum(1)
            slopes.append(slope)
        by_mixture = self._by_mixture(sums, precisions.double())
        return slopes, [(scale * g).to(precisions.dtype) for g in by_mixture]

    def _by_mixture(self, sums: Tensor, precisions: Tensor) -> list[Tensor]:
        share, away, square = sums
        log_precisions = self.log_precisions.double()
        by_precision = (precisions * square - share) / 2
        by_precision[:1] += self.zero_prior.slope(log_precisions[:1])
        by_precision[1:] += self.prior.slope(log_precisions[1:])
        fractions = self.log_weights.double().softmax(0)
        by_weight = fractions * share[1:].sum() - share[1:]
        return [-(precisions * away)[1:], by_precision, by_weight]

    def _pieces(self, row: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """For each chunk of a row: its slice, log p(w, component), and w - mean."""
        means, logs = self._with_zero()
        halves = self.log_precisions.exp() / 2
        logs = logs + (self.log_precisions - math.log(2 * math.pi)) / 2
        for begin in range(0, len(row), PIECE):
            place = slice(begin, begin + PIECE)
            away = row[place].to(means.dtype) - means[:, None]
            yield place, (away * away).mul_(-halves[:, None]).add_(logs[:, None]), away

    def _with_zero(self) -> tuple[Tensor, Tensor]:
        """All means and all log-weights, the zero component first."""
        means = torch.cat([self.means.new_zeros(1), self.means])
        rest = self.log_weights.log_softmax(0) + math.log1p(-self.zero_weight)
        return means, torch.cat([rest.new_full((1,), math.log(self.zero_weight)), rest])

    # -- the end ----------------------------------------------------------------------------

    @torch.no_grad()
    def components(self) -> Components:
        """The current components, the zero component first."""
        means, logs = self._with_zero()
        found = (means, self.log_precisions.exp(), logs.exp())
        return Components(*(values.double().cpu().numpy() for values in found))


def _shares(joint: Tensor) -> Tensor:
    """The responsibility of each component for each weight: a softmax over components."""
    shares = joint.sub_(joint.amax(0)).clamp_(min=SMALLEST).exp_()
    return shares.div_(shares.sum(0))


def divergence(components: Components, i: int, j: int) -> float:
    """The symmetric Kullback-Leibler divergence of two components, KL(i, j) + KL(j, i)."""
    means, precisions, _ = components
    ratio = precisions[i] / precisions[j]
    apart = (means[i] - means[j]) ** 2 * (precisions[i] + precisions[j])
    return float((ratio + 1 / ratio - 2 + apart) / 2)


def merged(components: Components, most: int, below: float) -> Components:
    """Merge components until there are at most `most`, and no two diverge less than `below`.

    The two that diverge least are merged, preserving weight, mean and variance, again and again.
    The result is ascending.
    """
    current = _ascending(components)
    while len(current.means) > 1:
        count = len(current.means)
        least, i, j = min((divergence(current, i, j), i, j) for j in range(count) for i in range(j))
        if least >= below and count <= most:
            break
        current = _ascending(_joined(current, i, j))
    return current


def _ascending(components: Components) -> Components:
    order = np.argsort(components.means, kind="stable")
    return Components(*(values[order] for values in components))


def _joined(components: Components, i: int, j: int) -> Components:
    """Merge component j into component i, with i < j."""
    means, precisions, weights = (values[[i, j]] for values in components)
    weight = weights.sum()
    mean = weights @ means / weight
    variance = weights @ (1 / precisions + (means - mean) ** 2) / weight
    kept = Components(*(np.delete(values, j) for values in components))
    kept.means[i], kept.precisions[i], kept.weights[i] = mean, 1 / variance, weight
    return kept


def most_likely(row: Tensor, components: Components) -> np.ndarray:
    """The component with the highest responsibility for each weight of a row."""
    means, precisions, weights = (torch.from_numpy(v).to(row.device) for v in components)
    logs = (weights.log() + precisions.log() / 2)[:, None]
    found = np.empty(len(row), np.int64)
    for begin in range(0, len(row), PIECE):
        place = slice(begin, begin + PIECE)
        away = row[place].double() - means[:, None]
        joint = logs - away * away * precisions[:, None] / 2
        found[place] = joint.argmax(0).cpu().numpy()
    return found
