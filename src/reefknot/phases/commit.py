"""Commit: the network runs on tied values while latent weights are trained behind them.

Takes     weights whose zeros are fixed, or that are already tied; a controller that sets the price
          of a bit.
Gives     a network that loses nothing when its clusters are frozen.
Paper     ours, between sections 3.1 and 3.2; the straight-through estimator is that of Bengio,
          Léonard and Courville (2013).
Unaware   of how the zeros were chosen, and of what comes after it.

The pull to the centers grows, so that latent weights stop changing clusters. It has its full
strength during the last eighth of the phase.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from reefknot.phases.controller import PriceController
from reefknot.phases.hooks import Step
from reefknot.phases.phase import Phase, require_begun
from reefknot.tying.latent import LatentWeights
from reefknot.tying.tying import Saved, Tying, saved_of

_RAMP = 7 / 8  # the part of the phase in which the pull grows
_LAST_VALUE = 3 / 4  # the part of the ramp in which values are added
_SIZE_CHECKS = 100  # how often the size is measured during the ramp


class Commit(Phase):
    """Straight-through training on tied values, at a price for each bit of the file."""

    name: ClassVar[str] = "commit"
    has_zeros: ClassVar[bool] = True
    is_tied: ClassVar[bool] = True

    def __init__(
        self,
        tying: Tying,
        steps: int,
        *,
        tying_strength: tuple[float, float],
        refit_every: int,
        measure_every: int,
        controller: PriceController,
        size_of_zeros: Callable[[], float],
    ) -> None:
        super().__init__(tying, steps)
        self.first_tying, self.last_tying = tying_strength
        self.refit_every = refit_every
        self.controller, self.size_of_zeros = controller, size_of_zeros
        self.check_every = max(1, round(_RAMP * steps / _SIZE_CHECKS))
        self.measure_every = -(-measure_every // self.check_every) * self.check_every
        self.latent: list[LatentWeights] = []  # one for each group

    @property
    def ramp(self) -> float:
        """How far the pull's growth has come, 0 to 1."""
        return min(1.0, self.done / _RAMP)

    def enter(self) -> None:
        """Put tied values into the model; the weights become latent weights."""
        self.tying.start_distinct()
        self.controller.size.fixed = self.size_of_zeros()
        self.latent = [LatentWeights(group) for group in self.tying.groups]
        for latent in self.latent:
            latent.tie(0.0)
        self.controller.start(self.latent)

    def before_step(self, step: Step) -> None:
        """Put the latent weights into the model, and add their pull to the centers."""
        gradients = {group.name: grads for group, grads in step.gradients(self.tying)}
        strength = self.between(self.first_tying, self.last_tying, _RAMP)
        for latent in self.latent:
            latent.put(gradients.get(latent.group.name, {}), strength * step.grad_scale)

    def after_step(self, step: Step) -> None:
        """Assign each latent weight to the value with the least distance² + price · bits."""
        for latent in self.latent:
            latent.take()
            latent.tie(self.controller.price)
        if not step.ends_round:
            return
        self.tying.version += 1
        if self.step % self.check_every == 0:
            measure = self.step % self.measure_every == 0
            self.controller.update(self.ramp, self.latent, measure=measure)
            self._fill()
        if self.step % self.refit_every == 0:
            for latent in self.latent:
                latent.renew_place_bits()

    def _fill(self) -> None:
        """Add a value if there is room for it, and time for weights to choose it."""
        groups = [part for part in self.latent if part.zero is not None and part.group.has_room()]
        if groups and self.ramp < _LAST_VALUE and self.controller.wants_value(self.latent):
            max(groups, key=lambda part: part.error().max()).split()

    def leave(self) -> None:
        """Refuse to end what has not begun."""
        require_begun(self.tying)

    def fixed_zeros(self) -> dict[str, Tensor]:
        """The elements without a latent weight."""
        return {name: zeros for latent in self.latent for name, zeros in latent.fixed_zeros()}

    def state_dict(self) -> Saved:
        """The step, the controller's state, and all latent weights."""
        saved = super().state_dict() | self.controller.state_dict()
        for latent in self.latent:
            saved.update({f"{latent.group.name}/{k}": v for k, v in latent.state_dict().items()})
        return saved

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved; the groups are restored before."""
        super().load_state_dict(state)
        self.controller.load_state_dict(state)
        self.latent = []
        for group in self.tying.groups:
            self.latent.append(LatentWeights(group))
            self.latent[-1].load_state_dict(saved_of(group, state))

    def stats(self) -> dict[str, Any]:
        """The current price of a bit."""
        return {"bit_price": self.controller.price}
