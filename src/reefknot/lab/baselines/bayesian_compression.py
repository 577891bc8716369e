"""Bayesian Compression: groups of weights share a noisy scale; groups that are noise are pruned.

Takes     a model and settings.
Gives     what `NoisyMethod` needs: Gaussians for weights and biases, a distribution for each
          group's scale, and their KL to the priors.
Paper     Louizos, Ullrich, Welling 2017; section 4 of ours compares with it.
Unaware   of the training loop, the data and the file.

A weight is z·w. The scale z belongs to its group: the weights of one input of a Linear, or of one
output filter of a convolution, its bias among them. w is the model's own parameter plus Gaussian
noise, with the prior N(0, 1); so is the bias of a Linear, which has no scale. Two priors for the
scales:

`gnj`   group normal-Jeffreys: p(z) ~ 1/|z|, posterior N(mu, var). A group is noise when
        log alpha = log var − 2 log |mu| is large.

`ghs`   group horseshoe: z = s·t with half-Cauchy s (of the layer, scale tau) and t (of the group,
        scale 1). A half-Cauchy of scale k is the root of a Gamma(1/2, scale k²) times an inverse
        Gamma(1/2, 1) variable; each of these four has a log-normal posterior, so z has one too:
        log z ~ N(m, v) with m half the sum of the four means, v a quarter of that of the
        variances. The KLs have closed forms. In a group that the data does not need, w returns to
        its prior N(0, 1), and its scale shrinks, because the noise z·w costs less the smaller z is.
        So groups are told apart by the mode of the scale, exp(m − v): a group is noise when
        −log mode = v − m is large. The scale is relative to w ~ N(0, 1), so a layer of small
        weights may need a larger threshold than the others.

Only groups are pruned: every weight of a surviving group is kept, unless its unit is dead on the
other side (`NoisyMethod`). Log-variances and scales must move by nine nats or more, and Adam moves
each by about the sum of its learning rates, so theirs is larger than that of the means.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from reefknot.lab.baselines.by_name import Numbers, are_numbers, by_name
from reefknot.lab.baselines.noisy import (
    Layer,
    NoisyLayer,
    NoisyMethod,
    apply,
    draw,
    is_tied,
    log_alpha,
    log_uniform_kl,
    unit_gaussian_kl,
)
from reefknot.methods.settings import (
    are_clusters,
    is_any_number,
    is_choice,
    is_number,
    setting,
)
from reefknot.tying import NumClusters, Tying

Prior = Literal["gnj", "ghs"]

THRESHOLDS: dict[str, float] = {"gnj": -3.0, "ghs": 2.5}


# -- the mathematics ------------------------------------------------------------------------


def gamma_kl(mean: Tensor, log_variance: Tensor, log_scale: float) -> Tensor:
    """KL from a log-normal, given by the mean and variance of its log, to Gamma(1/2, scale).

    The entropy of the log-normal is mean + (1 + log 2 pi + log variance) / 2, its expectation is
    exp(mean + variance / 2), and log Gamma(1/2) = (log pi) / 2.
    """
    expected = torch.exp(mean + log_variance.exp() / 2 - log_scale)
    return expected - 0.5 * (mean - log_scale + log_variance + 1 + math.log(2))


def inverse_gamma_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL from a log-normal to the inverse Gamma(1/2, 1): its inverse's KL to Gamma(1/2, 1)."""
    return gamma_kl(-mean, log_variance, 0.0)


# -- the distributions of a layer's scales, one per group, in a shape that broadcasts ----------


_LEAST_SCALE = 1e-12  # above 0, because its logarithm is taken


class JeffreysScales:
    """z ~ N(mu, var), with the prior 1/|z|."""

    def __init__(self, owner: NoisyLayer, like: Tensor, initial_log_variance: float) -> None:
        self.mean = owner.learn("scale_mean", torch.ones_like(like))
        start = torch.full_like(like, initial_log_variance)
        self.log_variance = owner.learn("scale_log_variance", start)

    def sample(self, shape: Sequence[int]) -> Tensor:
        """Gaussian samples of this shape, whose last dimensions are the groups'."""
        return draw(self.mean.expand(shape), self.log_variance.exp())

    def means(self) -> Tensor:
        """The Gaussians' means."""
        return self.mean

    def kl(self) -> Tensor:
        """The KL divergence, by Molchanov's fit."""
        return log_uniform_kl(self.noise()).sum()

    def noise(self) -> Tensor:
        """Log alpha, which is compared with the threshold."""
        return log_alpha(self.mean, self.log_variance)


