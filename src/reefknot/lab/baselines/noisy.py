"""The base class of methods that train a distribution for each weight instead of a value.

Takes     a model, and a `NoisyLayer` for each of its linear and convolutional layers.
Gives     layers that draw fresh noise at each training step, KL / N as the penalty, and plain
          layers with pruned means and shared values at the end.
Paper     Kingma et al. 2015 (local reparametrization), Molchanov et al. 2017 (the fit of the KL).
Unaware   of which distributions a method uses, and of when it prunes.

The means are the model's own parameters. All other learned parameters are held here and given to
the optimizer by `extra_parameters`, so that the keys of the state dict do not change.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from reefknot.errors import TyingError
from reefknot.methods.method import Saved
from reefknot.methods.settings import is_count, setting
from reefknot.methods.tied import TyingMethod
from reefknot.tying.ops import flat
from reefknot.tying.saved import saved_tensor
from reefknot.tying.selection import NORM_LAYERS, original_name

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d

_LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TINY = 1e-8  # keeps logarithms and roots of zero finite


# -- the mathematics ------------------------------------------------------------------------


def log_alpha(mean: Tensor, log_variance: Tensor) -> Tensor:
    """The noise-to-signal ratio as a logarithm: log (variance / mean²)."""
    return log_variance - torch.log(mean.square() + _TINY)


def log_uniform_kl(log_alpha: Tensor) -> Tensor:
    """KL from N(m, alpha·m²) to the log-uniform prior p(w) ~ 1/|w|.

    The prior is improper, so the KL is defined up to a constant, chosen here so that it goes to 0
    as alpha goes to infinity. The sigmoid is Molchanov's fit, accurate to about 0.01.
    """
    return 0.63576 * torch.sigmoid(-1.87320 - 1.48695 * log_alpha) + 0.5 * softplus(-log_alpha)


def unit_gaussian_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL from N(mean, variance) to N(0, 1)."""
    return 0.5 * (mean.square() + log_variance.exp() - log_variance - 1)


def draw(mean: Tensor, variance: Tensor) -> Tensor:
    """A Gaussian sample for each element, from torch's own generator."""
    noise = torch.empty_like(mean)
    flat(noise).normal_()  # eight times as fast as `randn_like` for channels_last
    return mean + torch.sqrt(variance + _TINY) * noise


