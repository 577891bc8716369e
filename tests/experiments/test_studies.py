"""Studies: what runs, what is kept, what a search may see, and what each run does differently."""

import itertools
import json
import re
import sys
from types import ModuleType

import kmeans1d as peer
import numpy as np
import pytest
import torch
from experiments.figures import FIGURES, besides, local_filter
from experiments.figures import while_training as figure_of_while_training
from experiments.figures.style import LIGHT, styled, svg
from experiments.studies import (
    STUDIES,
    behaviour,
    driver,
    first_layer,
    generalisation,
    num_clusters,
    pareto,
    training,
    while_training,
)
from experiments.studies.refits import without_last_refit
from experiments.studies.variants import refit_exactly
from hypothesis import given, settings
from hypothesis import strategies as st

from reefknot.lab.zoo import DATASETS, NETWORKS, Data, Split

TOY = """
import pathlib
MINUTES = 0
def cases(done):
    found = {"a": {"value": 3}, "b": {"value": 2}}
    if found.keys() <= done.keys():
        found["best"] = {"value": min(done.values())}
    return found
def measure(value):
    with pathlib.Path(__file__).with_name("calls").open("a") as file:
        file.write(f"{value} ")
    return value * 10 if value < 10 else value
def data(done):
    return list(done.items())
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A search of two runs and a third that depends on both."""
    (tmp_path / "toy_study.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "toy_study", raising=False)
    return __import__("toy_study")


def test_what_is_finished_is_kept_and_decides_what_comes_next(toy: ModuleType, tmp_path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    kept = {"case": {"value": 3}, "settings": {}, "result": 30}
    (folder / "a.json").write_text(json.dumps(kept))
    assert driver.finished(toy, folder) == {"a": 30}
    done = driver.run(toy, folder, jobs=1)
    assert done == {"a": 30, "b": 20, "best": 20}
    assert (tmp_path / "calls").read_text() == "2 20 "  # "a" was there
    assert driver.finished(toy, folder) == done
    driver.collect(toy, done, tmp_path / "data.json")
    assert json.loads((tmp_path / "data.json").read_text()) == [["a", 30], ["b", 20], ["best", 20]]


def test_a_run_of_other_arguments_or_settings_is_not_finished(toy: ModuleType, tmp_path) -> None:
    kept = {"case": {"value": 3}, "settings": {}, "result": 30}
    for changed in ({"case": {"value": 4}}, {"settings": {"soft_steps": 7}}):
        (tmp_path / "a.json").write_text(json.dumps(kept | changed))
        assert driver.finished(toy, tmp_path) == {}
    toy.SETTINGS = {"soft_steps": 7}
    assert driver.finished(toy, tmp_path) == {"a": 30}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@settings(max_examples=30)
@given(JSON)
def test_a_data_file_reads_back(value) -> None:
    assert json.loads(driver.compact(value)) == value


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_begins_with_cases_that_json_can_hold(name: str) -> None:
    cases = STUDIES[name].cases({})
    assert cases
    assert json.loads(json.dumps(cases)).keys() == cases.keys()
    assert not any("/" in case for case in cases)  # each is a file's name


# -- searches ---------------------------------------------------------------------------------


def test_the_search_over_k_sees_no_test_data_and_its_best_gets_five_seeds() -> None:
    search = num_clusters.cases({})
    assert len(search) == 35
    assert not any(case["test"] for case in search.values())
    done = {
        name: {"tying_strength": case["tying_strength"], "hard": 5.0}
        for name, case in search.items()
    }
    done["k4-search-0.001"]["hard"] = 1.5
    done["k2-search-0.1"]["hard"] = None  # diverged
    after = num_clusters.cases(done)
    assert len(after) == 35 + 25
    assert [after[f"k4-seed{seed}"]["tying_strength"] for seed in range(5)] == [1e-3] * 5
    assert after["k2-seed0"]["tying_strength"] == 1e-7  # the weakest of equals
    assert all(after[f"k8-seed{seed}"]["test"] for seed in range(5))


def test_penalties_are_as_strong_as_the_error_of_the_row_asks_for() -> None:
    first = first_layer.cases({})
    assert [name for name, case in first.items() if case["test"]] == ["sparse_apt"]
    done = {name: {"strength": case["strength"], "val_error": 3.0} for name, case in first.items()}
    done["sparse_apt"]["val_error"] = 2.0
    done["l1-search-3e-05"]["val_error"] = 1.9
    done["l2-search-0.001"]["val_error"] = None  # diverged
    after = first_layer.cases(done)
    assert after["l1"] == {"name": "l1", "strength": 3e-5, "test": True}
    assert after["l2"]["strength"] == 1e-4  # the strongest of equals
    table = first_layer.penalised("l1", 3e-5)
    row = training.table_of(
        training.parent_of("lenet-300-100", training.ROW).with_name("config.toml")
    )
    same = ("model", "data", "seed", "optimizer")
    assert {key: table[key] for key in same} == {key: row[key] for key in same}
    assert table["training"]["soft_steps"] == row["training"]["soft_steps"]


def test_pruning_at_the_end_sets_small_weights_to_zero_and_changes_no_other() -> None:
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, -0.01], [0.02, -0.3]]))
        model.bias.copy_(torch.tensor([0.0199, 1.0]))
    pareto.prune_(model, 0.02)
    assert model.weight.tolist() == torch.tensor([[0.5, 0.0], [0.02, -0.3]]).tolist()
    assert model.bias.tolist() == [0.0, 1.0]


