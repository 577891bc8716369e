"""No compression: trains the dense networks that others start from and are compared with."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from reefknot.methods.hooks import Step
from reefknot.methods.method import Method, Saved, Stats
from reefknot.methods.settings import is_count, setting
from reefknot.state import TiedState
from reefknot.tying.saved import saved_tensor

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

    def prepare(self, model: nn.Module) -> None:
        """There is no average before the first step."""
        self._averages: dict[str, Tensor] = {}

    @torch.no_grad()
    def after_step(self, step: Step) -> None:
        """Take the new weights into the average."""
        super().after_step(step)
        if not step.ends_round or not self.average_steps or self.hard:
            return
        weights = self._weights()
        if self.step == 1:
            self._averages = {name: weight.clone() for name, weight in weights.items()}
        share = 1 / min(self.step, self.average_steps)  # at first all steps count alike
        torch._foreach_lerp_(list(self._averages.values()), list(weights.values()), share)

    @torch.no_grad()
    def harden(self) -> None:
        """The weights become their average, if there is one."""
        for name, weight in self._weights().items():
            weight.copy_(self._averages.get(name, weight))
        self._averages = {}
        self.hard = True

    def finish(self) -> TiedState:
        """Every tensor of the model, kept exactly."""
        self._require_hard()
        self.detach()
        return TiedState((), tuple(self._stored({})), self._aliases())

    def state_dict(self) -> Saved:
        """The averages as well."""
        averages = {_AVERAGE + name: average.clone() for name, average in self._averages.items()}
        return super().state_dict() | averages

    def _load(self, state: Mapping[str, Tensor | int | float]) -> None:
        super()._load(state)
        self._averages = {}
        if self.average_steps and self.step and not self.hard:
            for name, weight in self._weights().items():
                own = saved_tensor(state, _AVERAGE + name, dtype=weight.dtype, shape=weight.shape)
                self._averages[name] = own.clone()

    def _weights(self) -> dict[str, Tensor]:
        named = self.model.named_parameters()
        return {name: parameter.detach() for name, parameter in named if parameter.requires_grad}

    def stats(self) -> Stats:
        """Density, and the bytes of the uncompressed tensors."""
        trainable = [p.detach() for p in self.model.parameters() if p.requires_grad]
        nonzero = sum(int(torch.count_nonzero(p)) for p in trainable)
        return super().stats() | {
            "phase": "train",
            "density": nonzero / max(1, sum(p.numel() for p in trainable)),
            "predicted_bytes": sum(t.nbytes for t in self.model.state_dict().values()),
        }
