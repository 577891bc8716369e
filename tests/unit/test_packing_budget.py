"""One budget for a whole checkpoint: the quantizer, its allocation, the size of the file."""

import lzma
import os
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from torch import nn

import reefknot
from reefknot.dtypes import DTYPES, from_numbers, to_numbers
from reefknot.errors import ConfigError
from reefknot.format import decode, encode
from reefknot.packing.budget import FINER_INPUTS, Budget, BudgetPlan, share_of
from reefknot.packing.changes import change_of
from reefknot.packing.clustering import Settings, found_of
from reefknot.packing.pack import pack
from reefknot.packing.quantizer import Histogram, Quantizer, quantize
from reefknot.state import TiedState
from reefknot.tensorfile import FoundTensor

RNG = np.random.default_rng(0)
GAUSS = RNG.normal(0, 0.03, (400, 500)).astype("<f4")
F32 = DTYPES["F32"]


@pytest.fixture
def checkpoint(tmp_path):
    tensors = {
        "a.weight": GAUSS,
        "a.bias": RNG.normal(size=400).astype("<f4"),
        "b.weight": RNG.laplace(0, 2, (100, 400)).astype("<f4"),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors", tensors


@pytest.mark.parametrize("step", [0.1, 0.5, 1.0, 1.5])
def test_a_gaussian_is_as_near_to_its_limit_as_theory_says(step):
    # Entropy-coded uniform quantization is at most 1.53 dB (0.254 bits) from rate-distortion.
    histogram = Histogram.of(GAUSS, F32)
    expected = Quantizer.of(histogram, step)
    book, indices = quantize(GAUSS, F32, histogram, step)
    error = change_of("w", "", GAUSS, book.values[indices], F32).relative_error
    counts = np.bincount(indices.ravel())
    share = counts[counts > 0] / counts.sum()
    bits = float(-(share * np.log2(share)).sum())
    limit = -np.log2(error)
    assert limit < bits < limit + 0.27
    assert bits == pytest.approx(expected.bits, rel=0.02)
    assert error**2 == pytest.approx(expected.error, rel=0.02)


def test_values_are_the_means_of_their_bins_and_zero_is_zero():
    book, indices = quantize(GAUSS, F32, Histogram.of(GAUSS, F32), 1.0)
    for k, value in enumerate(book.values.tolist()):
        mean = float(GAUSS[indices == k].astype(np.float64).mean())
        assert value == (0.0 if value == 0 else pytest.approx(mean, rel=0.02))
    assert 0.0 in book.values


def test_at_the_same_bytes_it_beats_k_means(tmp_path, checkpoint):
    path, _tensors = checkpoint
    clustered = pack(path, tmp_path / "k.reef", Settings(num_clusters=16))
    packed = pack(path, tmp_path / "b.reef", budget=Budget(size=clustered.file_bytes))
    assert packed.file_bytes <= clustered.file_bytes
    assert packed.relative_error < 0.9 * clustered.relative_error


@pytest.mark.parametrize("size", [40_000, 90_000, 200_000])
def test_a_size_is_kept_and_used(tmp_path, checkpoint, size):
    path, tensors = checkpoint
    packed = pack(path, tmp_path / "m.reef", budget=Budget(size=size))
    assert 0.97 * size < packed.file_bytes == (tmp_path / "m.reef").stat().st_size <= size
    loaded = reefknot.load(tmp_path / "m.reef")
    assert np.array_equal(loaded["a.bias"].numpy(), tensors["a.bias"])
    lost = sum(float(((loaded[n].numpy() - t) ** 2).sum()) for n, t in tensors.items())
    norm = sum(float((t**2).sum()) for n, t in tensors.items() if n != "a.bias")
    assert packed.relative_error == pytest.approx((lost / norm) ** 0.5, rel=1e-3)


def test_bits_are_of_the_whole_file(tmp_path, checkpoint):
    packed = pack(checkpoint[0], tmp_path / "m.reef", budget=Budget(bits=3.0))
    elements = 400 * 500 + 400 + 100 * 400
    assert 8 * packed.file_bytes / elements == packed.bits
    assert 2.9 < packed.bits <= 3.0


def row_errors(before, after):
    """The relative error of each row, in float64."""
    before, after = (np.asarray(a, np.float64).reshape(len(a), -1) for a in (before, after))
    return np.linalg.norm(after - before, axis=1) / np.linalg.norm(before, axis=1)


@pytest.mark.parametrize("error", [0.01, 0.1, 0.4])
@pytest.mark.parametrize("tag", ["<f4", "<f2", "<f8"])
def test_no_row_of_any_tensor_has_a_larger_error_than_asked(tmp_path, error, tag):
    random = np.random.default_rng(3)
    sizes = 2.0 ** random.uniform(-6, 4, 300)
    tensors = {
        "a.weight": (random.normal(size=(300, 200)) * sizes[:, None]).astype(tag),
        "b.weight": random.laplace(0, 2, (40, 8, 3, 3)).astype(tag),
        "c.weight": (random.normal(size=(64, 1, 3, 3)) * sizes[:64, None, None, None]).astype(tag),
    }
    save_file(tensors, tmp_path / "m.safetensors")
    packed = pack(tmp_path / "m.safetensors", tmp_path / "m.reef", budget=Budget(error=error))
    loaded = reefknot.load(tmp_path / "m.reef")
    worst = {name: row_errors(t, loaded[name].numpy()).max() for name, t in tensors.items()}
    assert max(worst.values()) <= error
    if tag != "<f8":  # a type without scales has one step a tensor, or stays exact
        assert 0.85 * error < max(worst.values())
    assert packed.worst_row == pytest.approx(max(worst.values()), rel=1e-6)
    for change in packed.changes:
        assert change.worst_row == pytest.approx(worst[change.name], rel=1e-6)


def test_rows_of_zeros_and_single_zeros_stay(tmp_path):
    values = GAUSS[:50].copy()
    values[3] = 0
    values[np.random.default_rng(1).random(values.shape) < 0.7] = 0
    reefknot.pack({"w": values}, tmp_path / "m.reef", bits=2)
    loaded = reefknot.load(tmp_path / "m.reef")["w"].numpy()
    assert not loaded[values == 0].any() and loaded.any()


def test_small_rows_are_not_starved_by_large_ones(tmp_path):
    # One step for all would leave nothing of the small rows; with a step each they cost the same.
    values = GAUSS.copy()
    reefknot.pack({"w": values}, tmp_path / "alike.reef", error=0.05)
    values[::10] /= 1000
    packed = reefknot.pack({"w": values}, tmp_path / "m.reef", error=0.05)
    assert packed.worst_row <= 0.05
    alike = (tmp_path / "alike.reef").stat().st_size
    assert packed.file_bytes < 1.02 * alike


def integers_of_rows(state, bits):
    """What a simple script does: integers with a scale for each channel, compressed."""
    codes, others, changed = [], [], {}
    for name, value in state.items():
        changed[name] = value
        if value.dim() < 2:
            others.append(value.numpy())
            continue
        scale = value.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
        code = (value / scale).round()
        codes.append(code.to(torch.int8).numpy())
        others.append(scale.numpy())
        changed[name] = code * scale
    parts = (b"".join(array.tobytes() for array in part) for part in (codes, others))
    return sum(min(len(zlib.compress(p, 9)), len(lzma.compress(p))) for p in parts), changed


@pytest.mark.parametrize("bits", [8, 6, 4])
def test_a_network_is_changed_less_than_by_integers_in_as_many_bytes(tmp_path, bits):
    # BatchNorm makes up for the size of a row, so small rows matter as much as large ones.
    torch.manual_seed(0)
    layers = nn.Linear(96, 256, bias=False), nn.BatchNorm1d(256, momentum=None), nn.ReLU()
    model = nn.Sequential(*layers, nn.Linear(256, 64, bias=False))
    inputs = torch.randn(512, 96)
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(256, 96) * torch.exp(1.5 * torch.randn(256, 1)))
        model[3].weight.copy_(torch.randn(64, 256))
        model(inputs)
        expected = model.eval()(inputs)
        state = {name: value.clone() for name, value in model.state_dict().items()}

        def change(of):
            model.load_state_dict(of)
            return float((model(inputs) - expected).norm() / expected.norm())

        size, rival = integers_of_rows(state, bits)
        packed = reefknot.pack(state, tmp_path / "m.reef", size=size)
        assert packed.file_bytes <= size
        assert change(reefknot.load(tmp_path / "m.reef")) < 0.9 * change(rival)