def test_the_fully_connected_network_takes_the_strengths_of_the_local_one() -> None:
    first = generalisation.cases({})
    assert {case["title"] for case in first.values() if case["test"]} == {"none"}
    done = {name: {"val_error": 2.0} for name in first}
    done["lenet-5-local-apt-16-search-0.001"]["val_error"] = 1.0
    done["lenet-5-local-apt-4-search-0.0001"]["val_error"] = 1.0
    done["lenet-5-local-l2-search-1e-05"]["val_error"] = None  # diverged
    after = generalisation.cases(done)
    assert after["lenet-5-full-apt-16-seed0"]["settings"] == {"tying_strength": 1e-3}
    assert after["lenet-5-local-apt-4-seed2"]["settings"] == {"tying_strength": 1e-4}
    assert after["lenet-5-local-l2-seed0"]["settings"] == {"l2_strength": 1e-4}
    tested = [name for name, case in after.items() if case["test"]]
    assert len(tested) == 3 * 3 + 3 * 10 + 4  # convolutional; local; fully connected
    assert {after[name]["title"] for name in tested if "caffe" in name} == {"none", "l1", "l2"}
    assert after[generalisation.FILTER_OF]["test"]


# -- every study, on a handful of random images --------------------------------------------------


LONG = ("pareto", "first_layer", "variants")  # many runs, or many weights to draw


