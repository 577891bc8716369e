import importlib
import pkgutil
import types

import numpy as np
import pytest

import reefknot
from reefknot.clustering import Plan, Settings, cluster
from reefknot.dtypes import DTYPES
from reefknot.errors import ReefknotError
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
    alone = cluster(WEIGHTS, num_clusters=4)
    assert [len(book) for book in alone.codebooks] == [4, 4]
    together = cluster(WEIGHTS, num_clusters=4, scope="network")
    assert [len(book) for book in together.codebooks] == [4]
    assert (
        len({*values(together)["a.weight"].ravel().tolist(), *values(together)["a.bias"].tolist()})
        == 4
    )


def test_zeros_stay_zero_and_take_one_of_the_values():
    weights = WEIGHTS["a.weight"] * (RNG.random((20, 30)) < 0.3)
    state = cluster({"w": weights.astype("<f4")}, num_clusters=5)
    assert np.array_equal(values(state)["w"] == 0, weights == 0)
    assert len(state.codebooks[0]) == 5


def test_few_distinct_values_come_back_unchanged():
    weights = RNG.choice(np.array([0.1, 0.2, 0.3], "<f4"), 100)
    assert np.array_equal(values(cluster({"w": weights}, num_clusters=3))["w"], weights)


@pytest.mark.parametrize("scope", ["tensor", "network"])
@pytest.mark.parametrize("clusters", [None, 9])
def test_density_is_the_fraction_left(scope, clusters):
    state = cluster(WEIGHTS, num_clusters=clusters, density=0.1, scope=scope)
    assert state.density == pytest.approx(0.1, abs=0.002)
    largest = np.abs(WEIGHTS["a.weight"]).argmax()
    assert values(state)["a.weight"].ravel()[largest] != 0


def test_kept_names_small_tensors_and_what_is_not_finite_stay_exact():
    odd = {"w": np.array([1, np.nan] * 50, "<f4"), **WEIGHTS}
    state = cluster(odd, num_clusters=2, keep=["*.bias"])
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
    state = cluster({"w": half}, num_clusters=6)
    assert values(state)["w"].dtype == np.float16 and len(np.unique(values(state)["w"])) == 6
    plan = Plan.of(Settings(num_clusters=3), [])
    brain = (WEIGHTS["a.weight"].view("<u4") >> 16).astype("<u2")
    tensor, change = plan.tie("w", DTYPES["BF16"], brain)
    assert isinstance(tensor, TiedTensor) and 0 < change.relative_error < 1


def test_the_error_is_reported():
    plan = Plan.of(Settings(num_clusters=2), [])
    _, change = plan.tie("w", DTYPES["F32"], np.array([0, 1, 10, 11], "<f4"))
    # Zero is one of the two values; 1, 10 and 11 go to 22/3, so the largest error is 19/3.
    assert change.largest_error == pytest.approx(19 / 3, rel=1e-5)


@pytest.mark.parametrize("wrong", [{"num_clusters": 0}, {"density": 2.0}, {"scope": "layer"}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ReefknotError):
        cluster(WEIGHTS, **wrong)


def test_public_names_are_what_they_say_after_every_submodule_is_imported():
    for module in pkgutil.walk_packages(reefknot.__path__, "reefknot."):
        importlib.import_module(module.name)
    for name in reefknot.__all__:
        assert not isinstance(getattr(reefknot, name), types.ModuleType), name
    below = {module.name for module in pkgutil.iter_modules(reefknot.__path__)}
    assert not below & set(reefknot.__all__)
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


def test_a_zero_that_the_sample_misses_stays_zero(monkeypatch):
    monkeypatch.setattr("reefknot.clustering.MAX_SAMPLE", 100)
    weights = RNG.normal(size=1000).astype("<f4")
    weights[501] = 0
    for scope in ("tensor", "network"):
        assert values(cluster({"w": weights}, num_clusters=4, scope=scope))["w"][501] == 0


def test_values_go_to_zero_where_it_is_nearest_only_with_a_density():
    weights = RNG.normal(size=4000).astype("<f4")
    weights[:20] = 0

    def error(**settings):
        plan = Plan.of(Settings(num_clusters=2, **settings), [])
        tensor, change = plan.tie("w", DTYPES["F32"], weights)
        assert len(plan.codebooks[0]) == 2
        zero = plan.codebooks[0].zeros[tensor.indices]
        assert zero[:20].all()
        return change.relative_error, zero[20:].any()

    assert error() == (pytest.approx(1, abs=0.01), False)
    relative, some = error(density=0.9)
    assert relative < 0.85 and some
    opposite = np.array([1, -1, 1.5, -1.5, 0, 0.1, -0.1] * 9, "<f4")
    assert cluster({"w": opposite}, num_clusters=2, density=0.6).density > 0.1


def test_a_network_scope_never_has_more_values_than_asked_for():
    weights = {"a": WEIGHTS["a.weight"] / 10, "b": (WEIGHTS["a.weight"] + 20).astype("<f2")}
    state = cluster(weights, num_clusters=2, density=0.5, scope="network")
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
    with pytest.raises(ReefknotError, match=r"num_clusters \(--clusters\) is from 1"):
        cluster(WEIGHTS, num_clusters=0)


@pytest.mark.parametrize("clusters", [None, 2])
def test_signalling_nan_is_kept_without_a_warning(clusters):
    weights = np.array([0x7F800001, 0x3F800000, 0] * 50, "<u4").view("<f4")
    state = cluster({"w": weights}, num_clusters=clusters)
    assert values(state)["w"].tobytes() == weights.tobytes()
