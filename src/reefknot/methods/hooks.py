"""Around `optimizer.step()`: how a method gets its turn in a loop it does not own.

Takes     torch optimizers and two functions.
Gives     a call before each step that really happens, when gradients are ready and not yet used,
          and a call after it.
Unaware   of what the functions do.

With `step(closure)` the gradients exist only after the closure, which also zeroes them first: so
the closure is wrapped. With a GradScaler and a fused optimizer the gradients are still scaled and
a step with infinities in them is skipped inside the optimizer: both are looked at here. An
optimizer whose `step` calls its base class's runs the hooks twice: only the outer call counts.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from reefknot.errors import TyingError


@dataclass
class Step:
    """One step of one optimizer, as a method sees it."""

    optimizer: Optimizer
    starts_round: bool = True  # no other optimizer has stepped in this round yet
    ends_round: bool = True  # every optimizer has now stepped
    grad_scale: float = 1.0  # gradients are this many times too large at `before_step`


class StepHooks:
    """Calls `before` and `after` around each real step of the optimizers; `remove` ends it."""

    def __init__(
        self,
        optimizers: tuple[Optimizer, ...],
        before: Callable[[Step], None],
        after: Callable[[Step], None],
    ) -> None:
        for optimizer in optimizers:
            _check(optimizer)
        if not optimizers:
            raise TyingError("attach needs the optimizer (or optimizers) that train the model")
        if len(set(map(id, optimizers))) < len(optimizers):
            raise TyingError("attach was given the same optimizer twice")
        self._optimizers = optimizers
        self._before, self._after = before, after
        self._stepped: set[int] = set()  # optimizers that have stepped in this round
        self._current: dict[int, Step] = {}  # by optimizer, between its two hooks
        self._frames: dict[int, FrameType] = {}  # of the outermost `step` call under way
        self._handles = [
            handle
            for optimizer in optimizers
            for handle in (
                optimizer.register_step_pre_hook(self._enter),
                optimizer.register_step_post_hook(self._leave),
            )
        ]

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()

    def _enter(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        caller = sys._getframe(1)  # torch's wrapper around `step`
        if _is_inside(caller, self._frames.get(id(optimizer))):
            return None
        self._frames[id(optimizer)] = caller
        self._current.pop(id(optimizer), None)  # left over if the last step raised
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and float(found_inf) > 0:
            return None  # the optimizer will skip this step
        scale = getattr(optimizer, "grad_scale", None)
        if id(optimizer) in self._stepped:
            self._stepped.clear()  # it comes round again although others did not step
        step = Step(
            optimizer,
            starts_round=not self._stepped,
            grad_scale=1.0 if scale is None else float(scale),
        )
        # args begin with the optimizer itself.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._begin(step)
            return None
        wrapped = self._wrapped(closure, step)
        if len(args) > 1:
            return (args[0], wrapped, *args[2:]), kwargs
        return args, {**kwargs, "closure": wrapped}

    def _wrapped(self, closure: Callable[[], Any], step: Step) -> Callable[[], Any]:
        def evaluate() -> Any:
            if id(step.optimizer) in self._current:
                raise TyingError(
                    f"{type(step.optimizer).__name__} evaluates its closure more than once a "
                    "step, which tying does not support; use an optimizer that does it once"
                )
            loss = closure()
            self._begin(step)
            return loss

        return evaluate

    def _begin(self, step: Step) -> None:
        with torch.no_grad():
            self._before(step)
        self._current[id(step.optimizer)] = step

    def _leave(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._frames.get(id(optimizer)) is not sys._getframe(1):
            return  # an inner call
        del self._frames[id(optimizer)]
        step = self._current.pop(id(optimizer), None)
        if step is None:
            return  # skipped
        self._stepped.add(id(optimizer))
        step.ends_round = len(self._stepped) == len(self._optimizers)
        if step.ends_round:
            self._stepped.clear()
        with torch.no_grad():
            self._after(step)


def _is_inside(frame: FrameType | None, outer: FrameType | None) -> bool:
    """Whether `outer` is among the callers of `frame`; it is not if that call has raised."""
    while frame is not None and outer is not None:
        frame = frame.f_back
        if frame is outer:
            return True
    return False


def _check(optimizer: Optimizer) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TyingError(f"attach takes torch optimizers, found {type(optimizer).__name__}")
    if isinstance(optimizer, LBFGS):
        raise TyingError(
            "LBFGS evaluates the loss several times a step and would not see the penalties in it; "
            "use an optimizer that takes one gradient a step (SGD, Adam, Adadelta, ...)"
        )


def dense_grad(name: str, parameter: Tensor) -> Tensor | None:
    """The gradient of a parameter, or None; a sparse one is refused."""
    grad = parameter.grad
    if grad is not None and grad.layout != torch.strided:
        raise TyingError(
            f"the gradient of {name!r} is sparse, and every weight must be pulled at every step; "
            "make the embedding with sparse=False, or exclude this parameter"
        )
    return grad
