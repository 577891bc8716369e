import importlib
import logging
import pkgutil
import types

import numpy as np
import pytest

import reefknot
from reefknot.dtypes import DTYPES
from reefknot.errors import ReefknotError
from reefknot.format import open_state
from reefknot.packing.changes import network_error
from reefknot.packing.clustering import Counts, Plan, Settings, cluster
from reefknot.state import KeptTensor, TiedTensor

RNG = np.random.default_rng(0)
WEIGHTS = {
    "a.weight": RNG.normal(size=(20, 30)).astype("<f4"),
    "a.bias": RNG.normal(size=20).astype("<f4"),
}


def values(state):
    return {name: array for name, _, array in state.arrays()}


def test_nothing_is_changed_unasked():
    few = {"t": np.array([[0, 1, 2.5, 1]] * 3, "<f4"), **WEIGHTS, "n": np.arange(5)}
    state = cluster(few)
    assert all(np.array_equal(values(state)[name], array) for name, array in few.items())
    assert [type(t) for t in state.tensors] == [TiedTensor, KeptTensor, KeptTensor, KeptTensor]


def test_clusters_per_tensor_and_over_the_network():
    alone = cluster(WEIGHTS, num_clusters=4, min_size=0)
    assert [len(book) for book in alone.codebooks] == [4, 4]
    together = cluster(WEIGHTS, num_clusters=4, scope="network", min_size=0)
    assert [len(book) for book in together.codebooks] == [4]
    assert (
        len({*values(together)["a.weight"].ravel().tolist(), *values(together)["a.bias"].tolist()})
        == 4
    )


def test_zeros_stay_zero_and_take_one_of_the_values():
    weights = WEIGHTS["a.weight"] * (RNG.random((20, 30)) < 0.3)
    state = cluster({"w": weights.astype("<f4")}, num_clusters=5, min_size=0)
    assert np.array_equal(values(state)["w"] == 0, weights == 0)
    assert len(state.codebooks[0]) == 5


def test_few_distinct_values_come_back_unchanged():
    weights = RNG.choice(np.array([0.1, 0.2, 0.3], "<f4"), 100)
    assert np.array_equal(values(cluster({"w": weights}, num_clusters=3, min_size=0))["w"], weights)


@pytest.mark.parametrize("scope", ["tensor", "network"])
@pytest.mark.parametrize("clusters", [None, 9])
def test_density_is_the_fraction_left(scope, clusters):
    state = cluster(WEIGHTS, num_clusters=clusters, density=0.1, scope=scope, min_size=0)
    assert state.density == pytest.approx(0.1, abs=0.002)
    largest = np.abs(WEIGHTS["a.weight"]).argmax()
    assert values(state)["a.weight"].ravel()[largest] != 0


def test_kept_names_small_tensors_and_what_is_not_finite_stay_exact():
    odd = {"w": np.array([1, np.nan] * 50, "<f4"), **WEIGHTS}
    state = cluster(odd, num_clusters=2, keep=["*.bias"], min_size=0)
    assert np.array_equal(values(state)["w"].view("<u4"), odd["w"].view("<u4"))
    assert np.array_equal(values(state)["a.bias"], WEIGHTS["a.bias"])
    state = cluster(WEIGHTS, num_clusters=2, min_size=100)
    assert np.array_equal(values(state)["a.bias"], WEIGHTS["a.bias"])


def test_negative_zero_is_not_tied_losslessly():
    weights = np.array([0.0, -0.0] * 50, "<f4")
    assert np.array_equal(values(cluster({"w": weights}))["w"].view("<u4"), weights.view("<u4"))


def test_arrays_with_the_same_storage_are_stored_once():
    state = cluster({"a": WEIGHTS["a.bias"], "b": WEIGHTS["a.bias"]})
    assert dict(state.aliases) == {"b": "a"} and len(state.tensors) == 1


def test_half_precision_and_bfloat16():
    half = WEIGHTS["a.weight"].astype("<f2")
    state = cluster({"w": half}, num_clusters=6, min_size=0)
    assert values(state)["w"].dtype == np.float16 and len(np.unique(values(state)["w"])) == 6
    plan = Plan.of(Settings(num_clusters=3, min_size=0), [])
    brain = (WEIGHTS["a.weight"].view("<u4") >> 16).astype("<u2")
    tensor, change = plan.tie("w", DTYPES["BF16"], brain)
    assert isinstance(tensor, TiedTensor) and 0 < change.relative_error < 1


def test_the_error_is_reported():
    plan = Plan.of(Settings(num_clusters=2, min_size=0), [])
    _, change = plan.tie("w", DTYPES["F32"], np.array([0, 1, 10, 11], "<f4"))
    # Zero is one of the two values; 1, 10 and 11 go to 22/3, so the largest error is 19/3.
    assert change.largest_error == pytest.approx(19 / 3, rel=1e-5)


