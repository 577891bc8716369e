"""Commit: the network runs on tied values while latent weights are trained behind them.

Takes     weights whose zeros are fixed; with a size, a controller that sets the price of a bit.
Gives     a network that loses nothing when its clusters are frozen.
Paper     ours, between sections 3.1 and 3.2; gradients go straight through the tying
          (Bengio, Léonard and Courville 2013).
Unaware   of how the zeros were chosen, and of what comes after it.

The pull to the centers grows, so that latent weights stop changing their clusters. It is at its
full strength for the last eighth of the phase.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from reefknot.methods.apt.controller import PriceController
from reefknot.methods.apt.phase import Phase
from reefknot.methods.apt.weights import TiedWeights
from reefknot.methods.hooks import Step
from reefknot.methods.method import Saved, Stats
from reefknot.methods.tied import saved_of
from reefknot.tying.latent import LatentWeights

_FULL_PULL = 7 / 8  # of the phase is over when the pull has grown
_LOOKS = 100  # at the size while the pull grows


class Commit(Phase):
    """Straight-through training on tied values, at a price for each bit of the file."""

    name: ClassVar[str] = "commit"
    is_tied: ClassVar[bool] = True

    def __init__(
        self,
        weights: TiedWeights,
        steps: int,
        *,
        tying_strength: tuple[float, float],
        refit_every: int,
        controller: PriceController,
    ) -> None:
        super().__init__(weights, steps)
        self.first_tying, self.last_tying = tying_strength
        self.refit_every = refit_every
        self.controller = controller
        self.look_every = max(1, round(_FULL_PULL * steps / _LOOKS))
        self.latent: list[LatentWeights] = []  # one for each group

    @property
    def grown(self) -> float:
        """How much of the pull's growth is done, 0 to 1."""
        return min(1.0, self.done / _FULL_PULL)

    def enter(self) -> None:
        """Tied values take the place of the weights, which live on behind them."""
        self.latent = [LatentWeights(group) for group in self.weights.groups]
        for latent in self.latent:
            latent.tie(0.0)
        self.controller.start(self.latent)

    def before_step(self, step: Step) -> None:
        """The latent weights take their places, and are pulled to their centers."""
        gradients = {group.name: grads for group, grads in self.weights.gradients(step)}
        tying = self.first_tying * (self.last_tying / self.first_tying) ** self.grown
        for latent in self.latent:
            latent.put()
            latent.add_pull_(gradients.get(latent.group.name, {}), tying * step.grad_scale)

    def after_step(self, step: Step) -> None:
        """Each latent weight to the value of least distance² + price · bits."""
        for latent in self.latent:
            latent.take()
            latent.tie(self.controller.price)
        if not step.ends_round:
            return
        self.step += 1
        self.weights.moved()
        if self.step % self.look_every == 0:
            self.controller.follow(self.grown)
        if self.step % self.refit_every == 0:
            for latent in self.latent:
                latent.renew_place_bits()

    def fixed_zeros(self) -> dict[str, Tensor]:
        """All that has no latent weight behind it."""
        return {name: zeros for latent in self.latent for name, zeros in latent.fixed_zeros()}

    def state_dict(self) -> Saved:
        """The step, the price, and all latent weights."""
        saved = super().state_dict() | self.controller.state_dict()
        for latent in self.latent:
            saved.update({f"{latent.group.name}/{k}": v for k, v in latent.state_dict().items()})
        return saved

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Go on where `state_dict` was called; the groups have their own state already."""
        super().load_state_dict(state)
        self.controller.load_state_dict(state)
        self.latent = []
        for group in self.weights.groups:
            self.latent.append(LatentWeights(group))
            self.latent[-1].load_state_dict(saved_of(group, state))

    def stats(self) -> Stats:
        """The price of a bit now."""
        return {"bit_price": self.controller.price}