def test_errors_of_a_row_nearly_sum_to_nothing(tmp_path):
    # So that inputs with a common mean, as after a ReLU, are multiplied as before.
    reefknot.pack({"w": GAUSS}, tmp_path / "m.reef", bits=4)
    away = reefknot.load(tmp_path / "m.reef")["w"].numpy().astype(np.float64) - GAUSS
    random = np.linalg.norm(away, axis=1)  # the size of a sum of errors that are independent
    assert np.abs(away.sum(1)).max() < 0.2 * random.mean()


@pytest.mark.parametrize("outlier", [1e3, 1e6])
def test_a_row_with_one_huge_weight_keeps_the_bound_or_its_tensor_is_exact(tmp_path, outlier):
    values = GAUSS.copy()
    values[7, 9] = outlier
    packed = reefknot.pack({"w": values}, tmp_path / "m.reef", error=1e-3)
    loaded = reefknot.load(tmp_path / "m.reef")["w"].numpy()
    assert row_errors(values, loaded).max() <= 1e-3
    if packed.lossless:
        assert np.array_equal(loaded, values)


def test_what_fits_without_loss_is_not_changed(tmp_path, checkpoint):
    path, tensors = checkpoint
    pack(path, tmp_path / "m.reef", budget=Budget(size=10**6))
    loaded = reefknot.load(tmp_path / "m.reef")
    assert all(np.array_equal(loaded[n].numpy(), t) for n, t in tensors.items())


