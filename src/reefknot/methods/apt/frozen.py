"""Frozen: the assignment stays, and only the K values are trained.

Takes     weights with their clusters.
Gives     weights that are exactly tied after every step.
Paper     section 3.2: hard tying. Each cluster moves by its mean gradient.
Unaware   of how the clusters were found.
"""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from reefknot.methods.apt.phase import Phase
from reefknot.methods.apt.weights import TiedWeights
from reefknot.methods.hooks import Step


class Frozen(Phase):
    """Hard tying. `prepare` runs first: a last refit, or a last cut to the size."""

    name: ClassVar[str] = "frozen"
    is_tied: ClassVar[bool] = True
    lr_factor: ClassVar[float] = 0.1

    def __init__(
        self,
        weights: TiedWeights,
        steps: int | None = None,
        *,
        zero_cluster: bool,
        prepare: Callable[[], None],
    ) -> None:
        super().__init__(weights, steps)
        self.zero_cluster = zero_cluster
        self.prepare = prepare

    def enter(self) -> None:
        """Each weight to its center; the zero cluster to exactly 0."""
        self.prepare()
        self.weights.freeze(zero_cluster=self.zero_cluster)

    def before_step(self, step: Step) -> None:
        """All weights of a cluster get the same gradient."""
        self.weights.share_gradients(step)

    def after_step(self, step: Step) -> None:
        """Tie again: what an optimizer remembers differs inside a cluster."""
        self.weights.retie()
        if step.ends_round:
            self.step += 1

    def fixed_zeros(self) -> dict[str, Tensor]:
        """All that is in a zero cluster."""
        return self.weights.zeros()
