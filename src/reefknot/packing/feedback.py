"""Rate-aware error feedback: one matrix, quantized for its inputs.

Takes     weights (out, in), the second moments of their inputs, and the price of a bit, which is
          the Lagrange multiplier of the rate–distortion trade-off.
Gives     a multiple of one step for each weight.
Unaware   of layers, networks and files.

Columns are quantized in order. The error of a column is propagated to the columns that follow,
which compensate for it as far as their inputs are correlated: with H = R·D·Rᵀ, R upper triangular
with ones on its diagonal, the target of column k is w_k + Σ_{i<k} (w_i − q_i)·R_ik, and missing it
costs D_k times the squared miss (Frantar et al. 2022, GPTQ; Chee et al. 2023, in this form). Each
weight takes the nearest multiple, the next one towards zero, or zero: whichever has the least
D_k · miss² / variance + price · bits, where bits are those of the multiple in this row and column,
beyond those of a zero.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from reefknot.dtypes import significant
from reefknot.packing.quantizer import BIT_WORTH

BLOCK = 128  # columns whose errors are propagated together
MOST = 2**15 - 1  # the largest multiple
STEP_WORTH = 0.25 * BIT_WORTH  # larger steps than at high rates: here most weights may be zero
STEP_BITS = 8  # significant bits of a step, so that its multiples have few
SAMPLE = 96  # rows on which the frequency of each multiple is estimated first
RIDGE = 0.2  # relative to the mean second moment
PRIOR = 8.0  # pseudo-counts that shrink the density of a row or a column to that of the matrix


@dataclass(frozen=True)
class QuantizedMatrix:
    """A quantized matrix: weights are `step · multiples`."""

    multiples: np.ndarray  # (out, in), int16
    step: float
    error: float  # squared error of the outputs, over their variance

    def values(self) -> np.ndarray:
        """The weights."""
        return self.multiples.astype(np.float32) * np.float32(self.step)

    def counts(self) -> np.ndarray:
        """How often each multiple occurs, from -MOST to MOST."""
        return np.bincount(self.multiples.ravel().astype(np.int64) + MOST, minlength=2 * MOST + 1)


def feedback(
    weights: np.ndarray, moments: torch.Tensor, worth: float, price: float, damping: float
) -> QuantizedMatrix:
    """Quantize a matrix.

    Args:
        weights: (out, in), float32.
        moments: second moments of the inputs, (in, in); changed in place.
        worth: what a squared error of 1 in an output costs.
        price: of a bit, in the same unit.
        damping: what is added to the diagonal of the moments, relative to its mean.
    """
    mean = float(moments.diagonal().mean()) or 1.0
    moments.diagonal().add_(damping * mean)
    order = torch.argsort(moments.diagonal(), descending=True, stable=True)
    back = torch.argsort(order).numpy()
    spread, factors = decompose(moments[order][:, order])
    columns = np.ascontiguousarray(weights[:, order.numpy()])
    cost = spread * max(worth, 1e-30)
    step = math.sqrt(price / (STEP_WORTH * float(cost.mean())))
    rms = math.sqrt(float(np.mean(np.square(columns, dtype=np.float64)))) or 1.0
    step = float(significant(np.array(min(max(step, rms / 128), 16 * rms)), STEP_BITS))
    rows = np.linspace(0, len(columns) - 1, min(SAMPLE, len(columns))).astype(np.int64)
    near = np.clip(np.rint(columns[rows] / step), -MOST, MOST).astype(np.int16)
    for part in (columns[rows], columns):
        near, missed = _quantize_columns(part, factors, cost, step, price, near)
    error = float((np.square(missed, dtype=np.float64) * cost).sum())
    return QuantizedMatrix(np.ascontiguousarray(near[:, back]), step, error)


def compensating(
    weights: torch.Tensor, second: torch.Tensor, cross: torch.Tensor, damping: torch.Tensor
) -> torch.Tensor:
    """Weights that compensate for the errors of the layers before.

    Ridge regression: V with the least |W·x − V·y|² + (RIDGE + damping)·|V − W|², where x are the
    inputs in the original network and y those in the packed one. All arguments have a first
    dimension of groups; `second` is the mean of y·yᵀ, `cross` that of W·x·yᵀ.
    """
    width = second.shape[-1]
    ridge = (RIDGE + damping) * second.diagonal(dim1=1, dim2=2).mean(1) + 1e-12
    damped = second + ridge[:, None, None] * torch.eye(width)
    missing = (cross - torch.bmm(weights, second)).mT.contiguous()
    return weights + torch.cholesky_solve(missing, torch.linalg.cholesky(damped)).mT


def decompose(moments: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """D and R of H = R·D·Rᵀ, with R upper triangular with ones on its diagonal."""
    flipped = moments.flip(0, 1)
    lower, failed = torch.linalg.cholesky_ex(flipped)
    if int(failed):  # too near to singular for this precision
        lower = torch.linalg.cholesky(flipped.double()).float()
    upper = lower.flip(0, 1)
    scale = upper.diagonal()
    return scale.square().double().numpy(), (upper / scale).contiguous().numpy()


def _quantize_columns(
    weights: np.ndarray, factors: np.ndarray, cost: np.ndarray, step: float, price: float,
    known: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Multiples for all columns in order, by frequencies in `known`; and how far each misses."""
    bits = _bits(known)
    share = float(np.mean(known != 0))
    share = min(max(share, 1e-5), 1 - 1e-5)
    in_columns = ((known != 0).sum(0) + PRIOR * share) / (len(known) + PRIOR)
    # Bits beyond those of a zero: of the magnitude (`sizes`), and of being non-zero, which depends
    # on row and column (`there`).
    sizes = bits - bits[MOST] + np.float32(math.log2(share / (1 - share)))
    sizes[MOST] = 0
    own = _logit(in_columns) - _logit(share)
    height, width = weights.shape
    chosen = np.zeros((height, width), np.int16)
    errors, missed = np.zeros((height, width), np.float32), np.zeros((height, width), np.float32)
    living = np.zeros(height, np.float32)  # non-zeros so far in each row
    for begin in range(0, width, BLOCK):
        end = min(begin + BLOCK, width)
        aims = weights[:, begin:end] + errors[:, :begin] @ factors[:begin, begin:end]
        for j in range(begin, end):
            aim = aims[:, j - begin]
            if j > begin:
                aim += errors[:, begin:j] @ factors[begin:j, j]
            near = np.clip(np.rint(aim / step), -MOST, MOST)
            lower = near - np.sign(near)
            there = -(_logit((living + PRIOR * share) / (j + PRIOR)) + own[j])
            ratio = np.float32(price / cost[j])
            best, least = np.zeros_like(near), np.square(aim)
            for option in (lower, near):
                paid = np.square(aim - option * np.float32(step)) + ratio * (
                    sizes[option.astype(np.int64) + MOST] + there
                )
                better = (paid < least) & (option != 0)
                best, least = np.where(better, option, best), np.where(better, paid, least)
            chosen[:, j] = best
            living += best != 0
            quantized = best * np.float32(step)
            missed[:, j] = aim - quantized
            errors[:, j] = weights[:, j] - quantized
    return chosen, missed


def _bits(known: np.ndarray) -> np.ndarray:
    """Bits of each multiple from -MOST to MOST, by frequencies smoothed over neighbours."""
    sizes = np.abs(known.ravel().astype(np.int64))
    totals = np.concatenate([[0], np.cumsum(np.bincount(sizes, minlength=MOST + 1))])
    size = np.arange(1, MOST + 1)
    reach = size // 8  # neighbours on either side
    low, high = size - reach, np.minimum(size + reach, MOST)
    each = (totals[high + 1] - totals[low] + 1e-2) / (2 * (high - low + 1))
    counts = np.concatenate([each[::-1], [totals[1] + 1e-2], each])
    return (-np.log2(counts / counts.sum())).astype(np.float32)


def _logit(share: np.ndarray | float) -> np.ndarray:
    return np.log2(share / (1 - np.minimum(share, 0.999))).astype(np.float32)