def test_too_small_a_size_says_how_much_is_needed_and_writes_nothing(tmp_path, checkpoint):
    with pytest.raises(ConfigError, match=r"500 bytes are too few.*kept exactly"):
        pack(checkpoint[0], tmp_path / "m.reef", budget=Budget(size=500))
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        ({}, "found none"),
        ({"size": 1, "bits": 2.0}, "found size and bits"),
        ({"size": 0}, "above 0"),
        ({"bits": float("nan")}, "above 0"),
        ({"error": 1.5}, "below 1"),
    ],
)
def test_a_budget_is_one_positive_number(budget, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Budget(**budget)


def test_a_budget_and_clusters_exclude_each_other(tmp_path, checkpoint):
    with pytest.raises(ConfigError, match="--clusters"):
        pack(checkpoint[0], tmp_path / "m.reef", Settings(num_clusters=4), budget=Budget(bits=2.0))


def test_large_tensors_and_tables_may_be_coarser():
    plain = share_of("encoder.layer.0.weight", (5000, 100))
    assert share_of("encoder.layer.1.weight", (500, 100)) < plain
    assert share_of("embeddings.word_embeddings.weight", (5000, 100)) == 2 * plain
    assert share_of("embeddings.position_embeddings.weight", (5000, 100)) == plain / 2
    for outputs in ("classifier.weight", "model.lm_head.weight", "fc.weight"):
        assert share_of(outputs, (5000, 100)) == plain / 8
    for inputs, shape in (("lstm.weight_ih_l0", (5000, 100)), ("conv.weight", (5000, 4, 25))):
        assert share_of(inputs, shape) == plain * FINER_INPUTS < plain / 2
    for inside in ("classifier.0.weight", "layer1.fc.weight", "fc1.weight"):
        assert share_of(inside, (5000, 100)) == plain


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=50),
    st.sampled_from(["F32", "F16", "BF16", "F64"]),
    st.floats(1 / 128, 16),
)
def test_whatever_the_values_are_zeros_stay_and_the_error_is_that_of_the_step(numbers, tag, step):
    dtype = DTYPES[tag]
    limit = {"F16": 6e4}.get(tag, 1e30)
    stored = from_numbers(np.clip(np.array(numbers, np.float64), -limit, limit), dtype)
    values = to_numbers(stored, dtype)
    histogram = Histogram.of(stored, dtype)
    book, indices = quantize(stored, dtype, histogram, step)
    back = to_numbers(book.values, dtype)[indices]
    assert np.all(back[values == 0] == 0)
    assert np.isfinite(back).all()
    if step < 0.25:  # the nearest multiple, then the mean of those who chose it
        assert np.all(np.abs(back - values) <= 1.1 * step * histogram.rms + 1e-2 * np.abs(values))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=8, max_size=60),
    st.sampled_from([1, 2, 5]),
    st.sampled_from(["F32", "F16", "BF16", "F64"]),
    st.floats(1e-4, 100),
)
def test_whatever_the_values_are_no_row_exceeds_the_bound_and_zeros_stay(numbers, rows, tag, error):
    dtype = DTYPES[tag]
    limit = {"F16": 6e4}.get(tag, 3e38)
    numbers = np.array(numbers[: len(numbers) // rows * rows], np.float64).reshape(rows, -1)
    stored = from_numbers(np.clip(numbers, -limit, limit), dtype)
    plan = BudgetPlan.of(
        Settings(min_size=0), [FoundTensor("w", dtype, stored.shape, lambda: stored)]
    )
    plan.at_error(error)
    tensor, change = plan.tie("w", dtype, stored)
    state = decode(encode(TiedState(tuple(plan.codebooks), (tensor,))), max_bytes=10**6)
    before, after = (to_numbers(a, dtype) for a in (stored, state.values(state.tensors[0])))
    assert np.isfinite(after).all() and not after[before == 0].any()
    if stored.shape[1] >= 4:  # rows of fewer elements count as one
        before, after = (a / (np.abs(before).max() or 1.0) for a in (before, after))
        norms, lost = (np.linalg.norm(a, axis=1) for a in (before, after - before))
        assert np.all(lost <= error * norms * (1 + 1e-6) + 1e-150)
        assert change.worst_row <= error * (1 + 1e-9)


def test_a_plan_gives_the_same_file_again(tmp_path, checkpoint):
    files = []
    for name in "ab":
        pack(checkpoint[0], tmp_path / name, budget=Budget(bits=2.5))
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize("budget", ["bits=2.5", pytest.param("error=0.1", marks=pytest.mark.slow)])
def test_the_file_is_the_same_for_any_number_of_threads(tmp_path, checkpoint, budget):
    code = (
        "import sys; from reefknot.packing.pack import pack\n"
        "from reefknot.packing.budget import Budget\n"
        f"pack(sys.argv[1], sys.argv[2], budget=Budget({budget}))"
    )
    files = []
    for threads in "14":
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, threads)
        path = tmp_path / f"{threads}.reef"
        subprocess.run(
            [sys.executable, "-c", code, checkpoint[0], path], env=environment, check=True
        )
        files.append(path.read_bytes())
    assert files[0] == files[1]


def test_errors_of_tensors_follow_their_shares():
    found = found_of({"w": GAUSS, "v": GAUSS[:100, :125].copy()})
    plan = BudgetPlan.of(Settings(), found)
    plan.at_error(0.1)
    changes = [plan.tie(tensor.name, F32, tensor.read())[1] for tensor in found]
    assert 0.08 < changes[0].relative_error < 0.1
    ratio = (changes[0].relative_error / changes[1].relative_error) ** 2
    assert ratio == pytest.approx(16, rel=0.1)  # elements of w over those of v


@pytest.mark.parametrize("step", [0.1, 1.0, 4.0])
def test_values_far_beyond_the_others_keep_their_size(step):
    values = np.random.default_rng(1).normal(size=(200, 200)).astype("<f4")
    values[0, :3] = 150, 300, -200  # rms² is 1 + (150² + 300² + 200²) / 40,000, about 2.2²
    histogram = Histogram.of(values, F32)
    assert 2.1 < histogram.rms < 2.3  # so that all three are beyond 64 rms
    expected = Quantizer.of(histogram, step)
    book, indices = quantize(values, F32, histogram, step)
    assert book.values[indices[0, :3]] == pytest.approx([150, 300, -200], rel=0.01)
    error = change_of("w", "", values, book.values[indices], F32).relative_error
    assert error**2 == pytest.approx(expected.error, rel=0.02)
