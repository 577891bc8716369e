"""No compression: trains the dense networks that others start from and are compared with."""

from typing import ClassVar

import torch

from reefknot.methods.method import Method, Stats
from reefknot.state import TiedState


class Dense(Method):
    """Plain training; the state keeps every tensor exactly."""

    name: ClassVar[str] = "dense"

    def harden(self) -> None:
        """Nothing changes."""
        self.hard = True

    def finish(self) -> TiedState:
        """Every tensor of the model, kept exactly."""
        self._require_hard()
        self.detach()
        return TiedState((), tuple(self._stored({})), self._aliases())

    def stats(self) -> Stats:
        """Density, and the bytes of the uncompressed tensors."""
        trainable = [p.detach() for p in self.model.parameters() if p.requires_grad]
        nonzero = sum(int(torch.count_nonzero(p)) for p in trainable)
        return super().stats() | {
            "phase": "train",
            "density": nonzero / max(1, sum(p.numel() for p in trainable)),
            "predicted_bytes": sum(t.nbytes for t in self.model.state_dict().values()),
        }