@pytest.mark.parametrize(
    "wrong", [{"num_clusters": 0}, {"num_clusters": 1}, {"density": 2.0}, {"scope": "layer"}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ReefknotError):
        cluster(WEIGHTS, **wrong)


def test_public_names_are_what_they_say_after_every_submodule_is_imported():
    for module in pkgutil.walk_packages(reefknot.__path__, "reefknot."):
        importlib.import_module(module.name)
    found = {name: getattr(reefknot, name) for name in reefknot.__all__}
    packages = {name for name, thing in found.items() if isinstance(thing, types.ModuleType)}
    assert packages == {"export"}  # reefknot.export.c and the like
    below = {module.name for module in pkgutil.iter_modules(reefknot.__path__)}
    assert below & set(reefknot.__all__) == packages
    assert reefknot.cluster({}).tensors == ()


def test_a_conjugate_view_is_not_taken_for_its_base():
    torch = pytest.importorskip("torch")
    a = torch.tensor([1 + 2j, 3 - 4j])
    parts = a.conj().imag
    assert parts.is_neg()
    state = cluster({"a": a, "b": a.conj(), "c": a.conj(), "d": parts, "e": a.imag})
    assert dict(state.aliases) == {"c": "b"}
    assert values(state)["b"].tolist() == [1 - 2j, 3 + 4j]
    assert values(state)["d"].tolist() == [-2, 4] and values(state)["e"].tolist() == [2, -4]


def test_one_zero_among_many_values_stays_zero():
    weights = np.random.default_rng(1).normal(size=(1000, 300)).astype("<f4")
    weights[501, 7] = 0
    for scope in ("tensor", "network"):
        found = values(cluster({"w": weights}, num_clusters=4, scope=scope))["w"]
        assert np.argwhere(found == 0).tolist() == [[501, 7]]


@pytest.mark.parametrize("scope", ["tensor", "network"])
def test_the_largest_entry_of_many_is_not_clipped(scope):
    weights = np.random.default_rng(0).normal(scale=0.03, size=(1200, 1000)).astype("<f4")
    weights[700, 1], weights[3, 1] = 1.05, -0.9  # a sample of every second value misses both
    found = values(cluster({"w": weights}, num_clusters=256, scope=scope))["w"]
    assert found[700, 1] == pytest.approx(1.05, abs=1e-3)
    assert found[3, 1] == pytest.approx(-0.9, abs=1e-3)


@pytest.mark.parametrize("tag", ["F32", "F64"])
def test_bins_count_every_value_and_ascend(tag):
    weights = np.random.default_rng(0).normal(size=400_000).astype(DTYPES[tag].storage)
    weights[:1000] = 0
    weights[1000:1003] = [1e-45, -1e-40, 30]
    counts = Counts(DTYPES[tag])
    for part in np.split(weights, 4):
        counts.add(part)
    points, masses = counts.line()
    assert not counts.exact and masses.sum() == len(weights)
    assert np.all(np.diff(points) > 0) and masses[points == 0] == [1000]
    assert (points[-1], masses[-1]) == (30, 1)
    assert points @ masses == pytest.approx(weights.sum(dtype=float), abs=0.1)


def test_one_dimensional_and_small_tensors_stay_exact_unless_asked():
    weights = {
        "gain": RNG.normal(size=2000).astype("<f4"),
        "gain to broadcast": np.arange(2000, dtype="<f4").reshape(1, 2000, 1),
        "small": RNG.normal(size=(10, 100)).astype("<f4"),
        "large": RNG.normal(size=(32, 32)).astype("<f4"),
    }
    found = values(cluster(weights, num_clusters=8))
    assert [len(np.unique(found[name])) for name in weights] == [2000, 2000, 1000, 8]
    found = values(cluster(weights, num_clusters=8, min_size=0))
    assert [len(np.unique(found[name])) for name in weights] == [8, 8, 8, 8]
    for density in (None, 0.5):
        assert np.array_equal(values(cluster(weights, 8, density))["gain"], weights["gain"])


def test_what_loses_much_of_its_energy_or_is_not_finite_is_named_in_a_warning(caplog):
    weights = RNG.normal(size=(40, 40)).astype("<f4")
    odd = weights.copy()
    odd[0, 0] = np.inf
    with caplog.at_level(logging.WARNING, "reefknot"):
        cluster({"fine": weights, "odd": odd}, num_clusters=16)
        assert [r.getMessage() for r in caplog.records] == [
            "reefknot: NaN or infinity is in 'odd', which is kept exactly"
        ]
        caplog.clear()
        cluster({"fine": np.sign(weights), "lost": weights}, num_clusters=16, density=0.2)
    (message,) = (record.getMessage() for record in caplog.records)
    assert "lose more than a tenth of their energy" in message and "'lost' (3" in message


def test_the_error_of_the_network_is_that_of_all_tied_tensors_in_one():
    plan = Plan.of(Settings(num_clusters=4, min_size=600), [])
    parts = {"a": WEIGHTS["a.weight"] * 9, "b": RNG.normal(size=(50, 60)).astype("<f4")}
    done = [plan.tie(n, DTYPES["F32"], v) for n, v in {**parts, "c": WEIGHTS["a.bias"]}.items()]
    before = np.concatenate([array.ravel() for array in parts.values()], dtype=float)
    state = reefknot.TiedState(tuple(plan.codebooks), tuple(tensor for tensor, _ in done))
    after = np.concatenate([values(state)[name].ravel() for name in "ab"])
    expected = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert network_error([change for _, change in done]) == pytest.approx(expected, rel=1e-6)
    assert network_error([]) == 0


@pytest.mark.parametrize("unit", [1e-320, 1e-300, 1e307, 1.7e308])
@pytest.mark.parametrize("density", [None, 0.7])
def test_numbers_near_the_ends_of_float64_bring_no_warning_of_numpy(unit, density):
    weights = np.random.default_rng(0).uniform(-1, 1, size=(40, 40)) * unit
    weights[0, :2] = unit, -unit
    plan = Plan.of(Settings(num_clusters=8, density=density), [])
    _, change = plan.tie("w", DTYPES["F64"], weights)
    assert 0.05 < change.relative_error < 0.5 and 0 < change.largest_error < 2 * unit / 3
    _, change = Plan.of(Settings(density=0.7), []).tie("w", DTYPES["F64"], weights)
    assert 0.05 < change.relative_error < 0.5


def test_values_go_to_zero_where_it_is_nearest_only_with_a_density():
    weights = RNG.normal(size=4000).astype("<f4")
    weights[:20] = 0

    def error(**settings):
        plan = Plan.of(Settings(num_clusters=2, min_size=0, **settings), [])
        tensor, change = plan.tie("w", DTYPES["F32"], weights)
        assert len(plan.codebooks[0]) == 2
        zero = plan.codebooks[0].zeros[tensor.indices]
        assert zero[:20].all()
        return change.relative_error, zero[20:].any()

    assert error() == (pytest.approx(1, abs=0.01), False)
    relative, some = error(density=0.9)
    assert relative < 0.85 and some
    opposite = np.array([1, -1, 1.5, -1.5, 0, 0.1, -0.1] * 9, "<f4")
    assert cluster({"w": opposite}, num_clusters=2, density=0.6, min_size=0).density > 0.1


def test_a_network_scope_never_has_more_values_than_asked_for():
    weights = {"a": WEIGHTS["a.weight"] / 10, "b": (WEIGHTS["a.weight"] + 20).astype("<f2")}
    state = cluster(weights, num_clusters=2, density=0.5, scope="network", min_size=0)
    assert [len(book) for book in state.codebooks] == [1, 2]


def test_a_pattern_that_keeps_nothing_is_a_mistake_with_the_nearest_name():
    with pytest.raises(ReefknotError, match=r"'a.bais' of keep .*did you mean 'a.bias'"):
        cluster(WEIGHTS, num_clusters=2, keep=["a.bais"])
    with pytest.raises(ReefknotError, match=r"'zzz\*' of keep .*names are like"):
        cluster(WEIGHTS, num_clusters=2, keep=["zzz*"])


def test_what_is_no_state_dict_or_no_dense_tensor_is_said_in_a_sentence():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ReefknotError, match=r"found Linear; try reefknot.cluster\(model.state"):
        cluster(model)
    with pytest.raises(ReefknotError, match="'x' is a list, not a tensor"):
        cluster({"x": [1.0]})
    with pytest.raises(ReefknotError, match=r"'x' is a torch.sparse_coo tensor"):
        cluster({"x": torch.eye(3).to_sparse()})
    with pytest.raises(ReefknotError, match="'x' is a meta tensor"):
        cluster({"x": torch.zeros(3, device="meta")})
    with pytest.raises(ReefknotError, match=r"num_clusters \(--clusters\) is from 2"):
        cluster(WEIGHTS, num_clusters=0)


