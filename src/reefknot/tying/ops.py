"""What tying does to one tensor: compiled loops on the CPU, plain torch everywhere else.

Takes     a weight tensor, its assignment of the same layout, and the K centers.
Gives     a changed gradient, changed weights, or exact sums.
Unaware   of groups, phases and optimizers.

The two ways are twins: the sums are equal bit for bit, the gradients up to the last bit.
"""

import numpy as np
import torch
from torch import Tensor

from reefknot.errors import DivergedError, TyingError
from reefknot.kernels import loops

_COMPILED = (torch.float32, torch.float64)
_SUM_BITS = 62  # int64 sums stay below 2**62


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
    if values.shape != weights.shape or not is_dense(weights):
        raise TyingError(
            f"a tied parameter of shape {tuple(values.shape)} now has shape "
            f"{tuple(weights.shape)} and strides {tuple(weights.stride())}; a tied parameter keeps "
            "its shape and fills its memory"
        )
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
    weights: Tensor, assignment: Tensor, centers: np.ndarray, exponent: int, limit: float
) -> np.ndarray | None:
    """Sums of (w − own center) per cluster, each rounded to 2**-exponent and times 2**exponent.

    None if a term is not below `limit`: the exponent is too large, or a weight is not finite. The
    sums do not depend on any order.
    """
    sums = np.zeros(len(centers), np.int64)
    w, a = flat(weights), flat(assignment)
    scale = float(2.0**exponent)
    if runs_compiled(weights):
        fits = loops.sum_deviations(w.numpy(), a.numpy(), centers, scale, limit, sums)
        return sums if fits else None
    if w.device.type == "mps":  # it has no float64
        w, a = w.cpu(), a.cpu()
    index = a.long()
    away = (w.double() - torch.from_numpy(centers).to(w.device)[index]) * scale
    if not bool((away.abs() < limit).all()):
        return None
    exact = torch.zeros(len(centers), dtype=torch.int64, device=w.device)
    return sums + exact.index_add_(0, index, away.round().long()).cpu().numpy()


def cluster_means(
    tensors: list[tuple[Tensor, Tensor]], centers: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """The mean weight of each cluster; an empty one keeps its center.

    `tensors` are (weights, assignment) pairs; their order does not matter, nor that of threads.
    """
    total_bits = int(counts.sum()).bit_length()
    limit = 2.0 ** (_SUM_BITS - total_bits)
    # Room for distances of sixteen times the largest center; a second pass if that is not enough.
    reach = int(np.frexp(np.abs(centers).max(initial=2.0**-40))[1]) + 4
    for last_try in (False, True):
        exponent = _SUM_BITS - total_bits - reach
        parts = [cluster_sums(w, a, centers, exponent, limit) for w, a in tensors]
        found = [part for part in parts if part is not None]
        if len(found) == len(parts):
            return centers + np.ldexp(sum(found) / np.maximum(counts, 1), -exponent)
        largest = max(float(w.abs().max()) for w, _ in tensors if w.numel())
        if last_try or not np.isfinite(largest):
            break
        reach = int(np.frexp(largest + np.abs(centers).max())[1]) + 1
    raise DivergedError("a weight is not finite any more; lower the rate or the strengths")


def project_(weights: Tensor, assignment: Tensor, centers: np.ndarray) -> None:
    """Set each weight to its own center."""
    w, a = flat(weights), flat(assignment)
    if runs_compiled(weights):
        loops.project(w.numpy(), a.numpy(), centers.astype(w.numpy().dtype))
    else:
        w.copy_(_on(centers, w)[a.long()])


def zero_(weights: Tensor, assignment: Tensor, cluster: int) -> None:
    """Set the weights of one cluster to zero."""
    flat(weights).masked_fill_(flat(assignment) == cluster, 0.0)


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
