"""Frozen: the assignment is fixed, and only the K values are trained.

Takes     tied weights; what gives them their last clusters.
Gives     weights that are exactly tied after every step.
Paper     section 3.2: hard tying. Each cluster moves by its mean gradient; or, to the letter, each
          weight moves by its own gradient and is then projected to the mean of its cluster.
Unaware   of how the clusters were found.

Optimizer state (momentum, Adam's moments) differs within a cluster, so shared gradients alone do
not keep weights equal; and adaptive optimizers scale each weight's step, so that the mean of those
steps need not be a descent direction. Both sharing and projection are needed.
"""

import math
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor
from torch.optim import SGD

from reefknot.phases.hooks import Step
from reefknot.phases.phase import Phase
from reefknot.tying.gradients import Shared, share_
from reefknot.tying.tying import Tying, adopt

_LEAST_TRUST = 0.05  # the part of a step that K values take at the end, and beyond it


class Frozen(Phase):
    """Hard tying.

    `prepare` gives the weights their last clusters: `tying.refit` by one more k-means from those
    they have, `tying.cluster` to weights that have none (only exact zeros become the zero cluster);
    None leaves them as they are. `trim` makes the network fit its size: on
    entering, and again before the file is written. All weights of a cluster get the mean or the sum
    of their gradients; with `shared=None`, each keeps its own.
    """

    name: ClassVar[str] = "frozen"
    has_zeros: ClassVar[bool] = True
    is_tied: ClassVar[bool] = True
    is_last: ClassVar[bool] = True
    lr_factor: ClassVar[float] = 0.1

    def __init__(
        self,
        tying: Tying,
        steps: int | None = None,
        *,
        prepare: Callable[[], object] | None = None,
        trim: Callable[[], None] | None = None,
        shared: Shared | None = "mean",
    ) -> None:
        super().__init__(tying, steps)
        self.prepare, self.trim, self.shared = prepare, trim, shared

    def enter(self) -> None:
        """Set each weight to its center, and the zero clusters to exactly 0."""
        if self.prepare:
            self.prepare()
        if self.trim:
            self.trim()
        self.tying.freeze()

    def before_step(self, step: Step) -> None:
        """Give all weights of a cluster the same gradient."""
        if self.shared is None or (self.shared == "mean" and type(step.optimizer) is SGD):
            return  # SGD is linear: the projection averages the steps to the same result
        for group, grads in step.gradients(self.tying):
            share_(group, grads, self.shared)

    def after_step(self, step: Step) -> None:
        """Tie again. With a number of steps, the values come to rest whatever the learning rate."""
        self.tying.project(max(_LEAST_TRUST, (1 + math.cos(math.pi * self.done)) / 2))

    def finalize(self) -> None:
        """Trim what has grown since, and give the weights the values of the file."""
        adopt(self.tying)
        if self.trim:
            self.trim()
            self.tying.freeze()
        self.tying.finalize()

    def fixed_zeros(self) -> dict[str, Tensor]:
        """The elements of the zero clusters."""
        return self.tying.zeros()
