"""What tying does to one tensor: compiled loops on the CPU, plain torch everywhere else.

Takes     a weight tensor, its assignment of the same layout, and the K centers.
Gives     a changed gradient, changed weights, or exact sums.
Unaware   of groups, phases and optimizers.

The two ways are twins: the sums are equal bit for bit, the gradients up to the last bit.
"""

import numpy as np
import torch
from torch import Tensor

from reefknot.errors import DivergedError
from reefknot.kernels import loops

_COMPILED = (torch.float32, torch.float64)
_HEADROOM_BITS = 62  # int64 sums stay below 2**62


def runs_compiled(tensor: Tensor) -> bool:
    """Whether the compiled loops can work on this tensor's memory."""
    return tensor.device.type == "cpu" and tensor.dtype in _COMPILED


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
    """`values` with the device and the memory layout of `weights`; itself if it has them."""
    if values.device == weights.device and values.stride() == weights.stride():
        return values
    return torch.empty_like(weights, dtype=values.dtype).copy_(values)


def add_pull_(
    grad: Tensor,
    weights: Tensor,
    assignment: Tensor,
    centers: np.ndarray,
    *,
    tying_strength: float,
    l1_strength: float,
    to_medians: bool,
) -> None:
    """Add the gradient of the two penalties to `grad` (equation 3, with the assignment given)."""
    if grad.stride() != weights.stride() or grad.dtype != weights.dtype:
        pull = torch.zeros_like(weights)
        add_pull_(
            pull,
            weights,
            assignment,
            centers,
            tying_strength=tying_strength,
            l1_strength=l1_strength,
            to_medians=to_medians,
        )
        grad.add_(pull)
        return
    w, g, a = flat(weights), flat(grad), flat(assignment)
    if runs_compiled(weights):
        real = np.float32 if w.dtype == torch.float32 else np.float64
        loop = loops.pull_to_medians if to_medians else loops.pull
        loop(
            w.numpy(),
            g.numpy(),
            a.numpy(),
            centers.astype(real),
            real(tying_strength),
            real(l1_strength),
        )
        return
    away = w - _on(centers, w)[a.long()]
    if to_medians:
        away = away.sign()
    g.add_(away * tying_strength + w.sign() * l1_strength)


def cluster_sums(
    weights: Tensor, assignment: Tensor, centers: np.ndarray, exponent: int
) -> tuple[np.ndarray, float]:
    """Sums of (w − own center) per cluster, times 2**exponent, and the largest such distance.

    The distances are exact up to the rounding to 2**-exponent, and the sums do not depend on any
    order. The caller compares the largest distance with what the exponent allows.
    """
    sums = np.zeros(len(centers), np.int64)
    w, a = flat(weights), flat(assignment)
    scale = float(2.0**exponent)
    if runs_compiled(weights):
        return sums, loops.sum_deviations(w.numpy(), a.numpy(), centers, scale, sums)
    if w.device.type == "mps":  # it has no float64
        w, a = w.cpu(), a.cpu()
    index = a.long()
    away = w.double() - torch.from_numpy(centers).to(w.device)[index]
    largest = float(away.abs().max()) if away.numel() else 0.0
    if not np.isfinite(largest):
        return sums, float("inf")
    if largest * scale < 2.0**_HEADROOM_BITS:
        exact = torch.zeros(len(centers), dtype=torch.int64, device=w.device)
        sums += exact.index_add_(0, index, (away * scale).round().long()).cpu().numpy()
    return sums, largest


def cluster_means(
    tensors: list[tuple[Tensor, Tensor]], centers: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """The mean weight of each cluster; an empty one keeps its center.

    `tensors` are (weights, assignment) pairs; their order does not matter, nor that of threads.
    """
    total_bits = int(counts.sum()).bit_length()
    # Room for distances of sixteen times the largest center; a second pass if that is not enough.
    reach = int(np.frexp(np.abs(centers).max(initial=2.0**-40))[1]) + 4
    while True:
        exponent = _HEADROOM_BITS - total_bits - reach
        sums, largest = np.zeros(len(centers), np.int64), 0.0
        for weights, assignment in tensors:
            part, furthest = cluster_sums(weights, assignment, centers, exponent)
            sums, largest = sums + part, max(largest, furthest)
        if not np.isfinite(largest):
            raise DivergedError("a weight is not finite any more; lower the rate or the strengths")
        if largest <= 2.0**reach:
            break
        reach = int(np.frexp(largest)[1])
    return centers + np.ldexp(sums / np.maximum(counts, 1), -exponent)


def project_(weights: Tensor, assignment: Tensor, centers: np.ndarray) -> None:
    """Set each weight to its own center."""
    w, a = flat(weights), flat(assignment)
    if runs_compiled(weights):
        loops.project(w.numpy(), a.numpy(), centers.astype(w.numpy().dtype))
    else:
        w.copy_(_on(centers, w)[a.long()])


def soft_threshold_(weights: Tensor, threshold: float) -> None:
    """The proximal step of threshold·|w|: towards zero, and exactly zero within the threshold."""
    w = flat(weights)
    if runs_compiled(weights):
        loops.soft_threshold(w.numpy(), w.numpy().dtype.type(threshold))
    else:
        w.copy_(torch.nn.functional.softshrink(w, threshold))


def _on(centers: np.ndarray, weights: Tensor) -> Tensor:
    """The centers rounded to the weights' type, on their device."""
    return torch.from_numpy(centers).to(weights.dtype).to(weights.device)
