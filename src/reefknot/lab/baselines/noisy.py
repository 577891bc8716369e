"""Methods that train a distribution for each weight instead of a value.

Takes     a model, and a `NoisyLayer` for each of its linear and convolutional layers.
Gives     layers that draw fresh noise at each training step, KL / N as the penalty, and plain
          layers with pruned means and shared values at the end.
Paper     Kingma et al. 2015 (local reparametrization), Molchanov et al. 2017 (the fit of the KL).
Unaware   of which distributions a method uses, and of when it prunes.

The means are the model's own parameters. All other learned parameters are held here and given to
the optimizer by `parameter_groups`, so that the keys of the state dict do not change.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from reefknot.errors import TyingError
from reefknot.methods import TyingMethod
from reefknot.methods.settings import is_count, setting
from reefknot.phases import Frozen, Phase, Step, unshare_grad_
from reefknot.shrinking import dead_elements
from reefknot.tying import NORM_LAYERS, Saved, Tying, ops, original_name, saved_tensor

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d

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
    ops.flat(noise).normal_()  # eight times as fast as `randn_like` for channels_last
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

    def limit_(self) -> None:  # noqa: B027  most layers have no bounds
        """Clamp what is learned after a step, if the method needs that."""

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
    """A method that trains noisy layers until `harden()`, and then shared values.

    Every included weight of a Linear or a convolution (not transposed) gets noise. Biases and the
    parameters of norm layers have no noise unless the method says otherwise, and share values from
    `harden` on. Any other included parameter is refused.
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

    @abstractmethod
    def noisy_layers(self, layers: Mapping[str, Layer], tying: Tying) -> Sequence[NoisyLayer]:
        """The method's own kind of noisy layer for each of these."""

    def phases_of(self, tying: Tying) -> Sequence[Phase]:
        """Noise until `harden()`, then shared values."""
        layers = _layers_to_tie(tying, self.name)
        noise = Noise(tying, self.noisy_layers(layers, tying), self)
        return [noise, Frozen(tying, prepare=tying.cluster)]


class Noise(Phase):
    """Training of noisy layers, with KL / N as the penalty."""

    name = "noise"

    def __init__(self, tying: Tying, layers: Sequence[NoisyLayer], settings: NoisyMethod) -> None:
        super().__init__(tying)
        self.layers = list(layers)
        self.settings = settings

    def parameter_groups(self) -> list[dict[str, Any]]:
        """All parameters of the distributions except the means."""
        learned = [parameter for layer in self.layers for parameter in layer.learned.values()]
        factor = self.settings.noise_lr_factor
        return [{"params": learned, "lr_factor": factor, "weight_decay": 0.0}]

    def set_active(self, is_active: bool) -> None:
        """Give the layers their noise, or take it away."""
        for layer in self.layers:
            layer.install() if is_active else layer.remove()

    def kl_weight(self) -> float:
        """0 until `warmup_start`, then a linear warm-up to 1 over `warmup_steps` steps."""
        start = self.settings.warmup_start
        if self.step < start:
            return 0.0
        return min(1.0, (self.step - start + 1) / max(1, self.settings.warmup_steps))

    def penalty(self) -> Tensor | None:
        """The KL of all layers per example, times its current weight; None if that is 0."""
        weight = self.kl_weight()
        if not weight:
            return None
        kl = torch.stack([layer.kl() for layer in self.layers]).sum()
        return kl * (weight / self.settings.num_examples)

    def before_step(self, step: Step) -> None:
        """Add the gradient of the penalty."""
        if not step.starts_round:
            return
        with torch.enable_grad():
            penalty = self.penalty()
            if penalty is not None:
                learned = (p for layer in self.layers for p in layer.learned.values())
                for parameter in (*self.tying.model.parameters(), *learned):
                    unshare_grad_(parameter)
                (penalty * step.grad_scale).backward()

    @torch.no_grad()
    def after_step(self, step: Step) -> None:
        """Keep what is learned within the bounds of its layer."""
        for layer in self.layers:
            layer.limit_()

    def leave(self) -> None:
        """Prune: the means stay, and with an example input no weight of a dead unit."""
        for layer in self.layers:
            layer.fold_()
        self.set_active(False)
        if self.settings.example_input is not None:
            zero_dead_(self.tying.model, self.settings.example_input)

    # -- reading and saving -----------------------------------------------------------------

    def state_dict(self) -> Saved:
        """The step, and the distributions."""
        learned = {key: value.detach().clone() for key, value in self._learned()}
        return super().state_dict() | learned

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved."""
        super().load_state_dict(state)
        for key, parameter in self._learned():
            value = saved_tensor(state, key, dtype=parameter.dtype, shape=parameter.shape)
            parameter.detach().copy_(value)

    def _learned(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Learned parameters by key.

        Keys have the layer's number: its name may contain a slash, which separates group keys.
        """
        for number, layer in enumerate(self.layers):
            for name, parameter in layer.learned.items():
                yield f"noise.{number}.{name}", parameter

    @torch.no_grad()
    def density(self) -> float:
        """The non-zero fraction of the trainable parameters, as hardening now would leave it."""
        alive = {}
        for noisy in self.layers:
            own_values = (noisy.layer.weight, noisy.layer.bias)
            for own, mean in zip(own_values, noisy.means(), strict=True):
                if own is not None and mean is not None:
                    alive[id(own)] = int(torch.count_nonzero(mean))
        trained = [p for p in self.tying.model.parameters() if p.requires_grad]
        left = sum(alive.get(id(p), int(torch.count_nonzero(p))) for p in trained)
        return left / sum(p.numel() for p in trained)


@torch.no_grad()
def zero_dead_(model: nn.Module, example_input: Any) -> None:
    """Zero all weights of dead units: those whose incoming or outgoing weights are all zero."""
    named = dict(model.named_parameters(remove_duplicate=False))
    for name, dead in dead_elements(model, example_input).items():
        if name in named:
            named[name].masked_fill_(dead, 0.0)


def is_tied(name: str, tying: Tying) -> bool:
    """Whether a parameter of this name is tied."""
    return any(name.removeprefix(".") in group.members for group in tying.groups)


def _layers_to_tie(tying: Tying, method: str) -> dict[str, Layer]:
    """The layers that get noise; an error names all parameters that cannot have noise."""
    refused = {n: why for n, why in _refusals(tying.model) if is_tied(n, tying)}
    if refused:
        reasons = "; ".join(f"{name} ({why})" for name, why in refused.items())
        raise TyingError(
            f"{method} can put no noise on {reasons}; exclude them, or take another method"
        )
    layers = {
        original_name(name): module
        for name, module in tying.model.named_modules()
        if isinstance(module, Layer) and is_tied(f"{original_name(name)}.weight", tying)
    }
    if not layers:
        raise TyingError(f"{method} needs a Linear or a convolution, and found none to tie")
    return layers


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
    known = any(type(module).forward is kind.forward for kind in get_args(Layer))
    return not known or "forward" in vars(module)
