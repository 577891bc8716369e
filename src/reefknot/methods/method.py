"""The contract that every method of the paper's table implements.

A method is made for a model and attached to the optimizer, whose hooks call `before_step` and
`after_step`; the user's training loop stays as it is. Every method ends in a `TiedState`, and no
code outside a method's file asks which method it has.

    method = METHODS[name](model, **settings)     # calls prepare; before the optimizer is made
    optimizer = SGD(method.parameter_groups(), ...)
    method.attach(optimizer)
    ...                                           # train: soft phase
    method.harden()
    ...                                           # train: hard phase
    state = method.finish()
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, dataclass_transform

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from reefknot.errors import ConfigError, TyingError
from reefknot.format import encode
from reefknot.methods.hooks import Step, StepHooks, trained_by, unshare_grad_
from reefknot.methods.settings import described, mistakes_in, setting, settings_of
from reefknot.shrinking.graph import dead_elements
from reefknot.state import KeptTensor, TiedState, TiedTensor
from reefknot.tensors import dtype_for, to_array
from reefknot.tying.collectives import local, whole
from reefknot.tying.saved import refuse_unknown, saved_count
from reefknot.tying.selection import original_name, replicas_of, unwrapped

log = logging.getLogger("reefknot")

Stats = dict[str, Any]
Saved = dict[str, Tensor | int | float]
Indices = Callable[[], np.ndarray]  # of a tensor into its codebook, when they are needed


def file_bytes(state: TiedState) -> int:
    """The size of a `.reef` file of this state."""
    return len(encode(state))


@dataclass_transform(field_specifiers=(setting, field), kw_only_default=True)
@dataclass(eq=False, repr=False)
class Method(ABC):
    """A way to train a network into a `TiedState`.

    A subclass declares its settings as fields (`methods/settings.py`), which makes it a dataclass:
    its constructor takes the model and the settings. With an `example_input` of the model they can
    also find dead units.
    """

    name: ClassVar[str]

    model: nn.Module = field(kw_only=False)
    example_input: Any = field(default=None, kw_only=True)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclass(eq=False, repr=False)(cls)
        if cls.__doc__ and settings_of(cls) and "Settings:" not in cls.__doc__:
            cls.__doc__ = f"{cls.__doc__.rstrip()}\n\n{described(cls)}"

    def __post_init__(self) -> None:
        settings = {f.name: getattr(self, f.name) for f in settings_of(type(self))}
        if found := self.mistakes(settings):
            raise ConfigError(*found)
        self.copies = replicas_of(self.model)  # groups of processes that train the same
        self.model = unwrapped(self.model)
        self.step = 0  # rounds of optimizer steps since attach
        self.hard = False
        self.skipped: dict[str, str] = {}  # parameters left as they are, and why
        self.advances = True  # whether the hooks enter the next phase by themselves
        self._hooks: StepHooks | None = None
        self.prepare(self.model)

    # -- the verbs --------------------------------------------------------------------------

    @classmethod
    def mistakes(cls, settings: Mapping[str, Any]) -> list[str]:
        """What is wrong with these settings, one sentence each; all of them, not only the first."""
        return list(mistakes_in(cls, settings))

    def prepare(self, model: nn.Module) -> None:  # noqa: B027  most methods leave the model alone
        """Change the model before training, if the method needs to."""

    def extra_parameters(self) -> list[nn.Parameter]:
        """The method's own parameters, which the optimizer must also train."""
        return []

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What the optimizer is made of: the model's trainable parameters and the method's own.

        A group with an `lr_factor` is trained at the scheduled learning rate times this factor; one
        whose `lr_decays` is False at the learning rate without its decay. A loop that sets learning
        rates itself must heed both.
        """
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        return [{"params": [*trainable, *self.extra_parameters()]}]

    def penalty(self) -> Tensor | None:
        """The differentiable part of the method's loss, if it has one."""
        return None

    def before_step(self, step: Step) -> None:
        """Add the method's gradient to the gradients of the data loss."""
        if not step.starts_round:
            return
        with torch.enable_grad():
            penalty = self.penalty()
            if penalty is not None:
                for parameter in (*self.model.parameters(), *self.extra_parameters()):
                    unshare_grad_(parameter)
                (penalty * step.grad_scale).backward()

    def after_step(self, step: Step) -> None:
        """Do what the method does after an optimizer has moved the weights."""
        if step.ends_round:
            self.step += 1

    @abstractmethod
    def harden(self) -> None:
        """Go from the soft to the hard phase."""

    @property
    def is_tied(self) -> bool:
        """Whether the model currently runs on tied values."""
        return self.hard

    @property
    def phase_is_over(self) -> bool:
        """Whether `advance()` is due; methods without phases of their own wait for `harden()`."""
        return False

    def advance(self) -> None:
        """Enter the next phase; the hooks call this unless `advances` is off."""
        raise TyingError(f"{type(self).__name__} has no phases of its own; call harden()")

    def fixed_zeros(self) -> dict[str, Tensor]:
        """Masks by parameter name: the elements that stay zero at least until the phase ends.

        Units whose incoming or outgoing weights are all among them need not be computed.
        """
        return {}

    def lr_factor(self, step: int) -> float:
        """The factor on the learning rate after this many steps."""
        return 1.0

    def lr_scheduler(self, optimizer: Optimizer) -> LambdaLR:
        """A torch scheduler with these factors; call its `step()` once per round."""
        return LambdaLR(optimizer, self.lr_factor)

    @abstractmethod
    def finish(self) -> TiedState:
        """The result; the model is left with plain layers and these values."""

    def state_dict(self) -> Saved:
        """Everything needed to resume exactly here: tensors and numbers only."""
        return {"step": self.step, "hard": int(self.hard)}

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved, before or after `attach`.

        A state that does not fit is refused, and the method is left as it was.
        """
        if not isinstance(state, Mapping):
            raise TyingError(f"a saved state is a dict, found a {type(state).__name__}")
        before = self.state_dict()
        try:
            self._load(state)
            refuse_unknown(state, self.state_dict())
        except TyingError:
            self._load(before)
            raise

    def _load(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Check and restore the entries of `state_dict`."""
        self.step = saved_count(state, "step")
        self.hard = bool(saved_count(state, "hard", most=1))

    def stats(self) -> Stats:
        """What a progress bar or a log shows: phase, step, density, predicted bytes, clusters."""
        return {"phase": "hard" if self.hard else "soft", "step": self.step}

    # -- attaching --------------------------------------------------------------------------

    def attach(self, *optimizers: Optimizer) -> Self:
        """Follow these optimizers from now on: their `step()` does the rest.

        Nothing is added to an optimizer's state or parameter groups. With several optimizers a
        round is one step of each.
        """
        if self._hooks is not None:
            raise TyingError("this method is attached already; call detach() first")
        hooks = StepHooks(optimizers, self.before_step, self.after_step)
        try:
            self._check_trained(optimizers)
        except TyingError:
            hooks.remove()
            raise
        self._hooks = hooks
        return self

    def _check_trained(self, optimizers: tuple[Optimizer, ...]) -> None:
        """Refuse optimizers that do not train this model, or not the method's own parameters."""
        extra = set(self.extra_parameters())
        known = extra.union(self.model.parameters())
        for optimizer in optimizers:
            if known.isdisjoint(trained_by(optimizer)):
                raise TyingError(
                    f"the {type(optimizer).__name__} trains no parameter of the model that was "
                    f"given to {type(self).__name__}; make it from method.parameter_groups(), "
                    "after the last change of the model"
                )
        if not self.hard and not extra.issubset(trained_by(*optimizers)):
            raise TyingError(
                f"{type(self).__name__} has parameters of its own, which no attached optimizer "
                "trains; make the optimizer from method.parameter_groups()"
            )

    def detach(self) -> None:
        """Stop following the optimizers; the weights stay as they are."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None

    # -- dead units ---------------------------------------------------------------------------

    @torch.no_grad()
    def zero_dead_(self) -> None:
        """Zero all weights of dead units: those whose incoming or outgoing weights are all zero.

        Without an example input the model stays as it is.
        """
        if self.example_input is None:
            return
        named = dict(self.model.named_parameters(remove_duplicate=False))
        for name, dead in dead_elements(self.model, self.example_input).items():
            if name in named:
                named[name].masked_fill_(dead, 0.0)

    # -- ending in a state ------------------------------------------------------------------

    def _require_hard(self) -> None:
        if not self.hard:
            raise TyingError("the weights are still soft; call harden() before finish()")

    def _stored(self, tied: Mapping[str, tuple[int, Indices]]) -> Iterator[TiedTensor | KeptTensor]:
        """All tensors of the state dict, one at a time; what is sharded is gathered for it.

        `tied` maps names to (codebook, indices).
        """
        replaced = self._replaced_values()
        for name, value in self._owned().items():
            if name in tied:
                codebook, indices = tied[name]
                yield TiedTensor(name, codebook, indices())
            else:
                array = to_array(replaced.get(name, whole(local(value), value)))
                yield KeptTensor(name, dtype_for(value.dtype), array, value.requires_grad)

    def _replaced_values(self) -> dict[str, Tensor]:
        """Tensors that the file has with other values than the model in training."""
        return {}

    def _owned(self) -> dict[str, Tensor]:
        """The state dict without aliases."""
        first = self._first_names()
        return {n: v for n, v in self._entries().items() if first[id(v)] == n}

    def _aliases(self) -> dict[str, str]:
        """Names of tensors that are stored under another one."""
        first = self._first_names()
        return {n: first[id(v)] for n, v in self._entries().items() if first[id(v)] != n}

    def _first_names(self) -> dict[int, str]:
        """The name that each tensor is stored under, by its identity."""
        return {id(value): name for name, value in reversed(self._entries().items())}

    def _entries(self) -> dict[str, Tensor]:
        """The state dict, all of it tensors."""
        found = {}
        for key, value in self.model.state_dict(keep_vars=True).items():
            name = original_name(key)
            if not isinstance(value, Tensor):
                raise TyingError(
                    f"the state dict holds {name!r}, a {type(value).__name__} and not a tensor, "
                    "which a .reef file cannot hold; drop it from get_extra_state()"
                )
            found[name] = value
        return found
