"""Hooks around `optimizer.step()`, which run a method inside the user's own training loop.

Takes     torch optimizers and two functions.
Gives     a call before each step that really happens, when gradients are ready and not yet used,
          and a call after it.
Unaware   of what the functions do.

With `step(closure)` the gradients exist only after the closure, which also zeroes them first, so
the closure is wrapped. With a GradScaler and a fused optimizer, gradients are still scaled, and the
optimizer itself skips a step with infinite gradients; both are handled here. An optimizer whose
`step` calls its base class's `step` runs the hooks twice; only the outer call counts.
`torch.compile` does not compile the hooks. A copied optimizer would have no hooks and train without
the method, so deep copies are refused while the hooks are installed.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from reefknot.errors import TyingError
from reefknot.tying.collectives import is_dtensor, local
from reefknot.tying.group import Group
from reefknot.tying.ops import is_dense
from reefknot.tying.tying import Tying

_WRAPPER = Optimizer.profile_hook_step(Optimizer.step).__code__  # torch's, which calls the hooks


@dataclass
class Step:
    """One step of one optimizer, as a method sees it."""

    optimizer: Optimizer
    starts_round: bool = True  # no other optimizer has stepped in this round yet
    ends_round: bool = True  # every optimizer has now stepped
    grad_scale: float = 1.0  # the GradScaler's factor in the gradients at `before_step`

    def moved(self, tying: Tying) -> Iterator[tuple[float, Group, str, nn.Parameter]]:
        """The tied parameters that the optimizer moves, with their learning rates."""
        for param_group in self.optimizer.param_groups:
            for parameter in param_group["params"]:
                if parameter in tying.home:
                    yield float(param_group["lr"]), *tying.home[parameter], parameter

    def gradients(self, tying: Tying) -> Iterator[tuple[Group, dict[str, Tensor]]]:
        """For each group, the gradients of its members that the optimizer moves."""
        found: dict[str, dict[str, Tensor]] = {}
        for _, group, name, parameter in self.moved(tying):
            grad = dense_grad(name, parameter)
            if grad is not None:
                found.setdefault(group.name, {})[name] = grad
        for group in tying.groups:
            if group.name in found:
                yield group, found[group.name]


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
        optimizers = tuple(map(_innermost, optimizers))
        if not optimizers:
            raise TyingError("attach needs the optimizer (or optimizers) that train the model")
        if len(set(map(id, optimizers))) < len(optimizers):
            raise TyingError("attach was given the same optimizer twice")
        for optimizer in optimizers:
            if "__deepcopy__" in vars(optimizer):
                raise TyingError(
                    f"another method is attached to the {type(optimizer).__name__} already; call "
                    "its detach() first, or make a new optimizer"
                )
        self._optimizers = optimizers
        self._before, self._after = before, after
        self._is_over = False
        self._stepped: set[int] = set()  # optimizers that have stepped in this round
        self._current: dict[int, Step] = {}  # by optimizer, between its two hooks
        enter, leave = torch.compiler.disable(self._enter), torch.compiler.disable(self._leave)
        self._handles = [
            (optimizer.register_step_pre_hook(enter), optimizer.register_step_post_hook(leave))
            for optimizer in optimizers
        ]
        for optimizer, (_, after_hook) in zip(optimizers, self._handles, strict=True):
            # What others do after a step (copy or send the weights) comes after ours.
            in_order: Any = optimizer._optimizer_step_post_hooks
            in_order.move_to_end(after_hook.id, last=False)
            vars(optimizer)["__deepcopy__"] = _refuse_copy

    def remove(self) -> None:
        """Remove the hooks."""
        for before, after in self._handles:
            before.remove()
            after.remove()
        for optimizer in self._optimizers:
            vars(optimizer).pop("__deepcopy__", None)

    def end(self) -> None:
        """From now on refuse steps: they would untie what is finished."""
        self._is_over = True
        for optimizer in self._optimizers:
            vars(optimizer).pop("__deepcopy__", None)

    def are_over(self, optimizers: tuple[Optimizer, ...]) -> bool:
        """Whether these hooks have ended, and others of these optimizers may take their place."""
        return self._is_over and not set(self._optimizers).isdisjoint(map(_innermost, optimizers))

    def _enter(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if _is_inner_call(optimizer):
            return None
        if self._is_over:
            raise TyingError(
                "this step comes after finish(), and would untie the weights; take all steps "
                "before it, or call detach() to train on without tying"
            )
        self._current.pop(id(optimizer), None)  # left over if the last step raised
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and float(found_inf) > 0:
            return None  # the optimizer will skip this step
        scale = getattr(optimizer, "grad_scale", None)
        if id(optimizer) in self._stepped:
            self._stepped.clear()  # a new round, although the others did not step
        step = Step(
            optimizer,
            starts_round=not self._stepped,
            grad_scale=1.0 if scale is None else float(scale),
        )
        # args[0] is the optimizer itself.
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
        if _is_inner_call(optimizer):
            return
        step = self._current.pop(id(optimizer), None)
        if step is None:
            return  # skipped
        self._stepped.add(id(optimizer))
        step.ends_round = len(self._stepped) == len(self._optimizers)
        if step.ends_round:
            self._stepped.clear()
        with torch.no_grad():
            self._after(step)


def _is_inner_call(optimizer: Optimizer) -> bool:
    """Whether the hook runs in a nested `step`, called from a `step` of the same optimizer.

    This is read from the stack. A counter would go wrong when a step raises.
    """
    frame, calls = sys._getframe(1), 0
    while frame is not None and calls < 2:
        if frame.f_code is _WRAPPER and frame.f_locals.get("self") is optimizer:
            calls += 1
        frame = frame.f_back  # type: ignore[assignment]
    return calls == 2


def _refuse_copy(memo: dict[int, Any]) -> Any:
    raise TyingError(
        "an optimizer that a method is attached to cannot be copied: the copy would train without "
        "it; copy its state_dict(), or detach(), copy, and attach() again"
    )


def _innermost(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside a framework's wrapper (Accelerate's): its `step` is the real one."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def _check(optimizer: Optimizer) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TyingError(f"attach takes torch optimizers, found {type(optimizer).__name__}")
    if isinstance(optimizer, LBFGS):
        raise TyingError(
            "LBFGS evaluates the loss several times a step and would not see the penalties in it; "
            "use an optimizer that takes one gradient a step (SGD, Adam, Adadelta, ...)"
        )


def trained_by(*optimizers: Optimizer) -> set[Tensor]:
    """All parameters that these optimizers train."""
    return {p for o in optimizers for group in o.param_groups for p in group["params"]}


def dense_grad(name: str, parameter: Tensor) -> Tensor | None:
    """The gradient of a parameter, or None; its elements do not share memory.

    A sparse gradient is refused, and so is one whose shape or device is not the parameter's.
    """
    unshare_grad_(parameter)
    grad = parameter.grad
    if grad is None:
        return None
    if grad.layout != torch.strided:
        raise TyingError(
            f"the gradient of {name!r} is sparse, and every weight must be pulled at every step; "
            "make the embedding with sparse=False, or exclude this parameter"
        )
    if grad.shape != parameter.shape or grad.device != parameter.device:
        raise TyingError(
            f"the gradient of {name!r} has shape {tuple(grad.shape)} on {grad.device}, the "
            f"parameter {tuple(parameter.shape)} on {parameter.device}; a tied parameter keeps its "
            "shape, and is moved before the backward pass"
        )
    return local(grad)


def unshare_grad_(parameter: Tensor) -> None:
    """Replace a gradient whose elements share memory (an expanded one) by a contiguous copy."""
    grad = parameter.grad
    if grad is None or is_dtensor(grad):
        return
    if grad.layout == torch.strided and not is_dense(grad):
        parameter.grad = grad.contiguous()
