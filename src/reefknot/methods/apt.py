"""Automatic parameter tying: plain and sparse APT, the paper's method.

Takes     a model, K, and the strengths of the two penalties.
Gives     weights that share K values, most of them exactly zero for sparse APT.
Paper     sections 3 to 3.3; equation 3.
Unaware   of the training loop, the data and the file.

Soft tying adds the penalties' gradient before each step and moves the centers after it; hard
tying replaces each weight by its cluster's mean after each step. Averaging the gradients alone
would not do: what an optimizer remembers per weight differs inside a cluster.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from reefknot.methods.hooks import Step
from reefknot.methods.method import Saved, Stats
from reefknot.methods.settings import (
    choice_mistakes,
    clusters_mistakes,
    count_mistakes,
    number_mistakes,
    selection_mistakes,
)
from reefknot.methods.tied import NumClusters, TyingMethod
from reefknot.tying import ops
from reefknot.tying.group import Group, Start
from reefknot.tying.selection import NETWORK, Scope

L1Step = Literal["subgradient", "proximal"]

_CHOICES = {
    "init": ("even", "kmeans"),
    "l1_step": ("subgradient", "proximal"),
    "distance": ("l2", "l1"),
}


class _ParameterTying(TyingMethod):
    """What plain and sparse APT share."""

    has_zero_cluster: ClassVar[bool]

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        super().__init__(model, settings)
        self.tying_strength = float(settings["tying_strength"])
        self.l1_strength = float(settings.get("l1_strength", 0.0))
        self.l1_step = settings.get("l1_step", "subgradient")
        self.refit_every = int(settings["refit_every"])
        self.changed: float | None = None  # share of assignments that the last refit changed

    @classmethod
    def mistakes(cls, settings: Mapping[str, Any]) -> list[str]:
        """All that is wrong with these settings."""
        return [
            *clusters_mistakes(settings, least=2 if cls.has_zero_cluster else 1),
            *number_mistakes(settings, "tying_strength", "l1_strength"),
            *count_mistakes(
                settings, "refit_every", meaning="a whole number of steps, or 0 for never"
            ),
            *choice_mistakes(settings, _CHOICES),
            *selection_mistakes(settings),
        ]

    # -- training ---------------------------------------------------------------------------

    def attach(self, *optimizers: Optimizer) -> Self:
        """Begin soft tying with these optimizers; see `Method.attach`."""
        super().attach(*optimizers)
        self._start()
        return self

    def _start(self) -> None:
        for group in self.groups:
            if not group.assignments:
                group.start(self.settings["init"])

    def before_step(self, step: Step) -> None:
        """Soft tying: add the pull to the own center and to zero."""
        if self.hard:
            return
        l1 = self.l1_strength if self.l1_step == "subgradient" else 0.0
        for group, grads in self._grads(step):
            group.add_pull_(grads, self.tying_strength * step.grad_scale, l1 * step.grad_scale)

    def after_step(self, step: Step) -> None:
        """Soft tying: move the centers, now and then refit. Hard tying: tie again."""
        super().after_step(step)
        if self.hard:
            return
        if self.l1_step == "proximal" and self.l1_strength:
            for rate, _, _, parameter in self._held_by(step):
                if parameter.grad is not None:
                    ops.soft_threshold_(parameter.detach(), rate * self.l1_strength)
        if not step.ends_round:
            return
        if self.refit_every and self.step % self.refit_every == 0:
            self._refit()
        else:
            for group in self.groups:
                group.refresh()

    def _refit(self) -> None:
        total = sum(group.num_weights for group in self.groups)
        changed = [group.refit() * group.num_weights for group in self.groups]
        self.changed = sum(changed) / total
        self._predicted_bytes = None

    def harden(self) -> None:
        """Refit once more, project, make the zero cluster exactly zero, freeze the assignment."""
        self._require_soft()
        self._start()
        if self.refit_every:
            self._refit()
        for group in self.groups:
            group.harden(zero_cluster=self.has_zero_cluster)
        self._hardened()

    # -- reading and saving -----------------------------------------------------------------

    def state_dict(self) -> Saved:
        """Phase, step, centers and assignments."""
        return super().state_dict() | {"changed": -1.0 if self.changed is None else self.changed}

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Go on exactly where `state_dict` was called; before or after `attach`."""
        super().load_state_dict(state)
        changed = float(state["changed"])
        self.changed = None if changed < 0 else changed

    def stats(self) -> Stats:
        """Density, k-means penalty, predicted bytes, and each group's clusters."""
        self._start()
        penalty = 0.0
        for group in self.groups:
            absolute, square = group.deviations()
            penalty += float(absolute.sum() if group.distance == "l1" else square.sum() / 2)
        return super().stats() | {"kmeans_penalty": penalty, "changed": self.changed}

    def _alive(self, group: Group) -> np.ndarray:
        alive = super()._alive(group)
        if self.has_zero_cluster:
            alive[group.smallest_center()] = False
        return alive


