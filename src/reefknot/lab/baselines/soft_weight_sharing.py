"""Soft Weight Sharing (Ullrich, Meeds and Welling, 2017), a row of the paper's table.

Takes     a trained model, the number of examples, and the settings of the mixture prior.
Gives     weights at the means of the mixture's components, most of them at zero.
Paper     section 4.3, Table 1; section 1 on mixtures of Gaussians as priors.
Unaware   of the training loop, the data and the file.

The objective is the mean data loss plus tau/num_examples times -log p(weights, precisions); tau may
grow at first. Its gradient is computed by hand, in chunks (`mixture.py`), and added before
each step: autograd would store several numbers for each weight and component. Hardening merges
similar components, moves the mean nearest to zero to zero, and gives each weight the mean of the
component with the highest responsibility.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from reefknot.lab.baselines.mixture import Components, Gamma, Mixture, merged, most_likely
from reefknot.methods import TyingMethod
from reefknot.methods.settings import Check, are_clusters, is_count, is_number, setting
from reefknot.phases import Frozen, Phase, Step, dense_grad
from reefknot.state import MAX_CODEBOOK
from reefknot.tying import Group, NumClusters, Saved, Tying, kmeans, ops, saved_tensor

_FACTORS = {
    "means": "means_lr_factor",
    "log_precisions": "precisions_lr_factor",
    "log_weights": "mixing_lr_factor",
}
_PREFIX = "mixture."


def _is_gamma(name: str, value: Any) -> Iterator[str]:
    pair = isinstance(value, Sequence) and len(value) == 2
    if not pair or not all(isinstance(v, int | float) and 0 < v < math.inf for v in value):
        yield f"{name} must be two numbers above 0, shape and rate, found {value!r}"


def _is_between(low: float, high: float) -> Check:
    def check(name: str, value: Any) -> Iterator[str]:
        if not isinstance(value, int | float) or not low < value < high:
            yield f"{name} must be a number above {low:g} and below {high:g}, found {value!r}"

    return check


def _is_flag(name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{name} must be true or false, found {value!r}"


class SoftWeightSharing(TyingMethod):
    """Soft Weight Sharing: a learned mixture of Gaussians as the weights' prior."""

    name: ClassVar[str] = "soft_weight_sharing"

    num_clusters: NumClusters = setting(
        default=17,
        doc="how many values may be left, zero included, or a table from group names to numbers",
        check=are_clusters(least=2),
        kw_only=False,
    )
    num_examples: int = setting(
        doc="how many training examples the data loss is the mean of",
        check=is_count("a whole number, at least 1", least=1),
    )
    tau: float = setting(
        default=0.003,
        doc="how much the prior counts against the data",
        check=is_number(),
    )
    anneal_steps: int = setting(
        default=0,
        doc="steps in which tau grows from 0 to its full value",
        check=is_count("a whole number of steps"),
    )
    num_components: int = setting(
        default=17,
        doc="components of the mixture, the one at zero included",
        check=is_count("a number of at least 2", least=2, most=MAX_CODEBOOK),
    )
    zero_weight: float = setting(
        default=0.99,
        doc="the fixed weight of the component at zero",
        check=_is_between(0.0, 1.0),
    )
    init_std: float = setting(
        default=0.25,
        doc="the standard deviation that all components begin with",
        check=_is_between(0.0, math.inf),
    )
    zero_precision_prior: Sequence[float] = setting(
        default=(5000.0, 2.0),
        doc="shape and rate of the Gamma prior of the zero component's precision",
        check=_is_gamma,
    )
    precision_prior: Sequence[float] = setting(
        default=(250.0, 0.1),
        doc="shape and rate of the Gamma prior of the other precisions",
        check=_is_gamma,
    )
    means_lr_factor: float = setting(
        default=0.2,
        doc="the means' learning rate, as a factor of the weights'",
        check=is_number(),
    )
    precisions_lr_factor: float = setting(
        default=6.0,
        doc="the same for the log-precisions",
        check=is_number(),
    )
    mixing_lr_factor: float = setting(
        default=6.0,
        doc="the same for the log-weights of the components",
        check=is_number(),
    )
    mixture_decays: bool = setting(
        default=True,
        doc="whether these three decay with the weights' learning rate, or stay constant",
        check=_is_flag,
    )
    merge_below: float = setting(
        default=1e-10,
        doc="components nearer than this (symmetric KL divergence) are merged in the end",
        check=is_number(),
    )

    def phases_of(self, tying: Tying) -> Sequence[Phase]:
        """The mixture prior until `harden()`, then shared values."""
        prior = MixturePrior(tying, self)
        return [prior, Frozen(tying, prepare=prior.cluster)]


