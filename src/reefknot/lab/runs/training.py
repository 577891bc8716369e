"""The training loop.

Takes     a model, a method attached to its optimizer, batches, and a plan: how many steps, at which
          learning rates.
Gives     a generator that yields after every step and around each change of phase, so that the
          caller can evaluate, save or stop there.
Paper     section 3: soft tying for a number of steps, then hard tying.
Unaware   of which method it runs, of files and of progress bars.

A step depends on its number (which gives the batch and the learning rate) and on the states of
model, optimizer, method and torch's random generator. So saving those four is enough to resume.
"""

import copy
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from reefknot.batchnorm import update_batchnorm
from reefknot.errors import DivergedError, blamed_on
from reefknot.lab.runs.batches import Batches
from reefknot.lab.runs.precision import reduced_precision
from reefknot.methods import Method
from reefknot.shrinking import Narrowed

log = logging.getLogger("reefknot")

Decay = Literal["constant", "linear", "cosine", "one_cycle", "plateau", "phases"]

WARM_UP = 0.125  # the share of the steps in which the learning rate of "one_cycle" rises
PATIENCE = 10  # measurements without a better one, after which "plateau" halves the learning rate

# In nats, where chance level is ln(classes). Beyond this limit training has diverged, even if every
# number is still finite.
MAX_LOSS = 1e6


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many steps there are, and the learning rate at each.

    After `soft_steps` the method is hardened; None leaves that to its own phases. The learning rate
    decays separately in the soft and the hard part; with "phases" it is the method's schedule.
    "one_cycle" rises from 0 first, and then falls to 0; "plateau" halves when the validation error
    has not improved.
    """

    steps: int
    soft_steps: int | None
    lr: float
    hard_lr: float
    decay: Decay = "constant"

    def lr_at(self, step: int, method: Method, measured: Sequence[tuple[int, float]] = ()) -> float:
        """The learning rate after `step` completed steps.

        `measured` are pairs of a step and the validation error after it.
        """
        if self.decay == "phases":
            return self.lr * method.lr_factor(step)
        soft_steps = self.steps if self.soft_steps is None else self.soft_steps
        top = self.top_at(step)
        begin, end = (0, soft_steps) if step < soft_steps else (soft_steps, self.steps)
        done = (step - begin) / (end - begin)
        if self.decay == "linear":
            return top * (1 - done)
        if self.decay == "cosine":
            return top * (1 + math.cos(math.pi * done)) / 2
        if self.decay == "one_cycle":
            return top * min(done / WARM_UP, (1 - done) / (1 - WARM_UP))
        if self.decay == "plateau":
            return top / 2 ** _stalls(error for at, error in measured if begin < at <= step)
        return top

    def top_at(self, step: int) -> float:
        """The learning rate after `step` completed steps, without its decay."""
        return self.lr if self.soft_steps is None or step < self.soft_steps else self.hard_lr


def _stalls(errors: Iterable[float]) -> int:
    """How often PATIENCE errors in a row were no better than the best before them."""
    best, waited, stalls = math.inf, 0, 0
    for error in errors:
        waited = 0 if error < best else waited + 1
        best = min(best, error)
        if waited == PATIENCE:
            waited, stalls = 0, stalls + 1
    return stalls


class Progress(NamedTuple):
    """The state of training: completed steps, and data loss and learning rate of the last one.

    `event` is "step" after a step, "leaving" before a phase ends, "entered" after the next begins;
    `phase` is the method's name of the phase.
    """

    event: Literal["step", "leaving", "entered"]
    step: int
    loss: float
    lr: float
    phase: str


def train(
    model: nn.Module,
    method: Method,
    optimizer: Optimizer,
    batches: Batches,
    plan: Plan,
    *,
    step: int = 0,
    shrink: bool = False,
    bf16: bool = False,
    label_smoothing: float = 0.0,
    measured: Sequence[tuple[int, float]] = (),
) -> Iterator[Progress]:
    """Train, continuing after `step` completed steps, until the method is hardened.

    With `shrink`, units that are dead because of fixed zeros are not computed. With `bf16` the
    network computes in bfloat16. `measured` are the steps and validation errors so far, to which
    the caller may append; `decay = "plateau"` looks at them. Statistics of BatchNorm are
    estimated again when the weights have moved to other values, and at the end.
    """
    loss = lr = math.nan
    phase = method.phase.name
    method.advances = False  # so that the caller can evaluate between phases
    model.train()
    network = _narrowed(model, method, batches) if shrink else model
    while True:
        due = method.advance if method.phase.over else None
        if step == plan.soft_steps and not method.phase.is_last:
            due = method.harden
        if due is not None:
            yield Progress("leaving", step, loss, lr, phase)
            due()
            _renew_statistics(model, batches, bf16)
            phase = method.phase.name
            network = _narrowed(model, method, batches) if shrink else model
            yield Progress("entered", step, loss, lr, phase)
        if step >= plan.steps:
            if method.phase.is_tied:
                _renew_statistics(model, batches, bf16)
            return
        lr = plan.lr_at(step, method, measured)
        for group in optimizer.param_groups:
            own = lr if group.get("lr_decays", True) else plan.top_at(step)
            group["lr"] = own * group.get("lr_factor", 1.0)
        with blamed_on(f"step {step + 1:,}"):
            optimizer.zero_grad()
            loss = _backward(network, *batches[step], bf16=bf16, label_smoothing=label_smoothing)
        if not loss <= MAX_LOSS:  # true for NaN, too
            raise DivergedError(f"the loss is {loss:.3g} at step {step + 1:,}")
        try:
            optimizer.step()
        except DivergedError as error:
            raise DivergedError(f"at step {step + 1:,} {error}") from error
        step += 1
        yield Progress("step", step, loss, lr, phase)


def _backward(
    network: Callable[[Tensor], Tensor],
    inputs: Tensor,
    labels: Tensor,
    *,
    bf16: bool,
    label_smoothing: float,
) -> float:
    """Add the gradient of the loss on a batch to the parameters; gives the loss."""
    with reduced_precision(inputs, bf16):
        outputs = network(inputs)
    outputs = outputs.float() if bf16 else outputs
    loss = cross_entropy(outputs, labels, label_smoothing=label_smoothing)
    loss.backward()
    return loss.item()


def _renew_statistics(model: nn.Module, batches: Batches, bf16: bool) -> None:
    with (
        blamed_on("estimating batch-norm statistics"),
        reduced_precision(batches.inputs, bf16),
    ):
        update_batchnorm(model, batches.some_inputs())


def _narrowed(model: nn.Module, method: Method, batches: Batches) -> Callable[[Tensor], Tensor]:
    """The model, or if zeros are fixed, the model without its dead units."""
    fixed = method.phase.fixed_zeros()
    if not fixed:
        return model
    smaller = Narrowed(model, fixed, batches.inputs[:1])
    before, after = smaller.macs
    log.info("multiplications for one example: %s of %s", f"{after:,}", f"{before:,}")
    return smaller


# Float32 may be off by this share of the outputs' spread, or by that of the largest of them (where
# they all but agree); by far less in practice.
_DOUBTFUL, _DOUBTFUL_OF_ALL = 1e-2, 1e-4
# Outputs that differ by less than this share of the largest one are equal: in float64, sums in
# another order differ by some 1e-14 of it, those of different values in all records by 1e-7.
_EQUAL = 1e-10


def error_percent(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, exact: bool = False, bf16: bool = False
) -> float:
    """The error rate of the model on these examples, in percent.

    With `exact` the count is that of float64, and so the same on every machine: examples whose two
    largest outputs nearly agree in float32 are computed again, and are wrong if another output
    equals the right one, but for rounding. With `bf16` the network computes in bfloat16, as it does
    in training.
    """
    wrong = 0
    with torch.no_grad(), blamed_on("evaluating the network"):
        precise = copy.deepcopy(model).double().eval() if exact else None
        was_training = model.training
        model.eval()
        for x, y in zip(inputs.split(1000), labels.split(1000), strict=True):
            with reduced_precision(x, bf16):
                outputs = model(x)
            right = outputs.argmax(1) == y
            if precise is not None and bool((doubtful := _doubtful(outputs)).any()):
                right[doubtful] = _is_right(precise(x[doubtful].double()), y[doubtful])
            wrong += int((~right).sum())
    model.train(was_training)
    return 100 * wrong / len(labels)


def _is_right(outputs: Tensor, labels: Tensor) -> Tensor:
    """Examples whose right output exceeds every other by more than rounding."""
    right = outputs.gather(1, labels[:, None])
    others = outputs.scatter(1, labels[:, None], -math.inf).amax(1, keepdim=True)
    return (right - others > _EQUAL * outputs.abs().amax(1, keepdim=True)).flatten()


def _doubtful(outputs: Tensor) -> Tensor:
    """Examples whose largest output another one could be, but for rounding."""
    if outputs.shape[1] < 2:
        return torch.zeros(len(outputs), dtype=torch.bool, device=outputs.device)
    first, second = outputs.topk(2, 1).values.unbind(1)
    off = _DOUBTFUL * (first - outputs.amin(1)) + _DOUBTFUL_OF_ALL * outputs.abs().amax(1)
    return ~(first - second > off)  # true for NaN, too