def apply(layer: Layer, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The output of the layer with this weight and bias."""
    if isinstance(layer, nn.Linear):
        return linear(x, weight, bias)
    return layer._conv_forward(x, weight, bias)


# -- one layer ------------------------------------------------------------------------------


class NoisyLayer(ABC):
    """A layer of the model while its weights are distributions.

    When installed, it replaces the layer's `forward`: noise in training, pruned means in
    evaluation. A deep copy of the model copies it too.
    """

    def __init__(self, name: str, layer: Layer) -> None:
        self.name = name
        self.layer = layer
        self.learned: dict[str, nn.Parameter] = {}  # everything that is not in the layer itself

    def learn(self, name: str, value: Tensor) -> nn.Parameter:
        """Add a learned parameter of the distributions, with this initial value."""
        self.learned[name] = nn.Parameter(value.detach().clone())
        return self.learned[name]

    @abstractmethod
    def sample(self, x: Tensor) -> Tensor:
        """The layer's output with fresh noise, by local reparametrization."""

    @abstractmethod
    def means(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias as hardening now would leave them: means, and zeros where pruned."""

    @abstractmethod
    def kl(self) -> Tensor:
        """The KL divergence of all distributions of the layer from their priors, a scalar."""

    def forward(self, x: Tensor) -> Tensor:
        """The replacement of the layer's `forward`."""
        if self.layer.training:
            return self.sample(x)
        return apply(self.layer, x, *self.means())

    def install(self) -> None:
        """Replace the layer's `forward`."""
        vars(self.layer)["forward"] = self.forward

    def remove(self) -> None:
        """Restore the layer's own `forward`."""
        vars(self.layer).pop("forward", None)

    @torch.no_grad()
    def fold_(self) -> None:
        """Write the pruned means into the layer."""
        weight, bias = self.means()
        self.layer.weight.copy_(weight)
        if bias is not None and self.layer.bias is not None:
            self.layer.bias.copy_(bias)


# -- the method -----------------------------------------------------------------------------


class NoisyMethod(TyingMethod):
    """A method with noisy layers: noise in the soft phase, tied as in `TyingMethod` in the hard.

    Every included weight of a Linear or a convolution (not transposed) gets noise. Biases and the
    parameters of norm layers have no noise in the soft phase unless the method says otherwise, and
    share values from `harden` on. Any other included parameter is refused.
    """

    noise_lr_factor: ClassVar[float] = 1.0  # for all learned parameters but the means

    num_examples: int = setting(
        doc="the number of training examples, which the KL term is divided by (54000 for mnist "
        "without its validation set)",
        check=is_count("a whole number, at least 1", least=1),
    )
    warmup_start: int = setting(
        default=0, doc="steps without the KL", check=is_count("a whole number of steps")
    )
    warmup_steps: int = setting(
        default=0,
        doc="steps in which its weight then grows to 1",
        check=is_count("a whole number of steps"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # After all checks, so that a refused model is left as it was.
        self.layers = self._noisy(self._layers())
        for layer in self.layers:
            layer.install()

    def _noisy(self, layers: Mapping[str, Layer]) -> list[NoisyLayer]:
        """The method's own kind of noisy layer for each of these."""
        raise NotImplementedError

    def _layers(self) -> dict[str, Layer]:
        """The layers that get noise; an error names all parameters that cannot have noise."""
        refused = {n: why for n, why in _refusals(self.model) if self._is_tied(n)}
        if refused:
            reasons = "; ".join(f"{name} ({why})" for name, why in refused.items())
            raise TyingError(
                f"{self.name} can put no noise on {reasons}; exclude them, or take another method"
            )
        layers = {
            original_name(name): module
            for name, module in self.model.named_modules()
            if isinstance(module, Layer) and self._is_tied(f"{original_name(name)}.weight")
        }
        if not layers:
            raise TyingError(f"{self.name} needs a Linear or a convolution, and found none to tie")
        return layers

    def _is_tied(self, name: str) -> bool:
        return any(name.removeprefix(".") in group.members for group in self.groups)

    # -- training ---------------------------------------------------------------------------

    def extra_parameters(self) -> list[nn.Parameter]:
        """All parameters of the distributions except the means."""
        return [parameter for layer in self.layers for parameter in layer.learned.values()]

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The model's parameters, and the other learned ones at their own learning rate."""
        means = [p for p in self.model.parameters() if p.requires_grad]
        learned = {"params": self.extra_parameters(), "lr_factor": self.noise_lr_factor}
        return [{"params": means}, learned | {"weight_decay": 0.0}]

    def kl_weight(self) -> float:
        """0 until `warmup_start`, then a linear warm-up to 1 over `warmup_steps` steps."""
        if self.step < self.warmup_start:
            return 0.0
        return min(1.0, (self.step - self.warmup_start + 1) / max(1, self.warmup_steps))

    def penalty(self) -> Tensor | None:
        """The KL of all layers per example, times its current weight."""
        weight = self.kl_weight()
        if self.hard or not weight:
            return None
        kl = torch.stack([layer.kl() for layer in self.layers]).sum()
        return kl * (weight / self.num_examples)

    def harden(self) -> None:
        """Prune, remove the noise, and tie the weights: zeros, and k-means on the others.

        With an example input, dead units are removed with all of their weights.
        """
        self._require_soft()
        for layer in self.layers:
            layer.fold_()
            layer.remove()
        self.zero_dead_()
        for group in self.groups:
            group.start_sparse("kmeans")
        self._hardened()

    # -- reading and saving -----------------------------------------------------------------

    def state_dict(self) -> Saved:
        """Phase and step, the distributions, centers and assignments."""
        saved = super().state_dict()
        return saved | {key: value.detach().clone() for key, value in self._learned()}

    def _load(self, state: Mapping[str, Tensor | int | float]) -> None:
        super()._load(state)
        for key, parameter in self._learned():
            value = saved_tensor(state, key, dtype=parameter.dtype, shape=parameter.shape)
            parameter.detach().copy_(value)
        for layer in self.layers:
            layer.remove() if self.hard else layer.install()

    def _learned(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Learned parameters by key.

        Keys have the layer's number: its name may contain a slash, which separates group keys.
        """
        for number, layer in enumerate(self.layers):
            for name, parameter in layer.learned.items():
                yield f"noise.{number}.{name}", parameter

    def _density(self) -> float:
        if self.hard:
            return super()._density()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        alive = self._alive_counts()
        left = sum(alive.get(id(p), int(torch.count_nonzero(p))) for p in trained)
        return left / sum(p.numel() for p in trained)

    @torch.no_grad()
    def _alive_counts(self) -> dict[int, int]:
        """How many elements of each noisy parameter hardening would keep, by `id`."""
        counts = {}
        for noisy in self.layers:
            for own, mean in zip(
                (noisy.layer.weight, noisy.layer.bias), noisy.means(), strict=True
            ):
                if own is not None and mean is not None:
                    counts[id(own)] = int(torch.count_nonzero(mean))
        return counts


def _refusals(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Parameters that can neither have noise nor be left without it, and why."""
    first: dict[int, str] = {}  # a shared parameter is known by its first name
    for prefix, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            own = original_name(f"{prefix}.{key}").removeprefix(".")
            name = first.setdefault(id(parameter), own)
            if isinstance(module, NORM_LAYERS):
                continue
            if not isinstance(module, Layer) or key not in ("weight", "bias"):
                yield name, f"in a {type(module).__name__}"
            elif _own_forward(module):
                yield name, "its layer has a forward of its own"
            elif name != own:
                yield name, f"shared with {own}"


def _own_forward(module: nn.Module) -> bool:
    """Whether the layer's `forward` is not torch's, by subclassing or on the instance."""
    known = any(type(module).forward is kind.forward for kind in _LAYERS)
    return not known or "forward" in vars(module)