@pytest.mark.parametrize("clusters", [None, 2])
def test_signalling_nan_is_kept_without_a_warning(clusters):
    weights = np.array([0x7F800001, 0x3F800000, 0] * 50, "<u4").view("<f4")
    state = cluster({"w": weights}, num_clusters=clusters, min_size=0)
    assert values(state)["w"].tobytes() == weights.tobytes()


@pytest.mark.parametrize("way", ["network", "tensor", "lossless"])
def test_small_tensors_of_known_values_are_stored_by_index(tmp_path, way):
    # As after tying a network: biases are too small for a codebook, and have values of the weights.
    random = np.random.default_rng(0)
    centers = random.normal(size=32).astype("<f4")
    tensors = {
        "a.weight": centers[random.integers(0, 32, (100, 50))],
        "a.bias": centers[random.integers(0, 32, 40)],
        "kept.bias": centers[random.integers(0, 32, 40)],
        "other.bias": np.append(centers[:39], np.float32(0.123)),
        "counter": np.array(3),
    }
    if way == "lossless":
        reefknot.pack(tensors, tmp_path / "m.reef", keep=["kept.*"])
        state = open_state(tmp_path / "m.reef")
    else:
        state = cluster(tensors, num_clusters=64, scope=way, keep=["kept.*"])
    tied = {tensor.name for tensor in state.tensors if isinstance(tensor, TiedTensor)}
    assert tied == {"a.weight", "a.bias"}
    assert {name: array.tobytes() for name, _, array in state.arrays()} == {
        name: array.tobytes() for name, array in tensors.items()
    }
