"""Tying in Lightning's `Trainer`.

    trainer = Trainer(max_epochs=10, callbacks=[TyingCallback("model.reef", target_bytes=60_000)])
    trainer.fit(module, data)                         # the file is there at the end

Takes     the events of a Lightning `Trainer`, and the settings of a method.
Gives     the file; density, penalty, phase and bytes in the trainer's logger; and the method's
          state inside Lightning's checkpoints.
Unaware   of what the module does.
"""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer, callbacks

from reefknot.errors import ConfigError
from reefknot.integrations.session import TyingSession

# They put averages in place of the weights at the end. Older versions have only the first.
_AVERAGING = tuple(
    getattr(callbacks, name)
    for name in ("StochasticWeightAveraging", "WeightAveraging")
    if hasattr(callbacks, name)
)


class TyingCallback(Callback):
    """Ties the module while the trainer trains, and writes the file when it ends.

    Settings are those of `reefknot.SparseAPT` (or of another `method`); the number of steps is
    the trainer's. The names in the file are those of the module's state dict.
    """

    def __init__(self, path: str | Path | None = None, **settings: Any) -> None:
        self.session = TyingSession(path, **settings)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse callbacks that would undo the tying."""
        for other in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(other, _AVERAGING):
                raise ConfigError(
                    f"{type(other).__name__} would put averages of weights in place of the tied "
                    "ones; leave it out"
                )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Module, optimizers and the number of steps are known: start, or resume."""
        steps = trainer.estimated_stepping_batches
        self.session.begin(pl_module, tuple(trainer.optimizers), steps)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *batch: Any, **parts: Any
    ) -> None:
        """After each batch; not every batch has an optimizer step."""
        self.session.after_step()
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and trainer.global_step % every == 0:
            pl_module.log_dict(self.session.numbers(), rank_zero_only=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finish, and write the file."""
        self.session.end(write=trainer.is_global_zero)

    def state_dict(self) -> dict[str, Any]:
        """What Lightning puts into a checkpoint."""
        return self.session.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What Lightning found in a checkpoint."""
        self.session.load_state_dict(state_dict)
