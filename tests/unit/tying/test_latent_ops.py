"""Operations on latent weights: compiled loops and torch agree bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reefknot.kernels.intervals import cheapest
from reefknot.tying.latent_ops import Compiled, InTorch, Latent, Values
from reefknot.tying.ops import Held, Tensors

CENTERS = np.array([-0.5, 0.0, 0.25, 1.0])


def members(dtype, seed):
    """Two tensors, of which some elements have a latent weight."""
    made = torch.Generator().manual_seed(seed)
    shapes = [(7, 5), (40, 30, 3)]
    weights = [torch.randn(shape, generator=made).to(dtype) for shape in shapes]
    grads = [torch.randn(shape, generator=made).to(dtype) for shape in shapes]
    assignments = [torch.full(shape, 1, dtype=torch.uint8) for shape in shapes]
    places = [(torch.rand(w.numel(), generator=made) < 0.4).nonzero().flatten() for w in weights]
    count = sum(map(len, places))
    latent = Latent(
        torch.randn(count, generator=made).to(dtype),
        torch.randint(0, 4, (count,), generator=made).to(torch.uint8),
        (torch.rand(count, generator=made) * 9).to(dtype),
        places,
    )
    held = [Held(w, a) for w, a in zip(weights, assignments, strict=True)]
    return latent, Tensors(held), grads


def everything(kind, dtype, seed, price, zero):
    """What each operation leaves behind, one after another."""
    latent, tensors, grads = members(dtype, seed)
    work = kind(latent)
    work.put(tensors, [grads[0], None], CENTERS, 0.125)
    put = [w.clone() for w in tensors.flat_weights]
    for weights in tensors.flat_weights:
        weights.mul_(0.75)
    work.take(tensors)
    ids = np.array([k for k in range(4) if k != zero])
    prices = price * np.array([1.0, 2.5, 0.5, 3.0])[ids]
    found, edges = cheapest(CENTERS[ids], prices)
    values = Values(CENTERS[ids][found], prices[found], edges, ids[found])
    counts = work.choose(values, price, zero, 4)
    work.tie(tensors, CENTERS)
    after = [*put, *grads, *latent[:3], *tensors.flat_weights, *tensors.flat_assignments]
    return [t.numpy().tobytes() for t in after], counts.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    seed=st.integers(0, 99),
    price=st.sampled_from([0.0, 1e-6, 1e-3, 0.05, 1.0]),
    zero=st.sampled_from([None, 1]),
)
def test_compiled_loops_and_torch_agree_bit_for_bit(dtype, seed, price, zero):
    compiled = everything(Compiled, dtype, seed, price, zero)
    assert compiled == everything(InTorch, dtype, seed, price, zero)


def test_each_weight_gets_the_cheapest_value():
    latent = members(torch.float64, 5)[0]
    ids, prices, price = np.array([0, 2, 3]), np.array([0.01, 0.02, 0.03]), 0.004
    found, edges = cheapest(CENTERS[ids], prices)
    values = Values(CENTERS[ids][found], prices[found], edges, ids[found])
    counts = Compiled(latent).choose(values, price, 1, 4)
    w, bits = latent.weights.numpy(), latent.bits.numpy()
    cost = np.stack([(w - CENTERS[k]) ** 2 + (0 if k == 1 else price * bits) for k in range(4)])
    cost[ids] += prices[:, None]
    assert latent.clusters.tolist() == cost.argmin(0).tolist()
    assert counts.tolist() == np.bincount(latent.clusters.numpy(), minlength=4).tolist()
