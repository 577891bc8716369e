"""What tying does to the tensors of a group: compiled loops on the CPU, torch everywhere else.

Takes     weight tensors, their assignments of the same layout, and the K centers.
Gives     changed gradients, changed weights, or exact sums.
Unaware   of groups, phases and optimizers.

The two ways are twins: the sums are equal bit for bit, the gradients up to the last bit.
"""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reefknot.errors import DivergedError
from reefknot.kernels import loops
from reefknot.kernels.shared import borrow
from reefknot.kernels.work import GRAD, SUBBLOCK, Row, Work
from reefknot.tying.collectives import NO_PEERS, Peers
from reefknot.tying.threads import torch_team

_REAL: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}
_INDEX: dict[torch.dtype, Any] = {torch.uint8: np.uint8, torch.int32: np.int32}
_SUM_BITS = 62  # int64 sums stay below 2**62
_TERM_BITS = {torch.float64: 50}  # and each term below 2**50, where float64 holds every integer
_SHORT_TERM_BITS = 31  # but those of narrower types are int32
_PIECE = 1 << 20  # elements that are widened at a time

Layout = tuple[int, torch.Size, tuple[int, ...], torch.dtype, torch.device]  # the address first

borrow(torch_team())


class Held(NamedTuple):
    """Weights, their assignment of the same layout, and in hard tying their `dead_blocks`."""

    weights: Tensor
    assignment: Tensor
    dead: NDArray[np.uint8] | None = None


def runs_compiled(tensor: Tensor) -> bool:
    """Whether the compiled loops can work on this tensor's memory."""
    return tensor.dtype in _REAL and tensor.device.type == "cpu"


class Tensors:
    """Weights of one type with their assignments, made ready once for the many steps to come.

    Sums are over the weights of all `peers`, who together have `num_weights` (None: those here).
    """

    def __init__(
        self, held: Sequence[Held], num_weights: int | None = None, peers: Peers = NO_PEERS
    ) -> None:
        self.held, self.peers = list(held), peers
        self.reached = [runs_compiled(weights) for weights, _, _ in held]  # by compiled loops
        rows = [
            Row(
                w.numel() if reached else 0,  # the others are left to the twin
                w.data_ptr(),
                0,
                a.data_ptr(),
                0 if dead is None else dead.ctypes.data,
            )
            for (w, a, dead), reached in zip(held, self.reached, strict=True)
        ]
        self.work = Work(rows)
        self.sizes = self.work.table[:, 0].copy()
        if num_weights is None:
            num_weights = sum(w.numel() for w, _, _ in held)
        self.num_bits = num_weights.bit_length()
        self.types = _REAL.get(held[0].weights.dtype), _INDEX[held[0].assignment.dtype]

    def on(self, values: Sequence[Tensor]) -> "Tensors":
        """The same assignments for other tensors of these layouts, such as all gradients."""
        other = copy.copy(self)
        other.held = [held._replace(weights=v) for held, v in zip(self.held, values, strict=True)]
        other.work = self.work.on([v.data_ptr() for v in values])
        return other

    def run(self, loop: Any, numbers: tuple[float, ...], **arrays: np.ndarray) -> int:
        """Run a compiled loop over the weights that it can reach."""
        return self.work.run(loop, numbers, torch.get_num_threads(), **arrays)

    def out_of_reach(self) -> list[Held]:
        """What is left to the twin."""
        return [held for held, reached in zip(self.held, self.reached, strict=True) if not reached]


def layout(tensor: Tensor) -> Layout:
    """Where a tensor lies and how it is to be read: all that the loops take for granted."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def fills_its_memory(tensor: Tensor) -> bool:
    """Whether each element has a place of its own, and the places are one piece of memory."""
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    return is_dense(tensor) and end <= tensor.untyped_storage().nbytes()


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one piece of memory, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def flat(tensor: Tensor) -> Tensor:
    """All elements in the order of memory, as a view: `reshape` would copy channels_last ones."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def like(values: Tensor, weights: Tensor) -> Tensor:
    """`values` with the device and the memory layout of `weights`; itself if it has them.

    Both have the same shape, and `weights` fills its memory.
    """
    if values.device == weights.device and values.stride() == weights.stride():
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
    """Whether there is a gradient that is laid out as its weights are."""
    return grad is not None and layout(grad)[1:] == layout(weights)[1:]  # all but the address


