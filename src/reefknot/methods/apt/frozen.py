"""Frozen: the assignment is fixed, and only the K values are trained.

Takes     weights with their clusters.
Gives     weights that are exactly tied after every step.
Paper     section 3.2: hard tying. Each cluster moves by its mean gradient; or, to the letter, each
          weight moves by its own gradient and is then projected to the mean of its cluster.
Unaware   of how the clusters were found.
"""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from reefknot.methods.apt.phase import Phase
from reefknot.methods.apt.weights import TiedWeights
from reefknot.methods.hooks import Step


class Frozen(Phase):
    """Hard tying. `prepare` runs first: a last refit, or a last trim to the target size."""

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
        """Set each weight to its center, and the zero cluster to exactly 0."""
        self.prepare()
        self.weights.freeze(zero_cluster=self.zero_cluster)

    def before_step(self, step: Step) -> None:
        """Give all weights of a cluster the same gradient."""
        self.weights.share_gradients(step)

    def after_step(self, step: Step) -> None:
        """Tie again: optimizer state (momentum, Adam's moments) differs within a cluster."""
        self.weights.retie()
        if step.ends_round:
            self.step += 1

    def fixed_zeros(self) -> dict[str, Tensor]:
        """The elements of the zero clusters."""
        return self.weights.zeros()


class Projected(Frozen):
    """Hard tying to the letter of the paper: an optimizer step, then the projection."""

    def before_step(self, step: Step) -> None:
        """Every weight keeps its own gradient."""
