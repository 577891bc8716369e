"""Tying in Hugging Face's `Trainer`.

    trainer = Trainer(model, args, train_dataset=data,
                      callbacks=[TyingCallback("model.reef", target_bytes=60_000)])
    trainer.train()                                   # the file is there at the end

Takes     the events of a `Trainer`, and the settings of a method.
Gives     the file; density, penalty, phase and bytes in the trainer's log; and beside each
          checkpoint of the trainer `reefknot.safetensors`, from which tying resumes.
Unaware   of what the model is.
"""

from pathlib import Path
from typing import Any, Self

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from reefknot.checkpoint import read_checkpoint, write_checkpoint
from reefknot.errors import ConfigError, FormatError
from reefknot.integrations.session import TyingSession

FILE = "reefknot.safetensors"


class TyingCallback(TrainerCallback):
    """Ties the model while the trainer trains, and writes the file when it ends.

    Settings are those of `reefknot.SparseAPT` (or of another `method`); the number of steps is
    the trainer's. `resume_from` is the checkpoint's folder, where it is not in the output folder.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        resume_from: str | Path | None = None,
        **settings: Any,
    ) -> None:
        self.session = TyingSession(path, **settings)
        self.resume_from = resume_from

    def add_to(self, trainer: Trainer) -> Self:
        """Add this callback before the trainer's reporters (TensorBoard and the like).

        Then they log its figures, too. With `Trainer(callbacks=[...])` it comes after them, and its
        figures are only in the trainer's own history and progress bar.
        """
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        """Model, optimizer and the number of steps are known: start, or resume."""
        if args.load_best_model_at_end:
            raise ConfigError(
                "load_best_model_at_end would put back weights that are not tied; leave it out"
            )
        if state.global_step:
            self.session.load_state_dict(self._saved(args, state))
        self.session.begin(parts["model"], (parts["optimizer"],), state.max_steps)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        """After each optimizer step."""
        self.session.after_step()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **parts: Any,
    ) -> None:
        """Add our figures to what is logged, and to the trainer's history."""
        if logs is None or "loss" not in logs or not state.log_history:
            return
        numbers = self.session.numbers()
        logs.update(numbers)
        state.log_history[-1].update(numbers)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        """Save the method's state beside the trainer's own files."""
        if state.is_world_process_zero:
            write_checkpoint(_folder(args, state) / FILE, self.session.state_dict())

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        """Finish, and write the file."""
        self.session.end(write=state.is_world_process_zero)

    def _saved(self, args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
        folder = Path(self.resume_from) if self.resume_from else _folder(args, state)
        if not (folder / FILE).is_file():
            raise FormatError(
                f"{folder / FILE}: not found, so tying cannot resume after step "
                f"{state.global_step:,}; give the checkpoint's folder as "
                "TyingCallback(resume_from=...)"
            )
        found: dict[str, Any] = read_checkpoint(folder / FILE)
        return found


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    """Where the trainer puts the checkpoint of this step."""
    return Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