class MixturePrior(Phase):
    """Training with a mixture of Gaussians as the prior of each group that may have zeros."""

    name = "mixture"

    def __init__(self, tying: Tying, settings: SoftWeightSharing) -> None:
        super().__init__(tying)
        self.settings = settings
        self.mixtures = {
            group.name: Mixture(
                torch.cat(_rows(group)),
                settings.num_components,
                zero_weight=settings.zero_weight,
                std=settings.init_std,
                zero_prior=Gamma(*settings.zero_precision_prior),
                prior=Gamma(*settings.precision_prior),
            )
            for group in tying.groups
        }

    # -- what is trained --------------------------------------------------------------------

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The mixtures' parameters, with their own learning rates and no decay."""
        return [
            {
                "params": [m.parameters[name] for m in self.mixtures.values()],
                "lr_factor": float(getattr(self.settings, factor)),
                "lr_decays": self.settings.mixture_decays,
                "weight_decay": 0.0,
            }
            for name, factor in _FACTORS.items()
        ]

    def before_step(self, step: Step) -> None:
        """Add the gradient of the prior."""
        if not step.starts_round:
            return
        for group in self._mixed():
            mixture = self.mixtures[group.name]
            scale = self._strength() * step.grad_scale
            slopes, by_mixture = mixture.gradients(_rows(group), scale)
            for (name, parameter), slope in zip(group.members.items(), slopes, strict=True):
                grad = dense_grad(name, parameter)
                if grad is not None:
                    grad.add_(torch.as_strided(slope, parameter.shape, parameter.stride()))
            for own, grad in zip(mixture.parameters.values(), by_mixture, strict=True):
                own.grad = grad  # it has no other gradient

    def _strength(self) -> float:
        """What the prior counts in the next step."""
        annealed = self.settings.anneal_steps
        grown = (self.step + 1) / annealed if annealed else 1.0
        return min(1.0, grown) * self.settings.tau / self.settings.num_examples

    def cluster(self) -> None:
        """Merge components, set the one nearest to zero to zero, and assign."""
        for group in self.tying.groups:
            if not group.sparse:
                kmeans.start_with_zero(group, "kmeans")
                continue
            components = self._merged(group)
            assignment = np.concatenate([most_likely(row, components) for row in _rows(group)])
            group.assign(components.means, assignment, _zero(components))

    def _mixed(self) -> list[Group]:
        """The groups with a mixture prior: those that may have zeros."""
        return [group for group in self.tying.groups if group.sparse]

    def _merged(self, group: Group) -> Components:
        components = self.mixtures[group.name].components()
        return merged(components, group.num_clusters, self.settings.merge_below)

    # -- reading and saving -----------------------------------------------------------------

    def density(self) -> float:
        """The non-zero fraction of the trainable parameters, as hardening now would leave it."""
        trainable = [p for p in self.tying.model.parameters() if p.requires_grad]
        new_zeros = 0
        for group in self._mixed():
            components = self._merged(group)
            for row in _rows(group):
                to_zero = most_likely(row, components) == _zero(components)
                new_zeros += int(np.count_nonzero(to_zero & (row != 0).cpu().numpy()))
        return super().density() - new_zeros / sum(p.numel() for p in trainable)

    def state_dict(self) -> Saved:
        """The step, and the mixtures."""
        return super().state_dict() | {
            f"{_PREFIX}{name}.{key}": parameter.detach().clone()
            for name, mixture in self.mixtures.items()
            for key, parameter in mixture.parameters.items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved."""
        super().load_state_dict(state)
        for name, mixture in self.mixtures.items():
            for key, own in mixture.parameters.items():
                entry = f"{_PREFIX}{name}.{key}"
                own.detach().copy_(saved_tensor(state, entry, dtype=own.dtype, shape=own.shape))


def _rows(group: Group) -> list[Tensor]:
    """Each member's weights, flattened in memory order."""
    return [ops.flat(parameter) for parameter in group.members.values()]


def _zero(components: Components) -> int:
    return int(np.argmin(np.abs(components.means)))