class HorseshoeScales:
    """log z ~ N(m, v): half of log s_a + log s_b + log alpha + log beta, all Gaussian.

    s_a and alpha have Gamma priors, s_b and beta inverse Gamma ones. All scales start at 1; for
    the layer's that means s_a = tau² and s_b = 1 / tau², the cheapest way to make 1 of a small tau.
    """

    def __init__(
        self, owner: NoisyLayer, like: Tensor, initial_log_variance: float, tau: float
    ) -> None:
        self.log_tau2 = 2 * math.log(tau)
        one = like.new_ones((1,) * like.dim())
        self.parts: dict[str, tuple[nn.Parameter, nn.Parameter]] = {
            key: (
                owner.learn(f"{key}_mean", torch.full_like(shaped, start)),
                owner.learn(f"{key}_log_variance", torch.full_like(shaped, initial_log_variance)),
            )
            for key, shaped, start in (
                ("s_a", one, self.log_tau2),
                ("s_b", one, -self.log_tau2),
                ("alpha", like, 0.0),
                ("beta", like, 0.0),
            )
        }

    def sample(self, shape: Sequence[int]) -> Tensor:
        """Log-normal samples; the layer's own scale is drawn once for all groups."""
        for_all = list(shape)
        for_all[-self.parts["alpha"][0].dim()] = 1
        layer_mean, layer_variance = self._log("s_a", "s_b")
        group_mean, group_variance = self._log("alpha", "beta")
        layer = draw(layer_mean.expand(for_all), layer_variance)
        return torch.exp(layer + draw(group_mean.expand(shape), group_variance))

    def means(self) -> Tensor:
        """exp(m + v / 2)."""
        mean, variance = self._log(*self.parts)
        return torch.exp(mean + variance / 2)

    def kl(self) -> Tensor:
        """The KL divergence of the layer's scale and its groups' scales, in closed form."""
        return (
            gamma_kl(*self.parts["s_a"], self.log_tau2).sum()
            + inverse_gamma_kl(*self.parts["s_b"]).sum()
            + gamma_kl(*self.parts["alpha"], 0.0).sum()
            + inverse_gamma_kl(*self.parts["beta"]).sum()
        )

    def noise(self) -> Tensor:
        """−log mode = v − m, which is compared with the threshold."""
        mean, variance = self._log(*self.parts)
        return variance - mean

    def _log(self, *keys: str) -> tuple[Tensor, Tensor]:
        """Mean and variance of half the sum of these logarithms."""
        means = [self.parts[key][0] for key in keys]
        variances = [self.parts[key][1].exp() for key in keys]
        return sum(means[1:], means[0]) / 2, sum(variances[1:], variances[0]) / 4


# -- a layer --------------------------------------------------------------------------------


