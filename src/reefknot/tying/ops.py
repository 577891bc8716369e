"""The operations of tying on tensors: compiled loops on the CPU, torch everywhere else.

Takes     weight tensors, their assignments of the same layout, and the K centers.
Gives     changed gradients, changed weights, or exact sums.
Unaware   of groups, phases and optimizers.

Each has two implementations, compiled and torch: sums are equal bit for bit, gradients up to the
last bit.
"""

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reefknot.errors import DivergedError
from reefknot.kernels import loops
from reefknot.kernels.histogram import InMemory
from reefknot.kernels.shared import borrow
from reefknot.kernels.work import GRAD, SUBBLOCK, WEIGHTS, Row, Work
from reefknot.tying.collectives import ONE_PROCESS, Processes
from reefknot.tying.threads import torch_team

_REAL: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}
_INDEX: dict[torch.dtype, Any] = {torch.uint8: np.uint8, torch.int32: np.int32}
_SUM_BITS = 62  # int64 sums stay below 2**62
_TERM_BITS = {torch.float64: 50}  # each term stays below 2**50: float64 holds every integer there
_SHORT_TERM_BITS = 31  # terms of narrower types are int32
_PIECE = 1 << 20  # elements that are widened at a time

Layout = tuple[int, torch.Size, tuple[int, ...], torch.dtype, torch.device]  # the address first

borrow(torch_team())


class Held(NamedTuple):
    """Weights, their assignment of the same layout, and in hard tying their `dead_blocks`."""

    weights: Tensor
    assignment: Tensor
    dead: NDArray[np.uint8] | None = None


def types_of(weights: Tensor, assignment: Tensor) -> tuple[Any, Any]:
    """The types that the compiled loops have for them; None for weights that they cannot handle."""
    return _REAL.get(weights.dtype), _INDEX[assignment.dtype]


def runs_compiled(tensor: Tensor) -> bool:
    """Whether the compiled loops can work on this tensor's memory."""
    return tensor.dtype in _REAL and tensor.device.type == "cpu"


class Tensors:
    """Weights of one dtype with their assignments, prepared once for many steps.

    Sums are over the weights of all `processes`, which together have `num_weights` (None: those
    here).
    """

    def __init__(
        self,
        held: Sequence[Held],
        num_weights: int | None = None,
        processes: Processes = ONE_PROCESS,
    ) -> None:
        self.held, self.processes = list(held), processes
        self.reached = [runs_compiled(weights) for weights, _, _ in held]  # by compiled loops
        rows = [
            Row(
                w.numel() if reached else 0,  # the others are left to torch
                w.data_ptr(),
                0,
                a.data_ptr(),
                0 if dead is None else dead.ctypes.data,
            )
            for (w, a, dead), reached in zip(held, self.reached, strict=True)
        ]
        self.work = Work(rows)
        self._others: Tensors | None = None  # see `on`
        self.sizes = self.work.table[:, 0].copy()
        if num_weights is None:
            num_weights = sum(w.numel() for w, _, _ in held)
        self.num_bits = num_weights.bit_length()
        self.types = types_of(*held[0][:2])

    @cached_property
    def flat_weights(self) -> list[Tensor]:
        """Views of the weights, in memory order."""
        return [flat(weights) for weights, _, _ in self.held]

    @cached_property
    def flat_assignments(self) -> list[Tensor]:
        """Views of the assignments, in memory order."""
        return [flat(assignment) for _, assignment, _ in self.held]

    def on(self, values: Sequence[Tensor | None]) -> "Tensors | None":
        """These assignments for other tensors, such as all gradients; None if one lies differently.

        What it gave before is used again: the addresses change at every step, nothing else does.
        """
        for (weights, _, _), value in zip(self.held, values, strict=True):
            if not is_alike(value, weights):
                return None
        if self._others is None:
            self._others = copy.copy(self)
            self._others.work = Work([Row(*row) for row in self.work.table.tolist()])
        found = cast(Sequence[Tensor], values)
        if not all(self.reached):  # the loops read the table alone
            held = zip(self.held, found, strict=True)
            self._others.held = [one._replace(weights=value) for one, value in held]
        self._others.work.table[:, WEIGHTS] = [value.data_ptr() for value in found]
        return self._others

    def run(self, loop: Any, numbers: tuple[float, ...], **arrays: np.ndarray) -> int:
        """Run a compiled loop over the weights that it can reach."""
        return self.work.run(loop, numbers, torch.get_num_threads(), **arrays)

    def out_of_reach(self) -> list[Held]:
        """The tensors that are left to torch."""
        return [held for held, reached in zip(self.held, self.reached, strict=True) if not reached]


def layout(tensor: Tensor) -> Layout:
    """Address, shape, strides, dtype and device: all that the compiled loops rely on."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def fills_its_memory(tensor: Tensor) -> bool:
    """Whether the elements do not overlap and fill one contiguous piece of memory."""
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    return is_dense(tensor) and end <= tensor.untyped_storage().nbytes()


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one piece of memory, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def flat(tensor: Tensor) -> Tensor:
    """All elements in memory order, as a view (`reshape` would copy channels_last tensors)."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def like(values: Tensor, weights: Tensor) -> Tensor:
    """`values` with the device and the memory layout of `weights`; itself if it has them.

    Both have the same shape, and `weights` fills its memory.
    """
    if values.device == weights.device and in_same_order(values, weights):
        return values
    return torch.empty_like(weights, dtype=values.dtype).copy_(values)


