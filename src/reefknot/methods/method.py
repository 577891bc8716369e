"""The contract that every method implements: a list of phases, and what goes through it.

Takes     a model and settings.
Gives     hooks on the user's optimizers, which call the current phase before and after each step;
          a saved state to resume from; and in the end a `TiedState`.
Unaware   of the training loop, and of what a phase does.

    method = METHODS[name](model, **settings)     # before the optimizer is made
    optimizer = SGD(method.parameter_groups(), ...)
    method.attach(optimizer)
    ...                                           # train
    method.harden()                               # go to the last phase, unless steps lead to it
    ...                                           # train
    state = method.finish()

No code outside a method's file asks which method it has, and none asks which phase: a phase says
about itself what others need to know.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self, dataclass_transform, get_args
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from reefknot.batchnorm import inference_form
from reefknot.errors import ConfigError, ReefknotError, TyingError
from reefknot.format import encode
from reefknot.methods.example import FirstInputs
from reefknot.methods.plan import Fixed, Tensors, fixed_bytes
from reefknot.methods.settings import (
    are_clusters,
    are_patterns,
    described,
    is_choice,
    is_scope,
    mistakes_in,
    setting,
    settings_of,
)
from reefknot.phases.hooks import Step, StepHooks, trained_by
from reefknot.phases.phase import Phase, lr_factor
from reefknot.state import TiedState
from reefknot.tying.collectives import Processes
from reefknot.tying.content import Content, content_of, entries_of
from reefknot.tying.saved import refuse_other_plan, refuse_unknown, saved_count
from reefknot.tying.selection import FOLDED, NETWORK, Norms, Scope, original_name, unwrapped
from reefknot.tying.statistics import spreads
from reefknot.tying.tying import NumClusters, Saved, Tying, at_zero, by_reason

log = logging.getLogger("reefknot")

_LARGE = 2_000_000  # weights

Stats = dict[str, Any]
_attached: "WeakSet[Method]" = WeakSet()  # those that follow optimizers now


@dataclass_transform(field_specifiers=(setting, field), kw_only_default=True)
@dataclass(eq=False, repr=False)
class Method(ABC):
    """A way to train a network into a `TiedState`.

    A subclass declares its settings as fields (`methods/settings.py`), which makes it a dataclass:
    its constructor takes the model and the settings. With an `example_input` of the model they can
    also find dead units.
    """

    name: ClassVar[str]
    frees_optimizers: ClassVar[bool] = True  # after finish(); if not, further steps are refused

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
        self.skipped: dict[str, str] = {}  # parameters left as they are, and why
        self.step = 0  # rounds of optimizer steps since attach
        self.advances = True  # whether the hooks enter the next phase by themselves
        self.phases = list(self._all_phases())
        self.model = unwrapped(self.model)
        self._current = 0
        self._has_begun = False
        self._hooks: StepHooks | None = None
        _activate(self.phase, self.phases)

    @classmethod
    def mistakes(cls, settings: Mapping[str, Any]) -> list[str]:
        """What is wrong with these settings, one sentence each; all of them, not only the first."""
        return list(mistakes_in(cls, settings))

    @abstractmethod
    def _all_phases(self) -> Sequence[Phase]:
        """All phases in order; the last one says that it is."""

    # -- training ---------------------------------------------------------------------------

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What the optimizer is made of: the model's trainable parameters and the phases' own.

        A group with an `lr_factor` is trained at the scheduled learning rate times this factor; one
        whose `lr_decays` is False at the learning rate without its decay. A loop that sets learning
        rates itself must heed both.
        """
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        return [{"params": trainable}, *(g for p in self.phases for g in p.parameter_groups())]

    def attach(self, *optimizers: Optimizer) -> Self:
        """Follow these optimizers from now on: their `step()` does the rest.

        Nothing is added to an optimizer's state or parameter groups. With several optimizers a
        round is one step of each.
        """
        if self._hooks is not None:
            raise TyingError("this method is attached already; call detach() first")
        self.phase.check()
        for other in list(_attached):
            if other._hooks is not None and other._hooks.are_over(optimizers):
                other.detach()
        hooks = StepHooks(optimizers, self._before_step, self._after_step)
        try:
            self._check_trained(optimizers)
            self._begin()
        except ReefknotError:
            hooks.remove()
            raise
        self._hooks = hooks
        _attached.add(self)
        return self

    def detach(self) -> None:
        """Stop following the optimizers; the weights stay as they are."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
            _attached.discard(self)

    def lr_factor(self, step: int) -> float:
        """The factor on the learning rate after this many steps."""
        return lr_factor(self.phases, step)

    def lr_scheduler(self, optimizer: Optimizer) -> LambdaLR:
        """A torch scheduler with these factors; call its `step()` once per round."""

        def factor(step: int) -> float:
            if step and not self._has_begun:
                raise TyingError(_NOT_ATTACHED)
            return self.lr_factor(step)

        return LambdaLR(optimizer, factor)

    def _check_trained(self, optimizers: tuple[Optimizer, ...]) -> None:
        """Refuse optimizers that do not train this model, or not the phases' own parameters."""
        own = {p for g in self.parameter_groups()[1:] for p in g["params"]}
        known = own.union(self.model.parameters())
        for optimizer in optimizers:
            if known.isdisjoint(trained_by(optimizer)):
                raise TyingError(
                    f"the {type(optimizer).__name__} trains no parameter of the model that was "
                    f"given to {type(self).__name__}; make it from method.parameter_groups(), "
                    "after the last change of the model"
                )
        if not self.phase.is_last and not own.issubset(trained_by(*optimizers)):
            raise TyingError(
                f"{type(self).__name__} has parameters of its own, which no attached optimizer "
                "trains; make the optimizer from method.parameter_groups()"
            )

    # -- phases -----------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self.phases[self._current]

    def advance(self) -> None:
        """Enter the next phase; the hooks call this when one is over unless `advances` is off."""
        if self.phase.is_last:
            raise TyingError(f"{self.phase.name} is the last phase; call finish() to end it")
        self._go_to(self._current + 1)

    def harden(self) -> None:
        """Go to the last phase, in which clusters are final."""
        if self.phase.is_last:
            raise TyingError("the weights are hard already; harden() is called once")
        self.phase.check()
        if self.phase.steps is not None:
            left_out = [phase.name for phase in self.phases[self._current + 1 : -1]]
            log.warning(
                "harden() after %d steps: %s is cut short, left out: %s",
                self.step,
                self.phase.name,
                ", ".join(left_out) or "none",
            )
        self._go_to(len(self.phases) - 1)

    def _begin(self) -> None:
        """Enter the first phase, unless that is done."""
        if not self._has_begun:
            with torch.no_grad():
                self.phase.enter()
            self._has_begun = True

    def _go_to(self, number: int) -> None:
        before = self.phase
        with torch.no_grad():
            before.leave()
            density = before.density()
            self._current = number
            _activate(self.phase, self.phases)
            self.phase.step = 0  # it may have run before, if an earlier state was loaded since
            self.phase.enter()
        self._has_begun = True
        log.info(
            "step %d: %s ends at a density of %.4f, %s begins at %.4f",
            self.step,
            before.name,
            density,
            self.phase.name,
            self.phase.density(),
        )

    def _before_step(self, step: Step) -> None:
        self.phase.follow()
        self._begin()
        self.phase.before_step(step)

    def _after_step(self, step: Step) -> None:
        self.phase.follow()
        if step.ends_round:
            self.step += 1
            self.phase.step += 1
        self.phase.after_step(step)
        if step.ends_round and self.phase.over and self.advances:
            self.advance()

    # -- the result -------------------------------------------------------------------------

    def finish(self) -> TiedState:
        """The result; the model is left with plain layers and these values.

        Where weights are sharded every process must call it, and has all of the state then.
        """
        self.finalize()
        return self.content().state()

    def finalize(self) -> None:
        """What `finish` does to the model: the weights are as the file will have them, for good."""
        if not self.phase.is_last:
            raise TyingError(_unfinished(self))
        self.phase.check()
        self.phase.finalize()
        if self._hooks is not None and not self.frees_optimizers:
            self._hooks.end()
        else:
            self.detach()

    def content(self) -> Content:
        """The current state in parts: tensors come one at a time, so that no process holds all."""
        return content_of(self.model)

    # -- reading and saving -----------------------------------------------------------------

    def stats(self) -> Stats:
        """What a progress bar or a log shows: phase, step, density, predicted bytes, clusters."""
        return {
            "phase": self.phase.name,
            "is_last": self.phase.is_last,
            "is_tied": self.phase.is_tied,
            "is_attached": self._hooks is not None,
            "step": self.step,
            "density": self.phase.density(),
            "predicted_bytes": dense_bytes(self.model),
            **self.phase.stats(),
        }

    def state_dict(self) -> Saved:
        """Everything needed to resume exactly here: tensors and numbers only."""
        saved: Saved = {
            "step": self.step,
            "phase": self._current,
            "entered": int(self._has_begun),
        }
        return saved | self.plan() | self.phase.state_dict()

    def plan(self) -> dict[str, int | float]:
        """What a saved state must agree in: the phases and their steps, -1 where they are open."""
        return {
            f"plan.{number}.{phase.name}": -1 if phase.steps is None else phase.steps
            for number, phase in enumerate(self.phases)
        }

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore what `state_dict` saved, before or after `attach`.

        A state that does not fit is refused, and the method is left as it was.
        """
        if not isinstance(state, Mapping):
            raise TyingError(f"a saved state is a dict, found a {type(state).__name__}")
        refuse_other_plan(state, self.plan())
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
        self._current = saved_count(state, "phase", most=len(self.phases) - 1)
        least = int(self._current > 0)  # later phases are entered as soon as they are reached
        self._has_begun = bool(saved_count(state, "entered", least=least, most=1))
        self.phase.load_state_dict(state)
        _activate(self.phase, self.phases)


def _activate(current: Phase, phases: Sequence[Phase]) -> None:
    for phase in phases:
        phase.set_active(phase is current)


_NOT_ATTACHED = (
    "attach(optimizer) was not called, so no step of training was followed; call it before the "
    "first step"
)


def _unfinished(method: Method) -> str:
    if not method._has_begun:
        return _NOT_ATTACHED
    if method.phase.steps is None:
        return "the weights are still soft; call harden() before finish()"
    left = sum(phase.steps or 0 for phase in method.phases) - method.step
    return (
        f"training is in its phase {method.phase.name!r} with {left:,} steps left; train on, "
        "or call harden() to end it now"
    )


def dense_bytes(model: nn.Module) -> int:
    """The bytes of the uncompressed tensors."""
    tensors = model.state_dict(keep_vars=True).values()
    return sum(t.nbytes for t in {id(t): t for t in tensors if isinstance(t, Tensor)}.values())


NORMS_DOC = (
    'scales and shifts of norm layers: with a "separate" codebook and never pruned, '
    '"tied" with everything else, "exact", or "folded": when training ends the statistics of '
    "BatchNorm become part of scale and shift, two numbers of 8 bits a channel, in a file to be "
    'trained on only after `update_batchnorm`; other norm layers as with "separate"'
)
RENAMED_NORMS = {"own": "separate", "kept": "exact", "inference": "folded"}


class TyingMethod(Method):
    """A method whose weights end in groups that share a codebook each."""

    frees_optimizers: ClassVar[bool] = False

    num_clusters: NumClusters = setting(
        default=17,
        doc="K, zero included, or a table from group names to K",
        check=are_clusters(least=2),
        kw_only=False,
    )
    scope: Scope = setting(
        default=NETWORK,
        doc='which parameters share a codebook: "network", "tensor", or a table from group names '
        "to name patterns, of which the first match counts",
        check=is_scope,
    )
    include: Sequence[str] | str = setting(
        default="*", doc="patterns of the parameters to tie", check=are_patterns
    )
    exclude: Sequence[str] | str = setting(
        default=(), doc="patterns of the parameters not to tie", check=are_patterns
    )
    norms: Norms = setting(
        default="separate",
        doc=NORMS_DOC,
        check=is_choice(*get_args(Norms), renamed=RENAMED_NORMS),
    )

    @abstractmethod
    def phases_of(self, tying: Tying) -> Sequence[Phase]:
        """All phases in order; the last one is `Frozen`."""

    def make_tying(self, **options: Any) -> Tying:
        """The tying of the model, by the settings; a method may give other options."""
        given = {"num_clusters": self.num_clusters, "exclude": self.exclude} | options
        norms = self.norm_form
        return Tying(self.model, scope=self.scope, include=self.include, norms=norms, **given)

    @property
    def norm_form(self) -> Norms:
        """What becomes of norm layers."""
        return self.norms

    def _all_phases(self) -> Sequence[Phase]:
        self.tying = self.make_tying()
        self.skipped = self.tying.skipped
        if kept := {name: why for name, why in self.skipped.items() if why != FOLDED}:
            log.warning("not tied: %s", "; ".join(by_reason(kept)))
        self.first_inputs = FirstInputs(unwrapped(self.model), self.example_input)
        self._predicted: tuple[int, int] | None = None  # bytes, and the version of the tying
        return self.phases_of(self.tying)

    # -- training ---------------------------------------------------------------------------

    def _check_trained(self, optimizers: tuple[Optimizer, ...]) -> None:
        facts = {f.name: str(getattr(self, f.name)) for f in settings_of(type(self))}
        self.tying.check_alike({"the method": type(self).__name__} | facts)
        super()._check_trained(optimizers)
        moved = trained_by(*optimizers)
        home = self.tying.home
        idle = [name for parameter, (_, name) in home.items() if parameter not in moved]
        if idle:
            raise TyingError(
                f"no attached optimizer trains {len(idle)} of {len(home)} tied parameters "
                f"({', '.join(idle[:3])}{', ...' if len(idle) > 3 else ''}), and tying would ruin "
                "them; attach what trains them, too, or leave them out (include, exclude)"
            )
        for other in _attached:
            if isinstance(other, TyingMethod) and (both := home.keys() & other.tying.home.keys()):
                log.warning(
                    "another method, %s, is attached that ties %r, too; the two undo each other's "
                    "work and their files would not fit the model: call detach() of the other",
                    type(other).__name__,
                    home[next(iter(both))][1],
                )

    def _go_to(self, number: int) -> None:
        self.tying.check_copies()
        super()._go_to(number)

    # -- the result -------------------------------------------------------------------------

    def finalize(self) -> None:
        """What `finish` does to the model: the weights are as the file will have them, for good."""
        copies = self.tying.copies
        self.tying.copies = ()  # each process may finish for itself, or one of them alone
        try:
            super().finalize()
        except ReefknotError:
            self.tying.copies = copies
            raise
        entries = entries_of(self.model)
        for name, value in self._replaced_values().items():
            entries[name].detach().copy_(value)

    def content(self) -> Content:
        """The current state in parts: tensors come one at a time, so that no process holds all."""
        return content_of(self.model, self.tying, self._replaced_values())

    @torch.no_grad()
    def _replaced_values(self) -> dict[str, Tensor]:
        """BatchNorm in its form for inference, if that is asked for; dead channels are zero."""
        if self.norm_form != "folded":
            return {}
        replaced = {
            f"{original_name(name)}.{key}".removeprefix("."): value
            for name, module in self.model.named_modules()
            if isinstance(module, _BatchNorm)
            for key, value in inference_form(module).items()
        }
        if replaced:
            for name, dead in self.dead().items():
                if name in replaced and not name.endswith("running_var"):
                    replaced[name].masked_fill_(dead.to(replaced[name].device), 0.0)
        return replaced

    def dead(self) -> dict[str, Tensor]:
        """The elements that no output needs if the zero clusters are zero, as far as is known.

        In a large network this takes longer than coding, so it is done only when zeros are final.
        """
        is_large = self.tying.num_weights > _LARGE and not self.phase.is_last
        if is_large or self.tying.processes.is_distributed:
            return {}
        with torch.no_grad(), at_zero(self.tying):
            return self.first_inputs.dead()

    def _file_bytes(self) -> int:
        """The size of a file with the current clusters, the same in all processes.

        One process measures it: buffers, such as statistics of BatchNorm, may differ in the
        others, and all must steer alike.
        """
        return self._size_among(self.tying.everyone())

    def _size_among(self, processes: Processes) -> int:
        content = self.content()
        held = [tensor for tensor in content.tensors if processes.is_rank0]
        return processes.broadcast_from_rank0(lambda: _size(content, held))

    def _fixed_bytes(self) -> Fixed:
        """What a file with the current clusters weighs, by cause, the same in all processes."""
        content, everyone = self.content(), self.tying.everyone()
        return fixed_bytes(
            self.model,
            list(content.tensors),
            lambda tensors: everyone.broadcast_from_rank0(partial(_size, content, tensors)),
            is_folded=self.norm_form == "folded",
        )

    # -- reading and saving -----------------------------------------------------------------

    def state_dict(self) -> Saved:
        """Step, phase and its state, centers and assignments."""
        self.tying.follow()
        return super().state_dict() | self.tying.state_dict()

    def _load(self, state: Mapping[str, Tensor | int | float]) -> None:
        phase = self.phases[saved_count(state, "phase", most=len(self.phases) - 1)]
        has_begun = bool(saved_count(state, "entered", most=1))
        self.tying.load_state_dict(state, has_zeros=phase.has_zeros and has_begun)
        super()._load(state)

    def stats(self) -> Stats:
        """Phase, density, k-means penalty, predicted bytes, and each group's clusters."""
        self.tying.follow()
        started = [group for group in self.tying.groups if group.assignments]
        return super().stats() | {
            "predicted_bytes": self._predicted_bytes(),
            "num_clusters": max(group.num_clusters for group in self.tying.groups),
            "centers": {group.name: group.centers.tolist() for group in started},
            "counts": {group.name: group.counts.tolist() for group in started},
            "spreads": {group.name: spreads(group).tolist() for group in started},
            "kmeans_penalty": self.tying.kmeans_penalty() if self.tying.has_clusters else None,
            "changed": self.tying.changed,
        }

    def _predicted_bytes(self) -> int:
        """The size of the file; before there are clusters, that of the uncompressed tensors.

        Where weights are replicated, each process may measure it for itself.
        """
        if not self.tying.has_clusters:
            return dense_bytes(self.model)
        if self._predicted is None or self._predicted[1] != self.tying.version:
            self._predicted = self._size_among(self.tying.processes), self.tying.version
        return self._predicted[0]


def _size(content: Content, tensors: Tensors) -> int:
    """The size of a file with some tensors of a content."""
    names = {tensor.name for tensor in tensors}
    aliases = {name: first for name, first in content.aliases.items() if first in names}
    return len(encode(TiedState(content.codebooks, tuple(tensors), aliases)))


class WithoutZeroCluster(TyingMethod):
    """A tying method that makes no weight zero."""

    num_clusters: NumClusters = setting(
        default=16,
        doc="K, or a table from group names to K",
        check=are_clusters(least=1),
        kw_only=False,
    )

    def make_tying(self, **options: Any) -> Tying:
        """The tying of the model, by the settings, with no zero cluster."""
        return super().make_tying(zero_cluster=False, **options)