class ScaledLayer(NoisyLayer):
    """Weights z·w with Gaussian w; z per input of a Linear, per output filter of a convolution."""

    def __init__(
        self,
        name: str,
        layer: Layer,
        settings: "BayesianCompression",
        *,
        noisy_bias: bool,
        threshold: float,
        is_first: bool,
    ) -> None:
        super().__init__(name, layer)
        self.threshold = threshold
        self.max_variance = settings.first_layer_max_variance if is_first else None
        start, like = settings.initial_log_variance, _groups(layer)
        self.log_variance = self.learn("log_variance", torch.full_like(layer.weight, start))
        self.bias_log_variance: nn.Parameter | None = None
        if noisy_bias and layer.bias is not None:
            noisy = torch.full_like(layer.bias, start)
            self.bias_log_variance = self.learn("bias_log_variance", noisy)
        self.scales: JeffreysScales | HorseshoeScales = (
            JeffreysScales(self, like, start)
            if settings.prior == "gnj"
            else HorseshoeScales(self, like, start, settings.global_scale)
        )

    def sample(self, x: Tensor) -> Tensor:
        """Draw scales for each example, and then outputs as Gaussians given the scales."""
        layer = self.layer
        if isinstance(layer, nn.Linear):
            x = x * self.scales.sample(x.shape)
        bias_variance = None if self.bias_log_variance is None else self.bias_log_variance.exp()
        mean = apply(layer, x, layer.weight, layer.bias)
        variance = apply(layer, x.square(), self.log_variance.exp(), bias_variance)
        if not isinstance(layer, nn.Linear):
            places = len(layer.kernel_size)
            z = self.scales.sample((*mean.shape[:-places], *[1] * places))
            mean, variance = mean * z, variance * z.square()
        return draw(mean, variance)

    def means(self) -> tuple[Tensor, Tensor | None]:
        """E[z]·w, and zero where the group is noise."""
        weight, bias = self.layer.weight, self.layer.bias
        scales = self.scales.means() * (self.scales.noise() < self.threshold)
        if isinstance(self.layer, nn.Linear):
            return weight * scales, bias
        return weight * scales.unsqueeze(-1), None if bias is None else bias * scales.flatten()

    def kl(self) -> Tensor:
        """The KL divergence of weights, biases and scales."""
        kl = unit_gaussian_kl(self.layer.weight, self.log_variance).sum() + self.scales.kl()
        if self.layer.bias is not None and self.bias_log_variance is not None:
            kl = kl + unit_gaussian_kl(self.layer.bias, self.bias_log_variance).sum()
        return kl

    def limit_(self) -> None:
        """Clamp the variances of weights and biases to the maximum, if there is one."""
        for own in (self.log_variance, self.bias_log_variance):
            if own is not None and self.max_variance is not None:
                own.clamp_(max=math.log(self.max_variance))


def _groups(layer: Layer) -> Tensor:
    """Zeros in the shape of the layer's scales: one per input, or per filter."""
    if isinstance(layer, nn.Linear):
        return layer.weight.new_zeros(layer.in_features)
    return layer.weight.new_zeros(layer.out_channels, *[1] * len(layer.kernel_size))


# -- the method -----------------------------------------------------------------------------


class BayesianCompression(NoisyMethod):
    """Bayesian Compression: noisy weights, and a noisy scale for each input or filter."""

    name: ClassVar[str] = "bayesian_compression"
    noise_lr_factor: ClassVar[float] = 5.0

    prior: Prior = setting(
        default="gnj",
        doc='of the scales: "gnj" (normal-Jeffreys) or "ghs" (horseshoe)',
        check=is_choice("gnj", "ghs"),
        kw_only=False,
    )
    num_clusters: NumClusters = setting(
        default=33,
        doc="K, zero included, or a table from group names to K",
        check=are_clusters(least=2),
        kw_only=False,
    )
    threshold: Numbers | None = setting(
        default=None,
        doc='groups whose scale has a log alpha ("gnj") or −log mode ("ghs") at or above this are '
        "zero; a number, or a table from patterns of layer names to numbers, of which the first "
        'match counts; None is -3 for "gnj" and 2.5 for "ghs"',
        check=are_numbers(is_any_number),
        kw_only=False,
    )
    initial_log_variance: float = setting(
        default=-9.0, doc="of every weight, bias and scale at the start", check=is_any_number
    )
    first_layer_max_variance: float = setting(
        default=0.04,
        doc="the largest variance of the first layer's weights and biases",
        check=is_number(least=_LEAST_SCALE),
    )
    global_scale: float = setting(
        default=1e-5,
        doc='tau, the prior scale of a layer\'s own half-Cauchy scale ("ghs" alone)',
        check=is_number(least=_LEAST_SCALE),
    )

    def noisy_layers(self, layers: Mapping[str, Layer], tying: Tying) -> Sequence[NoisyLayer]:
        """Gaussians and scales; the first layer's variances are bounded."""
        threshold = THRESHOLDS[self.prior] if self.threshold is None else self.threshold
        thresholds = by_name("threshold", threshold, list(layers))
        return [
            ScaledLayer(
                name,
                layer,
                self,
                noisy_bias=is_tied(f"{name}.bias", tying),
                threshold=thresholds[name],
                is_first=number == 0,
            )
            for number, (name, layer) in enumerate(layers.items())
        ]
