"""No compression: trains the dense networks that others start from and are compared with."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from reefknot.methods import Method
from reefknot.methods.settings import is_count, setting
from reefknot.phases import Phase, Step
from reefknot.tying import Saved, saved_tensor, unwrapped

_AVERAGE = "average."  # and the parameter's name: an entry of the saved state


class Dense(Method):
    """Plain training; the state keeps every tensor exactly.

    With `average_steps` the weights become their running average when the soft part ends. Running
    statistics of BatchNorm are still those of the last weights then: `update_batchnorm` is for
    that, and runs call it.
    """

    name: ClassVar[str] = "dense"

    average_steps: int = setting(
        default=0,
        doc="weights end as their running average over about this many steps; 0: as they are",
        check=is_count("a whole number of at least 0"),
    )

    def _all_phases(self) -> Sequence[Phase]:
        self.model = unwrapped(self.model)
        return [Train(self.model, self.average_steps), Trained(self.model)]


class _Untied(Phase):
    """A phase over a model in which nothing is tied."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.steps, self.step = model, None, 0

    def check(self) -> None:
        """Nothing is tied, so nothing can go wrong."""

    def follow(self) -> None:
        """Nothing is tied, so nothing has to be followed."""

    def density(self) -> float:
        """The non-zero fraction of the trainable parameters."""
        trainable = [p.detach() for p in self.model.parameters() if p.requires_grad]
        nonzero = sum(int(torch.count_nonzero(p)) for p in trainable)
        return nonzero / max(1, sum(p.numel() for p in trainable))


class Trained(_Untied):
    """The end: weights stay as the optimizer leaves them."""

    name = "done"
    is_tied = True
    is_last = True


class Train(_Untied):
    """Plain training, perhaps with a running average."""

    name = "training"

    def __init__(self, model: nn.Module, average_steps: int) -> None:
        super().__init__(model)
        self.average_steps = average_steps
        self._averages: dict[str, Tensor] = {}  # none before the first step

    @torch.no_grad()
    def after_step(self, step: Step) -> None:
        """Take the new weights into the average."""
        if not step.ends_round or not self.average_steps:
            return
        weights = self._weights()
        if self.step == 1:
            self._averages = {name: weight.clone() for name, weight in weights.items()}
        share = 1 / min(self.step, self.average_steps)  # at first all steps count alike
        torch._foreach_lerp_(list(self._averages.values()), list(weights.values()), share)

    @torch.no_grad()
    def leave(self) -> None:
        """The weights become their average, if there is one."""
        for name, weight in self._weights().items():
            weight.copy_(self._averages.get(name, weight))
        self._averages = {}

    def state_dict(self) -> Saved:
        """The averages as well."""
        averages = {_AVERAGE + name: average.clone() for name, average in self._averages.items()}
        return super().state_dict() | averages

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved."""
        super().load_state_dict(state)
        self._averages = {}
        if self.average_steps and self.step:
            for name, weight in self._weights().items():
                own = saved_tensor(state, _AVERAGE + name, dtype=weight.dtype, shape=weight.shape)
                self._averages[name] = own.clone()

    def _weights(self) -> dict[str, Tensor]:
        named = self.model.named_parameters()
        return {name: parameter.detach() for name, parameter in named if parameter.requires_grad}