class APT(_ParameterTying):
    """Plain APT: the k-means prior alone, no zero cluster.

    Args:
        model: any module; its state-dict keys stay as they are.
        num_clusters: K, or a mapping from group name to K.
        tying_strength: the paper's lambda 1, weight of the k-means penalty.
        refit_every: steps between full k-means runs; 0 never refits (random tying).
        scope: which parameters share a codebook: "network", "tensor", or a mapping from group
            names to name patterns, of which the first match counts.
        include: patterns of the parameters to tie.
        exclude: patterns of the parameters not to tie.
        init: first centers, "even" over the range of the weights or by "kmeans" (better from a
            trained parent).
        distance: "l2" (k-means) or "l1" (k-medians).
    """

    name: ClassVar[str] = "apt"
    has_zero_cluster: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        num_clusters: NumClusters = 16,
        tying_strength: float = 1e-5,
        *,
        refit_every: int = 1000,
        scope: Scope = NETWORK,
        include: Sequence[str] | str = ("*",),
        exclude: Sequence[str] | str = (),
        init: Start = "even",
        distance: Literal["l2", "l1"] = "l2",
    ) -> None:
        super().__init__(
            model,
            num_clusters=num_clusters,
            tying_strength=tying_strength,
            refit_every=refit_every,
            scope=scope,
            include=include,
            exclude=exclude,
            init=init,
            distance=distance,
        )


class SparseAPT(_ParameterTying):
    """Sparse APT: the k-means prior and an L1 penalty, with a cluster at exactly zero.

    Args:
        model: any module; its state-dict keys stay as they are.
        num_clusters: K, zero included, or a mapping from group name to K.
        tying_strength: the paper's lambda 1, weight of the k-means penalty.
        l1_strength: the paper's lambda 2, weight of the L1 penalty; controls the sparsity.
        refit_every: steps between full k-means runs; 0 never refits (random tying).
        l1_step: "subgradient" adds l1_strength·sign(w) to the gradient, as the paper does;
            "proximal" moves each weight by rate·l1_strength towards zero after the step and
            reaches zero exactly. See docs/method.md for how the two compare.
        scope: which parameters share a codebook: "network", "tensor", or a mapping from group
            names to name patterns, of which the first match counts.
        include: patterns of the parameters to tie.
        exclude: patterns of the parameters not to tie.
        init: first centers, "even" over the range of the weights or by "kmeans" (better from a
            trained parent).
        distance: "l2" (k-means) or "l1" (k-medians).
    """

    name: ClassVar[str] = "sparse_apt"
    has_zero_cluster: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        num_clusters: NumClusters = 17,
        tying_strength: float = 1e-5,
        l1_strength: float = 1e-4,
        refit_every: int = 1000,
        *,
        l1_step: L1Step = "subgradient",
        scope: Scope = NETWORK,
        include: Sequence[str] | str = ("*",),
        exclude: Sequence[str] | str = (),
        init: Start = "even",
        distance: Literal["l2", "l1"] = "l2",
    ) -> None:
        super().__init__(
            model,
            num_clusters=num_clusters,
            tying_strength=tying_strength,
            l1_strength=l1_strength,
            refit_every=refit_every,
            l1_step=l1_step,
            scope=scope,
            include=include,
            exclude=exclude,
            init=init,
            distance=distance,
        )