def add_pull_(
    tensors: Tensors,
    grads: Sequence[Tensor | None],
    centers: np.ndarray,
    *,
    tying_strength: float,
    l1_strength: float,
    to_medians: bool,
) -> None:
    """Add the gradient of the two penalties to each gradient (equation 3, the assignment given)."""
    table = tensors.work.table
    for n, (held, grad) in enumerate(zip(tensors.held, grads, strict=True)):
        weights, assignment, _ = held
        together = tensors.reached[n] and is_alike(grad, weights)
        if together:
            assert grad is not None
            table[n, GRAD] = grad.data_ptr()
        elif grad is not None:
            grad.add_(_pull(weights, assignment, centers, tying_strength, l1_strength, to_medians))
        table[n, 0] = tensors.sizes[n] if together else 0
    real, index = tensors.types
    if any(tensors.reached):
        loop = loops.pull(real, index, to_medians)
        tensors.run(loop, (tying_strength, l1_strength), centers=centers.astype(real))
    table[:, 0] = tensors.sizes


def is_alike(grad: Tensor | None, weights: Tensor) -> TypeGuard[Tensor]:
    """Whether there is a gradient whose elements lie in memory as those of its weights do."""
    return (
        grad is not None
        and grad.dtype == weights.dtype
        and grad.shape == weights.shape
        and grad.device == weights.device
        and in_same_order(grad, weights)
    )


