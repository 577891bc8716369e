import numpy as np
import pytest

from reefknot.cluster import Plan, Settings, cluster
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