def _pull(
    w: Tensor, assignment: Tensor, centers: np.ndarray, tying: float, l1: float, to_medians: bool
) -> Tensor:
    """The gradient of the two penalties: the twin of `loops.pull`."""
    away = w - _on(centers, w)[assignment.long()]
    if to_medians:
        away = away.sign()
    return away * tying + w.sign() * l1


def cluster_sums(
    tensors: Tensors, num_clusters: int, scale: float, limit: float
) -> np.ndarray | None:
    """Sums of the weights per cluster, each times `scale`, a power of two, and rounded.

    None if a term is not below `limit`: the scale is too large, or a weight is not finite. The
    sums do not depend on any order. Dead blocks are not in them.
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
    found = tensors.peers.total(found)
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
            continue
        for piece in flat(assignment).split(_PIECE):  # bincount widens it
            found[n] += np.bincount(piece.numpy(), minlength=num_clusters)
    for device, numbers in away.items():
        counts = torch.zeros(len(numbers), num_clusters, dtype=torch.int64, device=device)
        for row, n in zip(counts, numbers, strict=True):
            for piece in flat(assignments[n]).split(_PIECE):
                row.index_add_(0, piece.long(), torch.ones_like(piece, dtype=torch.int64))
        found[numbers] = counts.cpu().numpy()
    return found


def cluster_means(tensors: Tensors, centers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The mean weight of each cluster; an empty one, and one that did not move, keep their center.

    The order of the tensors does not matter, nor that of threads.
    """
    # Room for weights of twice the largest center; a second pass if that is not enough.
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
    """A scale that makes weights below `unit` (None: all weights) whole, and the limit then."""
    dtype = tensors.held[0].weights.dtype
    bits = min(_SUM_BITS - tensors.num_bits, _TERM_BITS.get(dtype, _SHORT_TERM_BITS))
    if unit is None:
        unit = _unit_of([w for w, _, _ in tensors.held], tensors.peers)
    return 2.0**bits / unit, 2.0**bits


def total(tensors: Sequence[Tensor], elements: int, peers: Peers = NO_PEERS) -> float:
    """The sum of numbers, of which there are at most so many in all, the same for any order."""
    bits = min(_SUM_BITS - elements.bit_length(), _TERM_BITS[torch.float64])
    scale = 2.0**bits / _unit_of(tensors, peers)
    terms = [
        ((piece.cpu() if t.device.type == "mps" else piece).double() * scale).round().long().sum()
        for t in tensors
        for piece in flat(t).split(_PIECE)
    ]
    return float(peers.total(_at_once(terms, torch.int64).sum(keepdims=True))[0]) / scale


def _unit_of(tensors: Sequence[Tensor], peers: Peers) -> float:
    """A power of two above twice every magnitude."""
    magnitude = peers.largest(largest(tensors))
    if not np.isfinite(magnitude):
        raise DivergedError(
            "a weight or a gradient is not finite any more; lower the rate or the strengths"
        )
    return loops.unit_above(np.array([magnitude]))


def largest(tensors: Sequence[Tensor]) -> float:
    """The largest magnitude, NaN if one is, 0 if there are no numbers; on the CPU no copy."""
    extents = [bound for t in tensors if t.numel() for bound in t.detach().aminmax()]
    return float(np.abs(_at_once(extents, torch.float64)).max(initial=0.0))


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
    """For each sub-block of the loops, in the order of memory, whether it is all zero cluster.

    None where the compiled loops do not come.
    """
    if not runs_compiled(weights) or not weights.numel():
        return None
    alive = flat(assignment).numpy() != zero
    starts = np.arange(0, len(alive), SUBBLOCK)
    return (~np.logical_or.reduceat(alive, starts)).astype(np.uint8)


def _on(centers: np.ndarray, weights: Tensor) -> Tensor:
    """The centers rounded to the weights' type, on their device."""
    return torch.from_numpy(centers).to(weights.dtype).to(weights.device)