def in_same_order(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape lie in memory in the same order.

    Strides of dimensions of size 1 do not matter; torch's convolutions give them any.
    """
    strides, others = tensor.stride(), other.stride()
    return strides == others or all(
        stride == its or size == 1
        for stride, its, size in zip(strides, others, tensor.shape, strict=True)
    )


def _pull(
    w: Tensor, assignment: Tensor, centers: np.ndarray, tying: float, l1: float, to_medians: bool
) -> Tensor:
    """The gradient of the two penalties: `loops.pull` in torch."""
    away = w - _on(centers, w)[assignment.long()]
    if to_medians:
        away = away.sign()
    return away * tying + w.sign() * l1


def cluster_sums(
    tensors: Tensors, num_clusters: int, scale: float, limit: float
) -> np.ndarray | None:
    """Sums per cluster of the weights times `scale` (a power of two), each rounded to an integer.

    None if a term is not below `limit`: the scale is too large, or a weight is not finite. The sums
    do not depend on the order of summation. Dead blocks are left out.
    """
    found = np.zeros(num_clusters + 1, np.int64)  # the last one: terms that are too large
    sums = found[:-1]
    if any(tensors.reached):
        loop = loops.sum_clusters(*tensors.types)
        found[-1] = tensors.run(loop, (scale, limit), sums=sums)
    for device, held in _by_device(tensors.out_of_reach()):
        exact = torch.zeros(num_clusters + 1, dtype=torch.int64, device=device)
        for weights, assignment, _ in held:
            terms = flat(weights).to(device).double() * scale
            exact[-1] += (~(terms.abs() < limit)).sum()
            exact.index_add_(0, flat(assignment).to(device).long(), terms.round().long())
        found += exact.cpu().numpy()
    found = tensors.processes.total(found)
    return None if found[-1] else found[:-1]


def _by_device(held: Sequence[Held]) -> list[tuple[torch.device, list[Held]]]:
    """What lies on each device, so that results leave it once; mps has no float64: on the CPU."""
    found: dict[torch.device, list[Held]] = {}
    for one in held:
        device = one.weights.device
        found.setdefault(torch.device("cpu") if device.type == "mps" else device, []).append(one)
    return list(found.items())


def cluster_counts(assignments: Sequence[Tensor], num_clusters: int) -> NDArray[np.int64]:
    """How many elements of each of these tensors are in each cluster."""
    found = np.zeros((len(assignments), num_clusters), np.int64)
    away: dict[torch.device, list[int]] = {}
    for n, assignment in enumerate(assignments):
        if assignment.device.type != "cpu":
            away.setdefault(assignment.device, []).append(n)
        else:
            found[n] = torch.bincount(flat(assignment), minlength=num_clusters).numpy()
    for device, numbers in away.items():
        counts = torch.zeros(len(numbers), num_clusters, dtype=torch.int64, device=device)
        for row, n in zip(counts, numbers, strict=True):
            for piece in flat(assignments[n]).split(_PIECE):
                row.index_add_(0, piece.long(), torch.ones_like(piece, dtype=torch.int64))
        found[numbers] = counts.cpu().numpy()
    return found


def cluster_means(tensors: Tensors, centers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The mean weight of each cluster; empty clusters and unmoved ones keep their center.

    The result depends neither on the order of the tensors nor on that of the threads.
    """
    # First a scale for weights up to twice the largest center; if one is larger, a second pass.
    for unit in (loops.unit_above(centers), None):
        scale, limit = _fixed_point(tensors, unit)
        sums = cluster_sums(tensors, len(centers), scale, limit)
        if sums is not None:
            means = centers.copy()
            loops.move_to_means(sums, counts, scale, means)
            return means
    raise AssertionError("a scale made from the largest weight has room for all")


def cluster_totals(tensors: Tensors, num_clusters: int) -> np.ndarray:
    """The sum over each cluster."""
    scale, limit = _fixed_point(tensors, None)
    sums = cluster_sums(tensors, num_clusters, scale, limit)
    assert sums is not None
    return sums / scale


def _fixed_point(tensors: Tensors, unit: float | None) -> tuple[float, float]:
    """The fixed-point scale for weights below `unit` (None: for all weights), and its limit."""
    dtype = tensors.held[0].weights.dtype
    bits = min(_SUM_BITS - tensors.num_bits, _TERM_BITS.get(dtype, _SHORT_TERM_BITS))
    if unit is None:
        unit = _unit_above(_largest(tensors), tensors.processes)
    return 2.0**bits / unit, 2.0**bits


def total(tensors: Sequence[Tensor], elements: int, processes: Processes = ONE_PROCESS) -> float:
    """The sum of at most `elements` numbers in all processes; the same for any order."""
    bits = min(_SUM_BITS - elements.bit_length(), _TERM_BITS[torch.float64])
    scale = 2.0**bits / _unit_above(largest(tensors), processes)
    terms = [
        ((piece.cpu() if t.device.type == "mps" else piece).double() * scale).round().long().sum()
        for t in tensors
        for piece in flat(t).split(_PIECE)
    ]
    return float(processes.total(_at_once(terms, torch.int64).sum(keepdims=True))[0]) / scale


def _unit_above(magnitude: float, processes: Processes) -> float:
    """A power of two above twice the largest magnitude of all processes, given that of this one."""
    magnitude = processes.largest(magnitude)
    if not np.isfinite(magnitude):
        raise DivergedError(
            "a weight or a gradient is not finite; lower the learning rate or the strengths"
        )
    return loops.unit_above(np.array([magnitude]))


def largest(tensors: Sequence[Tensor]) -> float:
    """The largest magnitude; NaN or infinity if there is one, 0 if there are no numbers."""
    extents = [bound for t in tensors if t.numel() for bound in t.detach().aminmax()]
    return float(np.abs(_at_once(extents, torch.float64)).max(initial=0.0))


def _largest(tensors: Tensors) -> float:
    """The largest magnitude of prepared weights, by the compiled loops where they can."""
    found = largest([weights for weights, _, _ in tensors.out_of_reach()])
    if any(tensors.reached):
        numbers = InMemory(tensors.work, np.dtype(tensors.types[0]), torch.get_num_threads())
        found = float(np.maximum(found, numbers.largest()))
    return found


def _at_once(numbers: Sequence[Tensor], dtype: torch.dtype) -> np.ndarray:
    """Single numbers, on the host; from each device they come together."""
    found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for number in numbers:
        found.setdefault((number.device, number.dtype), []).append(number)
    rows = [torch.stack(row).cpu().to(dtype).numpy() for row in found.values()]
    return np.concatenate([*rows, np.zeros(0, rows[0].dtype if rows else np.int64)])


def project_(tensors: Tensors, centers: np.ndarray) -> None:
    """Set each weight to its own center."""
    real, index = tensors.types
    if any(tensors.reached):
        tensors.run(loops.project(real, index), (0.0, 0.0), centers=centers.astype(real))
    for weights, assignment, _ in tensors.out_of_reach():
        flat(weights).copy_(_on(centers, weights)[flat(assignment).long()])


def zero_(weights: Tensor, assignment: Tensor, cluster: int) -> None:
    """Set the weights of one cluster to zero."""
    flat(weights).masked_fill_(flat(assignment) == cluster, 0.0)


def soft_threshold_(weights: Tensor, threshold: float) -> None:
    """The proximal step of threshold·|w|: towards zero, and exactly zero within the threshold."""
    if runs_compiled(weights):
        work = Work([Row(weights.numel(), weights.data_ptr(), 0, 0, 0)])
        loop = loops.soft_threshold(_REAL[weights.dtype])
        work.run(loop, (threshold, 0.0), torch.get_num_threads())
    else:
        flat(weights).copy_(torch.nn.functional.softshrink(flat(weights), threshold))


def dead_blocks(weights: Tensor, assignment: Tensor, zero: int) -> NDArray[np.uint8] | None:
    """For each sub-block of the loops, in memory order, whether it is all zero cluster.

    None if the compiled loops cannot reach the weights.
    """
    if not runs_compiled(weights) or not weights.numel():
        return None
    alive = flat(assignment).numpy() != zero
    starts = np.arange(0, len(alive), SUBBLOCK)
    return (~np.logical_or.reduceat(alive, starts)).astype(np.uint8)


def _on(centers: np.ndarray, weights: Tensor) -> Tensor:
    """The centers rounded to the weights' type, on their device."""
    return torch.from_numpy(centers).to(weights.dtype).to(weights.device)