@pytest.mark.parametrize(
    "name",
    [
        *("behaviour", "autograd", "num_clusters", "refits"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in LONG),
    ],
)
def test_a_study_gives_data_that_its_figure_is_drawn_from(name, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(DATASETS, "mnist", a_few_images)
    monkeypatch.setitem(DATASETS, "mnist-unit", a_few_images)
    without_start = re.sub("start = .*", "", behaviour.MIXTURE.read_text())
    (tmp_path / "recipe.toml").write_text(without_start)  # its parent is not part of the study
    monkeypatch.setattr(behaviour, "MIXTURE", tmp_path / "recipe.toml")
    monkeypatch.setattr(training, "SHORTER", 20_000)
    study, done = STUDIES[name], {}
    while todo := {case: made for case, made in study.cases(done).items() if case not in done}:
        if name in ("num_clusters", "refits", "pareto"):  # one is like another
            todo = {case: todo[case] for case in [*todo][:: len(todo) // 4]}
        for case, made in todo.items():
            done[case] = json.loads(json.dumps(study.measure(**made)))
        if name != "first_layer":  # which has a search
            break
    data = json.loads(driver.compact(study.data(done)))
    for figure in (f for f in FIGURES if name == f.STUDY and not hasattr(f, "read")):
        with styled(LIGHT):
            assert "<svg" in svg(figure.draw(data, LIGHT))
        assert figure.found(data).endswith(".")
    if name in besides.SENTENCES:
        assert besides.SENTENCES[name](data).endswith(".")


def test_steps_of_a_run_that_shrinks_are_timed_and_drawn(monkeypatch) -> None:
    monkeypatch.setitem(DATASETS, "mnist", a_few_images)
    monkeypatch.setattr(training, "SHORTER", 1)
    run = json.loads(json.dumps(while_training.measure("lenet-300-100", 3_000, 160)))
    assert [phase["phase"] for phase in run["phases"]] == [
        "sparsify",
        "recover",
        "commit",
        "frozen",
    ]
    assert run["phases"][0]["macs"] == run["phases"][0]["whole_macs"] == 266_200
    assert run["phases"][-1]["macs"] < 266_200 / 2
    assert len(run["ms"]["whole"]) == len(run["ms"]["shrunk"]) == while_training.WINDOWS
    assert run["same_zeros"] > 0.99
    data = dict.fromkeys(while_training.CASES, run)
    assert while_training.table(data).count("\n") == 5
    with styled(LIGHT):
        assert "recover" not in svg(figure_of_while_training.draw(data, LIGHT))  # too short a phase


@pytest.mark.slow
def test_three_networks_are_measured_and_drawn(monkeypatch) -> None:
    monkeypatch.setitem(DATASETS, "mnist", a_few_images)
    monkeypatch.setattr(training, "SHORTER", 25_000)
    rows = [
        generalisation.measure(network, title, settings, seed=0, test=True)
        for network, title, settings in (
            ("lenet-5-caffe", "l2", {"l2_strength": 1e-4}),
            ("lenet-5-local", "apt-4", {"tying_strength": 1e-3}),
            ("lenet-5-local", "none", {}),
            ("lenet-5-local", "apt-25570", {"tying_strength": 1e-3}),
            ("lenet-5-full", "l1", {"l1_strength": 1e-5}),
        )
    ]
    data = json.loads(driver.compact(generalisation.data(dict(enumerate(rows)))))
    _, weights = local_filter.filter_of(data)
    assert weights.shape == (576, 5, 5)
    assert len(np.unique(weights)) <= 4  # tied, where an untied layer has 14,400 values
    for figure in FIGURES:
        if figure.STUDY == "generalisation":
            with styled(LIGHT):
                assert "<svg" in svg(figure.draw(data, LIGHT))
            assert "12 x 12" in figure.found(data) or "connected, one seed: " in figure.found(data)


def a_few_images() -> Data:
    """As MNIST, and next to nothing."""
    random = torch.Generator().manual_seed(0)

    def some(count: int) -> Split:
        images = torch.randn(count, 1, 28, 28, generator=random)
        return Split(images, torch.arange(count) % 10)

    return Data("mnist", some(40), some(20), some(20))


# -- one run ----------------------------------------------------------------------------------


def table(**others) -> dict:
    """A tiny run on the embedded digits."""
    return {
        "model": "digits-mlp",
        "data": "digits",
        "method": "apt",
        "settings": {"num_clusters": 4, "refit_every": 10, **others},
        "training": {"soft_steps": 20, "hard_steps": 5, "batch_size": 32, "threads": 1},
        "optimizer": {"name": "adam", "lr": 1e-3},
    }


def test_a_run_is_measured_around_its_phases_and_on_test_images_only_if_asked() -> None:
    events = []
    found = training.trained(table(), watch=lambda progress, _: events.append(progress.event))
    assert found.errors.keys() == {"soft", "hardened", "hard"}
    assert found.state is not None
    assert found.state.num_clusters == 4
    assert events == ["step"] * 20 + ["leaving", "entered"] + ["step"] * 5
    tested = training.trained(table(), test=True).errors
    assert tested.keys() == {"soft", "test_soft", "hardened", "hard", "test_hard"}
    assert {key: tested[key] for key in found.errors} == found.errors


def test_a_part_that_has_converged_is_over_and_the_next_begins(monkeypatch) -> None:
    monkeypatch.setattr(training, "FLAT", {"every": 1, "looked_at": 100, "halvings": 2})
    losses = iter([3.0, 2.0, *[2.5] * 10, 1.0, *[1.0] * 10])  # two stalls, the soft part is over
    losses = itertools.chain(losses, itertools.count(5, -0.001))  # the hard part improves always
    monkeypatch.setattr(training, "validation_loss", lambda parts: next(losses))
    asked = table()
    asked["training"] |= {"soft_steps": 60, "hard_steps": 30}
    asked["optimizer"]["decay"] = "plateau"
    seen = []
    found = training.trained(
        asked, until_flat=True, watch=lambda progress, _: seen.append((progress.event, progress.lr))
    )
    assert found.steps == {"soft": 23, "hard": 30}
    assert [event for event, _ in seen] == ["step"] * 23 + ["leaving", "entered"] + ["step"] * 30
    assert [lr for event, lr in seen if event == "step"][:23] == [1e-3] * 12 + [5e-4] * 11
    assert found.errors.keys() == {"soft", "hardened", "hard"}


def test_the_loss_that_decides_is_the_mean_of_some_validation_images(monkeypatch) -> None:
    monkeypatch.setattr(training, "FLAT", training.FLAT | {"looked_at": 100})
    parts = training.trained(table()).parts
    images, labels = (part[:100] for part in parts.data.validation)
    with torch.no_grad():
        expected = float(torch.nn.functional.cross_entropy(parts.model(images), labels))
    assert training.validation_loss(parts) == pytest.approx(expected, rel=1e-5)


def test_a_shorter_run_has_fewer_steps_and_nothing_else_is_changed() -> None:
    short = training.shortened(table(), 5)
    assert short["training"] == table()["training"] | {"soft_steps": 4, "hard_steps": 1}
    assert short["settings"] == {"num_clusters": 4, "refit_every": 2}
    assert short["optimizer"] == table()["optimizer"]


@pytest.mark.parametrize(("refits", "same"), [(True, False), (False, True)])
def test_without_a_last_refit_hardening_takes_the_clusters_as_they_are(refits, same) -> None:
    seen = []

    def watch(progress, found) -> None:
        if progress.event != "step":
            (group,) = found.parts.method.tying.groups
            seen.append(torch.cat([group.assignment(n).flatten() for n in group.members]).clone())

    training.trained(
        table(refit_every=7), watch=watch, prepare=None if refits else without_last_refit
    )
    assert torch.equal(*seen) == same


def test_an_exact_refit_is_the_optimum_of_another_library() -> None:
    seen = []

    def watch(progress, found) -> None:
        if progress.event == "leaving":
            refit_exactly(found.parts)
            (group,) = found.parts.method.tying.groups
            weights = group.members.weights()
            clusters = torch.cat([group.assignment(n).flatten() for n in group.members]).numpy()
            seen.append((weights, group.centers[clusters]))

    training.trained(table(), watch=watch)
    ((weights, tied),) = seen
    _, centers = peer.cluster(weights[:].tolist(), 4)
    best = np.abs(weights[:, None] - np.array(centers)).min(1)
    assert np.sum((weights - tied) ** 2) == pytest.approx(np.sum(best**2), rel=1e-6)


def test_the_start_of_a_run_is_that_of_its_seed() -> None:
    start = training.start_of("digits-mlp", 3)
    torch.manual_seed(3)
    assert torch.equal(start, training.vector(NETWORKS["digits-mlp"]()))


def test_a_layer_is_kept_as_the_levels_that_the_picture_shows() -> None:
    layer = np.array([[0.0, 0.02, 0.04, -0.3], [5.0, -5.0, 0.17, -0.001]])
    levels = first_layer.unpacked(first_layer.packed(layer), layer.shape)
    assert (levels * 5).round().tolist() == [[0, 0, 1, -5], [5, -5, 3, 0]]
