"""The compiled loops and their plain torch twins do the same."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reefknot import DivergedError
from reefknot.kernels import shared
from reefknot.tying import ops
from reefknot.tying.ops import Held, Tensors

CENTERS = np.array([-0.5, -0.1, 0.0, 0.2, 0.7])


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def tensors(request):
    random = torch.Generator().manual_seed(3)
    weights = torch.randn(7, 5, 3, 3, generator=random, dtype=torch.float64).to(request.param)
    grad = torch.randn(7, 5, 3, 3, generator=random, dtype=torch.float64).to(request.param)
    assignment = torch.randint(0, 5, weights.shape, generator=random).to(torch.uint8)
    return weights, grad, assignment


@pytest.fixture
def plain(monkeypatch):
    """Run the torch twin, as on a device that the compiled loops cannot reach."""

    def switch():
        monkeypatch.setattr(ops, "runs_compiled", lambda tensor: False)

    return switch


@pytest.mark.parametrize("to_medians", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_twins_add_the_same_pull(tensors, plain, to_medians, layout):
    weights, grad, assignment = (t.to(memory_format=layout) for t in tensors)
    strengths = {"tying_strength": 0.3, "l1_strength": 0.01, "to_medians": to_medians}
    compiled, twin = grad.clone(), grad.clone()
    ops.add_pull_(Tensors([Held(weights, assignment)]), [compiled], CENTERS, **strengths)
    plain()
    ops.add_pull_(Tensors([Held(weights, assignment)]), [twin], CENTERS, **strengths)
    torch.testing.assert_close(compiled, twin, rtol=1e-6, atol=1e-7)
    own = torch.from_numpy(CENTERS)[assignment.long()]
    away = weights.double() - own
    pull = 0.3 * (away.sign() if to_medians else away) + 0.01 * weights.double().sign()
    torch.testing.assert_close(compiled.double(), grad.double() + pull, rtol=1e-5, atol=1e-6)


def test_a_gradient_of_another_layout_gets_the_same_pull(tensors):
    weights, grad, assignment = tensors
    strengths = {"tying_strength": 0.3, "l1_strength": 0.01, "to_medians": False}
    straight, turned = grad.clone(), grad.clone(memory_format=torch.channels_last)
    ops.add_pull_(Tensors([Held(weights, assignment)]), [straight], CENTERS, **strengths)
    ops.add_pull_(Tensors([Held(weights, assignment)]), [turned], CENTERS, **strengths)
    torch.testing.assert_close(straight, turned, rtol=1e-6, atol=1e-7)


def test_twins_sum_to_the_same_bits(tensors, plain):
    weights, _, assignment = tensors
    compiled = ops.cluster_sums(Tensors([Held(weights, assignment)]), 5, 2.0**25, 2.0**31)
    plain()
    twin = ops.cluster_sums(Tensors([Held(weights, assignment)]), 5, 2.0**25, 2.0**31)
    assert np.array_equal(compiled, twin)


@pytest.mark.parametrize("compiled", [True, False])
def test_sums_that_would_not_fit_are_refused(compiled, plain):
    if not compiled:
        plain()
    weights, assignment = torch.tensor([1.0, 1.0]), torch.zeros(2, dtype=torch.uint8)
    assert ops.cluster_sums(Tensors([Held(weights, assignment)]), 1, 8.0, 9.0).tolist() == [16]
    assert ops.cluster_sums(Tensors([Held(weights, assignment)]), 1, 8.0, 8.0) is None


@given(order=st.permutations(range(60)), cut=st.integers(0, 60))
def test_means_do_not_depend_on_the_order_or_on_how_the_weights_are_divided(order, cut):
    weights = torch.randn(60, generator=torch.Generator().manual_seed(0)) * 3
    assignment = (torch.arange(60) % 5).to(torch.uint8)
    counts = np.full(5, 12)
    whole = ops.cluster_means(Tensors([Held(weights, assignment)]), CENTERS, counts)
    w, a = weights[list(order)], assignment[list(order)]
    parts = [Held(w[:cut].clone(), a[:cut].clone()), Held(w[cut:].clone(), a[cut:].clone())]
    assert np.array_equal(ops.cluster_means(Tensors(parts), CENTERS, counts), whole)


def test_means_are_the_means():
    weights = torch.tensor([1.0, 2.0, 4.0, -1.0])
    assignment = torch.tensor([1, 1, 1, 0], dtype=torch.uint8)
    means = ops.cluster_means(
        Tensors([Held(weights, assignment)]), np.array([0.0, 0.5, 9.0]), np.array([1, 3, 0])
    )
    assert means[0] == -1.0
    assert means[1] == pytest.approx(7 / 3, abs=1e-12)
    assert means[2] == 9.0  # empty: it stays where it is


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_means_of_any_magnitude_are_found_from_poor_centers(size):
    weights = torch.tensor([size, 3 * size], dtype=torch.float64)
    assignment = torch.zeros(2, dtype=torch.uint8)
    means = ops.cluster_means(
        Tensors([Held(weights, assignment)]), np.array([1e-3 * size]), np.array([2])
    )
    assert means[0] == pytest.approx(2 * size, rel=1e-9)


def test_a_cluster_that_did_not_move_keeps_its_value_exactly():
    value = torch.tensor(0.1234567, dtype=torch.float32)
    weights, assignment = value.repeat(1001), torch.zeros(1001, dtype=torch.uint8)
    center = np.array([float(value)])
    assert (
        ops.cluster_means(Tensors([Held(weights, assignment)]), center, np.array([1001])) == center
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("compiled", [True, False])
def test_weights_that_are_not_finite_are_found(bad, compiled, plain):
    if not compiled:
        plain()
    tensors = Tensors([Held(torch.tensor([1.0, bad]), torch.zeros(2, dtype=torch.uint8))])
    with pytest.raises(DivergedError, match="not finite"):
        ops.cluster_means(tensors, CENTERS, np.full(5, 1))


def test_twins_project_to_the_same_bits(tensors, plain):
    weights, _, assignment = (t.to(memory_format=torch.channels_last) for t in tensors)
    compiled, twin = weights.clone(), weights.clone()
    ops.project_(Tensors([Held(compiled, assignment)]), CENTERS)
    plain()
    ops.project_(Tensors([Held(twin, assignment)]), CENTERS)
    assert torch.equal(compiled, twin)
    expected = torch.from_numpy(CENTERS).to(weights.dtype)[assignment.long()]
    assert torch.equal(compiled, expected)


def test_twins_threshold_alike(plain):
    weights = torch.tensor([-1.0, -0.25, -0.1, 0.0, 0.1, 0.25, 1.0])
    expected = torch.tensor([-0.75, 0.0, 0.0, 0.0, 0.0, 0.0, 0.75])
    compiled, twin = weights.clone(), weights.clone()
    ops.soft_threshold_(compiled, 0.25)
    plain()
    ops.soft_threshold_(twin, 0.25)
    assert torch.equal(compiled, expected)
    assert torch.equal(twin, expected)


def test_half_precision_weights_are_tied_through_the_twin():
    weights = torch.tensor([0.5, 1.0], dtype=torch.bfloat16)
    assignment = torch.tensor([0, 0], dtype=torch.uint8)
    assert (
        ops.cluster_means(Tensors([Held(weights, assignment)]), np.array([0.0]), np.array([2]))
        == 0.75
    )


def test_dense_memory_is_told_from_gaps():
    assert ops.is_dense(torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last))
    assert ops.is_dense(torch.empty(4, 3).t())
    assert ops.is_dense(torch.empty(()))
    assert not ops.is_dense(torch.empty(4, 6)[:, ::2])
    assert not ops.is_dense(torch.empty(1, 3).expand(2, 3))


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("lent", [True, False], ids=["torch's threads", "Python's threads"])
def test_threads_share_the_work_and_change_nothing(threads, lent, monkeypatch):
    """Many blocks of several tensors, one of them without a gradient."""
    if not lent:
        monkeypatch.setattr(shared, "_team", None)
        monkeypatch.setattr(shared, "WORTH_A_THREAD", 1)
    random = torch.Generator().manual_seed(1)
    sizes = (70_001, 3, 33_000)
    weights = [torch.randn(n, generator=random) for n in sizes]
    assignments = [torch.randint(0, 5, (n,), generator=random).to(torch.uint8) for n in sizes]
    tensors = Tensors([Held(w, a) for w, a in zip(weights, assignments, strict=True)])
    grads = [torch.zeros(sizes[0]), None, torch.zeros(sizes[2])]
    ops.add_pull_(tensors, grads, CENTERS, tying_strength=1.0, l1_strength=0.0, to_medians=False)
    for n in (0, 2):
        own = torch.from_numpy(CENTERS).float()[assignments[n].long()]
        assert torch.equal(grads[n], weights[n] - own)
    index, values = torch.cat(assignments).numpy(), torch.cat(weights).double().numpy()
    counts = np.bincount(index, minlength=5)
    means = ops.cluster_means(tensors, CENTERS, counts)
    expected = np.bincount(index, values, minlength=5) / counts
    np.testing.assert_allclose(means, expected, rtol=0, atol=1e-8)
    ops.project_(tensors, CENTERS)
    for w, a in zip(weights, assignments, strict=True):
        assert torch.equal(w, torch.from_numpy(CENTERS).float()[a.long()])


def test_dead_blocks_stay_zero_and_are_not_looked_at():
    weights = torch.ones(64 * 70 + 5)
    assignment = torch.zeros(len(weights), dtype=torch.uint8)
    assignment[130] = 1  # in the third block of 64
    assignment[-1] = 1  # in the last, which is shorter
    dead = ops.dead_blocks(weights, assignment, 0)
    assert dead.tolist() == [1, 1, 0] + [1] * 67 + [0]
    tensors = Tensors([Held(weights, assignment, dead)])
    weights[130], weights[-1] = 3.0, 4.0
    weights[0] = float("inf")  # an infinity where nobody looks is no divergence
    means = ops.cluster_means(tensors, np.array([0.0, 3.0]), np.array([len(weights) - 2, 2]))
    assert means[1] == 3.5
    ops.project_(tensors, np.array([0.0, 3.5]))
    assert torch.nonzero(weights).flatten().tolist() == [130, len(weights) - 1]
    assert weights[130] == weights[-1] == 3.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 2, 17, 32, 33, 256, 300])
@pytest.mark.parametrize("size", [1, 7, 16, 4095, 4096, 9001])
def test_any_number_of_clusters_and_weights(dtype, k, size):
    """Small tables, pairs and wide indices each have loops of their own."""
    random = torch.Generator().manual_seed(k)
    centers = np.sort(np.random.default_rng(k).normal(size=k))
    weights = torch.randn(size, generator=random, dtype=torch.float64).to(dtype)
    index = torch.randint(0, k, (size,), generator=random)
    assignment = index.to(torch.uint8 if k <= 256 else torch.int32)
    tensors = Tensors([Held(weights, assignment)])
    own = torch.from_numpy(centers).to(dtype)[index]

    grad = torch.zeros(size, dtype=dtype)
    ops.add_pull_(tensors, [grad], centers, tying_strength=0.5, l1_strength=0.25, to_medians=False)
    torch.testing.assert_close(grad, (weights - own) * 0.5 + 0.25 * weights.sign())

    counts = np.bincount(index.numpy(), minlength=k)
    sums = np.bincount(index.numpy(), weights.double().numpy(), minlength=k)
    expected = np.where(counts > 0, sums / np.maximum(counts, 1), centers)
    means = ops.cluster_means(tensors, centers, counts)
    tolerance = 1e-8 if dtype == torch.float32 else 1e-13
    np.testing.assert_allclose(means, expected, rtol=0, atol=tolerance)

    ops.project_(tensors, centers)
    assert torch.equal(weights, own)
