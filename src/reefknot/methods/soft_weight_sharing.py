"""Soft Weight Sharing (Ullrich, Meeds and Welling, 2017), a row of the paper's table.

Takes     a trained model, the number of examples, and the settings of the mixture prior.
Gives     weights at the means of the mixture's components, most of them at zero.
Paper     section 4.3, Table 1; section 1 on mixtures of Gaussians as priors.
Unaware   of the training loop, the data and the file.

The objective is the mean data loss plus tau/num_examples times -log p(weights, precisions). The
gradient is written down by hand and added before each step, in pieces (`tying/mixture.py`), since
autograd would hold several numbers for each weight and component. Hardening merges components
that have become alike, moves the mean nearest to zero to zero, and gives each weight the mean of
the component that is most responsible for it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from reefknot.methods.hooks import Step, dense_grad
from reefknot.methods.method import Saved, Stats
from reefknot.methods.settings import (
    clusters_mistakes,
    count_mistakes,
    number_mistakes,
    selection_mistakes,
)
from reefknot.methods.tied import NumClusters, TyingMethod
from reefknot.state import MAX_CODEBOOK
from reefknot.tying import ops
from reefknot.tying.group import Group
from reefknot.tying.mixture import Components, Gamma, Mixture, merged, most_likely
from reefknot.tying.saved import saved_tensor
from reefknot.tying.selection import NETWORK, Norms, Scope

_FACTORS = {
    "means": "means_rate",
    "log_precisions": "precisions_rate",
    "log_weights": "mixing_rate",
}
_PREFIX = "mixture."


class SoftWeightSharing(TyingMethod):
    """Soft Weight Sharing: a learned mixture of Gaussians as the weights' prior.

    Args:
        model: any module, best a trained one; its state-dict keys stay as they are.
        num_clusters: how many values may be left, zero included, or a mapping from group name.
        num_examples: how many training examples the data loss is the mean of.
        tau: how much the prior counts against the data.
        num_components: components of the mixture, the one at zero included.
        zero_weight: the fixed weight of the component at zero.
        init_std: the standard deviation that all components begin with.
        zero_precision_prior: shape and rate of the Gamma prior of the zero component's precision.
        precision_prior: shape and rate of the Gamma prior of the other precisions.
        means_rate: the means' learning rate, as a factor of the weights' rate.
        precisions_rate: the same for the log-precisions.
        mixing_rate: the same for the log-weights of the components.
        merge_below: components nearer than this (symmetric KL divergence) are merged in the end.
        scope: which parameters share a mixture: "network", "tensor", or a mapping from group
            names to name patterns, of which the first match counts.
        include: patterns of the parameters to tie.
        exclude: patterns of the parameters not to tie.
        norms: scales and shifts of norm layers: with a codebook of their "own" and never pruned,
            "tied" with everything else, or "kept" exact.
    """

    name: ClassVar[str] = "soft_weight_sharing"

    def __init__(
        self,
        model: nn.Module,
        num_clusters: NumClusters = 17,
        *,
        num_examples: int,
        tau: float = 0.003,
        num_components: int = 17,
        zero_weight: float = 0.99,
        init_std: float = 0.25,
        zero_precision_prior: Sequence[float] = (5000.0, 2.0),
        precision_prior: Sequence[float] = (250.0, 0.1),
        means_rate: float = 0.2,
        precisions_rate: float = 6.0,
        mixing_rate: float = 6.0,
        merge_below: float = 1e-10,
        scope: Scope = NETWORK,
        include: Sequence[str] | str = ("*",),
        exclude: Sequence[str] | str = (),
        norms: Norms = "own",
    ) -> None:
        settings = {
            "num_clusters": num_clusters,
            "num_examples": num_examples,
            "tau": tau,
            "num_components": num_components,
            "zero_weight": zero_weight,
            "init_std": init_std,
            "zero_precision_prior": zero_precision_prior,
            "precision_prior": precision_prior,
            "means_rate": means_rate,
            "precisions_rate": precisions_rate,
            "mixing_rate": mixing_rate,
            "merge_below": merge_below,
            "scope": scope,
            "include": include,
            "exclude": exclude,
            "norms": norms,
        }
        super().__init__(model, settings)
        self.strength = tau / num_examples
        self.mixtures = {
            group.name: Mixture(
                torch.cat(_rows(group)),
                num_components,
                zero_weight=zero_weight,
                std=init_std,
                zero_prior=Gamma(*zero_precision_prior),
                prior=Gamma(*precision_prior),
            )
            for group in self._mixed()
        }

    @classmethod
    def mistakes(cls, settings: Mapping[str, Any]) -> list[str]:
        """All that is wrong with these settings."""
        found = [
            *clusters_mistakes(settings, least=2),
            *count_mistakes(settings, "num_examples", least=1),
            *count_mistakes(settings, "num_components", least=2, meaning="a number of at least 2"),
            *number_mistakes(settings, "tau", "merge_below", *_FACTORS.values()),
            *selection_mistakes(settings),
        ]
        if "num_examples" not in settings:
            found.append("num_examples is missing: how many training examples there are")
        if not found and settings.get("num_components", 2) > MAX_CODEBOOK:
            found.append(f"num_components must be at most {MAX_CODEBOOK:,}")
        for key in ("zero_precision_prior", "precision_prior"):
            pair = settings.get(key, (1.0, 1.0))
            if not _is_gamma(pair):
                found.append(f"{key} must be two numbers above 0, shape and rate, found {pair!r}")
        for key, most in (("zero_weight", 1.0), ("init_std", float("inf"))):
            value = settings.get(key, 0.5)
            if not isinstance(value, int | float) or not 0 < value < most:
                found.append(f"{key} must be a number above 0 and below {most:g}, found {value!r}")
        return found

    # -- what is trained --------------------------------------------------------------------

    def extra_parameters(self) -> list[nn.Parameter]:
        """Means, log-precisions and log-weights of the mixtures."""
        return [p for mixture in self.mixtures.values() for p in mixture.parameters.values()]

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The model's parameters, and the mixtures' at rates of their own and without decay."""
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        return [
            {"params": trainable},
            *(
                {
                    "params": [m.parameters[name] for m in self.mixtures.values()],
                    "rate_factor": float(self.settings[factor]),
                    "weight_decay": 0.0,
                }
                for name, factor in _FACTORS.items()
            ),
        ]

    def before_step(self, step: Step) -> None:
        """Soft phase: add the prior's gradient, and set the mixtures'. Hard phase: share them."""
        super().before_step(step)
        if self.hard or not step.starts_round:
            return
        for group in self._mixed():
            mixture = self.mixtures[group.name]
            scale = self.strength * step.grad_scale
            slopes, by_mixture = mixture.gradients(_rows(group), scale)
            for (name, parameter), slope in zip(group.members.items(), slopes, strict=True):
                grad = dense_grad(name, parameter)
                if grad is not None:
                    grad.add_(torch.as_strided(slope, parameter.shape, parameter.stride()))
            for own, grad in zip(mixture.parameters.values(), by_mixture, strict=True):
                own.grad = grad  # nothing else contributes to it

    def harden(self) -> None:
        """Merge, make the mean nearest to zero zero, assign by responsibility, freeze."""
        self._require_soft()
        for group in self.groups:
            if not group.sparse:
                group.start_sparse("kmeans")
                continue
            components = self._merged(group)
            assignment = np.concatenate([most_likely(row, components) for row in _rows(group)])
            group.start_given(components.means, assignment, _zero(components))
        self._hardened()

    def _mixed(self) -> list[Group]:
        """The groups that have a mixture: its heavy component at zero is not for the others."""
        return [group for group in self.groups if group.sparse]

    def _merged(self, group: Group) -> Components:
        components = self.mixtures[group.name].components()
        return merged(components, group.num_clusters, self.settings["merge_below"])

    # -- reading and saving -----------------------------------------------------------------

    def _density(self) -> float:
        """The non-zero fraction of the trainable parameters, as hardening now would leave it."""
        density = super()._density()
        if self.hard:
            return density
        total = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        going = 0
        for group in self._mixed():
            components = self._merged(group)
            for row in _rows(group):
                to_zero = most_likely(row, components) == _zero(components)
                going += int(np.count_nonzero(to_zero & (row != 0).cpu().numpy()))
        return density - going / total

    def stats(self) -> Stats:
        """Density, predicted bytes, clusters, and in the soft phase -log p of the weights."""
        if self.hard:
            return super().stats()
        total = 0.0
        for group in self._mixed():
            mixture = self.mixtures[group.name]
            total += sum(float(mixture.neg_log_density(row)) for row in _rows(group))
            total += float(mixture.neg_log_hyper())
        return super().stats() | {"neg_log_prior": total}

    def state_dict(self) -> Saved:
        """Phase, step, clusters, and the mixtures."""
        return super().state_dict() | {
            f"{_PREFIX}{name}.{key}": parameter.detach().clone()
            for name, mixture in self.mixtures.items()
            for key, parameter in mixture.parameters.items()
        }

    def _load(self, state: Mapping[str, Tensor | int | float]) -> None:
        super()._load(state)
        for name, mixture in self.mixtures.items():
            for key, own in mixture.parameters.items():
                entry = f"{_PREFIX}{name}.{key}"
                own.detach().copy_(saved_tensor(state, entry, dtype=own.dtype, shape=own.shape))


def _rows(group: Group) -> list[Tensor]:
    """Each member's weights in the order of memory."""
    return [ops.flat(parameter) for parameter in group.members.values()]


def _zero(components: Components) -> int:
    return int(np.argmin(np.abs(components.means)))


def _is_gamma(pair: Any) -> bool:
    return (
        isinstance(pair, Sequence)
        and len(pair) == 2
        and all(isinstance(v, int | float) and 0 < v < float("inf") for v in pair)
    )
