"""Verdicts and reductions: each rule with data made by hand, for each word that it can give."""

import copy
from typing import Any

import numpy as np
import pytest
from experiments.figures import page, reduced, verdicts
from experiments.figures.verdicts import Check, verdict
from experiments.studies import generalisation, num_clusters, pareto, refits
from experiments.studies import training as common

CNN, LOCAL, FULL = generalisation.CNN, generalisation.LOCAL, generalisation.FULL
HOLDS, IN_PART, NOT, OPEN = "holds", "holds in part", "does not hold here", "is open"


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ([True, True], HOLDS),
        ([True, False], IN_PART),
        ([True, None], IN_PART),
        ([None, True], IN_PART),
        ([False, True, True], NOT),  # the first is what the claim says above all
        ([None, False], NOT),
        ([False], NOT),
        ([None, None], OPEN),
    ],
)
def test_a_verdict_follows_from_its_checks(found: list[bool | None], word: str) -> None:
    assert verdict([Check("it is so", value) for value in found]) == word


def test_a_verdict_is_told_with_what_is_true_what_is_not_and_what_is_open() -> None:
    text = verdicts.told([Check("a", True), Check("b", False), Check("c", None), Check("d", True)])
    assert text == "**Verdict: holds in part.** True: a; d. Not true: b. Not measured: c."


# -- each rule ----------------------------------------------------------------------------------


def test_exact_k_means() -> None:
    def word(exact: float) -> str:
        return verdict(verdicts.variants({"fast": {"hard": 1.8}, "exact": {"hard": exact}}))

    assert (word(2.0), word(3.0), word(1.0)) == (HOLDS, NOT, NOT)


def test_autograd() -> None:
    def word(nearest: float) -> str:
        data = {"largest_move": 0.1, "difference_assigned": 0.0, "difference_nearest": nearest}
        return verdict(verdicts.autograd(data))

    assert (word(9e-4), word(2e-3)) == (HOLDS, NOT)


def test_clusters_of_weights() -> None:
    peaks, flat = [[10, 1, 10, 1, 10]], [[5, 5, 5, 5, 5]]

    def word(tied: list[list[int]], free: list[list[int]]) -> str:
        row = {"event": "leaving", "centers": [0.5, 2.5, 4.5]}
        runs = {
            "apt": {"histogram": tied, "end_range": [0.0, 5.0], "rows": [row]},
            "dense": {"histogram": free, "end_range": [0.0, 5.0]},
        }
        return verdict(verdicts.histogram({"runs": runs}))

    one = [[10, 1, 10, 10, 10]]
    assert (word(peaks, flat), word(peaks, one), word(one, flat)) == (HOLDS, IN_PART, NOT)


def test_losses_with_and_without_tying() -> None:
    def word(soft: float = 1.5, hardened: float = 1.9, hard: float = 1.6, speed: int = 400) -> str:
        def run(errors: dict[str, float], step: int) -> dict[str, Any]:
            rows = [{"step": 200, "val_error": 5.0}, {"step": step, "val_error": 2.0}]
            return {"errors": errors, "rows": rows}

        errors = {"soft": soft, "hardened": hardened, "hard": hard}
        runs = {"apt": run(errors, speed), "dense": run({"soft": 1.4}, 400)}
        return verdict(verdicts.losses({"runs": runs}))

    assert word() == HOLDS
    assert word(hardened=1.5) == word(hard=1.9) == word(speed=1_000) == IN_PART
    assert word(soft=2.4, hardened=2.6, hard=2.5) == NOT


def test_centers_and_components() -> None:
    apart, together = [-0.3, -0.1, 0.1, 0.3], [-0.3, 0.1, 0.105, 0.3]

    def word(
        before: list[float], after: list[float], mixed: list[float] | None, changed: float = 0.0
    ) -> str:
        rows = [
            {"event": "step", "step": 1_000, "changed": 0.7, "centers": before},
            {"event": "step", "step": 2_000, "changed": changed, "centers": before},
            {"event": "entered", "step": 2_000, "changed": None, "centers": before},
            {"event": "step", "step": 3_000, "changed": None, "centers": after},
        ]
        runs: dict[str, Any] = {"apt": {"rows": rows}}
        if mixed is not None:
            runs["mixture"] = {"rows": [{"centers": mixed}]}
        return verdict(
            verdicts.centers({"settings": {"apt": {"refit_every": 1_000}}, "runs": runs})
        )

    wider = [2 * center for center in apart]
    assert word(apart, wider, together) == HOLDS
    assert word(apart, wider, None) == word(apart, wider, apart) == IN_PART
    assert word(apart, apart, together) == word(apart, wider, together, 0.1) == IN_PART
    assert word(together, wider, together) == NOT


def over_k(costs: dict[int, float], soft: dict[int, float] | None = None) -> dict[str, Any]:
    rows = [
        {
            "num_clusters": k,
            "test": True,
            "hard": 0.0,
            "test_soft": (soft or {}).get(k, 1.5),
            "test_hard": (soft or {}).get(k, 1.5) + cost,
        }
        for k, cost in costs.items()
    ]
    return {"settings": num_clusters.SETTINGS, "runs": rows}


def over_t(few: list[float], many: list[float]) -> dict[str, Any]:
    intervals = refits.SETTINGS["intervals"]
    rows = [
        {"num_clusters": k, "refit_every": t, "hard": error}
        for k, errors in ((2, few), (32, many))
        for t, error in zip(intervals, errors, strict=True)
    ]
    return {"settings": refits.SETTINGS, "runs": rows}


def test_k_and_t() -> None:
    good_k = over_k({2: 8.0, 8: 1.0, 32: 0.1})
    few, many = [6.0, 9.0, 20.0, 40.0, 60.0, 89.0], [1.5, 1.5, 1.6, 1.9, 2.1, 3.0]
    good_t = over_t(few, many)

    def word(**data: dict[str, Any]) -> str:
        return verdict(verdicts.over_k_and_t(data))

    assert word(k=good_k, t=good_t) == HOLDS
    assert word(k=good_k) == IN_PART
    assert word(k=over_k({2: 8.0, 8: 1.0, 32: 0.5}), t=good_t) == IN_PART
    assert word(k=over_k({2: 8.0, 8: 1.0, 32: 0.1}, {2: 2.0}), t=good_t) == IN_PART
    assert word(k=good_k, t=over_t(few, [*many[:-1], 80.0])) == IN_PART
    assert word(k=good_k, t=over_t(few, [1.5, 1.5, 1.8, *many[3:]])) == IN_PART
    assert word(k=good_k, t=over_t([*few[:-1], 40.0], many)) == IN_PART
    assert word(k=good_k, t=over_t([6.0, 6.1, 6.2, 6.3, 6.4, 89.0], many)) == IN_PART
    assert word(k=over_k({2: 1.0, 8: 8.0, 32: 0.1}), t=good_t) == NOT


def networks(**changed: dict[str, float]) -> dict[str, Any]:
    """Errors as in the paper: a tenth between CNN and LCN, 0.6 between LCN and MLP."""
    apt = {f"apt-{k}": 1.0 for k in generalisation.SETTINGS["ks"][LOCAL]}
    table: dict[str, dict[str, float]] = {
        CNN: {"none": 0.9, "l1": 0.9, "l2": 0.85} | changed.get("cnn", {}),
        LOCAL: {"none": 1.0, "l1": 1.0, "l2": 1.1} | apt | changed.get("lcn", {}),
        FULL: {"none": 1.6, "l1": 1.6, "l2": 1.5, "apt-16": 1.6} | changed.get("mlp", {}),
    }
    rows = [
        {"network": network, "title": title, "test": True, "test_error": error + seed}
        for network, own in table.items()
        for title, error in own.items()
        for seed in (-0.05, 0.05)
    ]
    return {"settings": generalisation.SETTINGS, "runs": rows}


def test_what_generalises() -> None:
    def word(data: dict[str, Any]) -> str:
        return verdict(verdicts.networks(data))

    assert word(networks()) == HOLDS
    assert word(networks(lcn={"l1": 1.3})) == IN_PART
    assert word(networks(lcn={"apt-4": 1.3})) == IN_PART
    assert word(networks(lcn={"apt-2": 3.0})) == HOLDS  # the claim is about K above 2
    assert word(networks(cnn={"none": 1.05, "l1": 1.05, "l2": 1.05})) == IN_PART
    assert word(networks(lcn={"none": 1.4, "l1": 1.4, "l2": 1.4})) == NOT
    assert word({"settings": generalisation.SETTINGS, "runs": []}) == OPEN
    partly = networks()
    partly["runs"] = [row for row in partly["runs"] if row["title"] != "apt-25570"]
    assert word(partly) == IN_PART


def test_local_filters() -> None:
    random = np.random.default_rng(0)

    def word(middle: np.ndarray, border: float) -> str:
        weights = np.full((24, 24, 5, 5), border)
        weights[6:18, 6:18] = middle
        return verdict(verdicts.local({"runs": [{"filter": weights.tolist()}]}))

    various = random.standard_normal((12, 12, 5, 5))
    shared = np.broadcast_to(random.standard_normal((5, 5)), various.shape)
    assert (word(various, 0.1), word(various, 0.9), word(shared, 0.1)) == (HOLDS, IN_PART, NOT)


def fronts(**moved: float) -> dict[str, Any]:
    """Errors of each series at three densities, and how far a series is above K = 17."""
    above = {"k17": 0.0, "k9": 0.5, "trained": 0.0, "threshold": 0.5} | moved
    rows = [
        {"series": series, "l1_strength": density, "density": density, "val_error": error + by}
        for series, by in above.items()
        for density, error in ((0.01, 2.5), (0.02, 2.0), (0.04, 1.6))
    ]
    return {"settings": pareto.SETTINGS, "runs": rows}


def test_sparsity_and_accuracy() -> None:
    def word(data: dict[str, Any]) -> str:
        return verdict(verdicts.sparsity(data))

    assert word(fronts()) == HOLDS
    assert word(fronts(trained=-0.6)) == word(fronts(threshold=-0.1)) == IN_PART
    assert word(fronts(k9=-0.1)) == NOT
    retrained = fronts()
    retrained["settings"] = pareto.SETTINGS | {"retrained": True}
    assert word(retrained) == IN_PART


def test_empty_filters() -> None:
    def word(empty: int, density: float = 0.005, error: float = 1.0) -> str:
        values = np.ones((20, 5, 5))
        values[:empty] = 0
        record = {"test_error": error, "density": density}
        return verdict(verdicts.filters({common.ROW: {"filters": values, "record": record}}))

    assert (word(11), word(10), word(9)) == (HOLDS, IN_PART, NOT)
    assert word(11, density=0.006) == word(11, error=1.1) == IN_PART


def layers(**own: dict[str, float]) -> dict[str, Any]:
    run = {"live_pixels": 784, "live_units": 300, "test_error": 1.85}
    runs = {name: run | own.get(name, {}) for name in ("l1", "l2", "apt", "sparse_apt")}
    return {"runs": runs}


def test_pruned_inputs() -> None:
    def word(**own: dict[str, float]) -> str:
        return verdict(verdicts.pixels(layers(**own)))

    assert word(sparse_apt={"live_pixels": 403}) == HOLDS
    assert word(sparse_apt={"live_pixels": 500}) == IN_PART
    assert word(sparse_apt={"live_pixels": 403}, l1={"test_error": 2.2}) == IN_PART
    assert word(sparse_apt={"live_pixels": 403}, l1={"live_pixels": 390}) == NOT


def test_disconnected_units() -> None:
    def word(**own: dict[str, float]) -> str:
        return verdict(verdicts.units(layers(**own)))

    assert word(sparse_apt={"live_units": 71}) == HOLDS
    assert word(sparse_apt={"live_units": 72}) == IN_PART
    assert word(sparse_apt={"live_units": 71}, apt={"test_error": 2.2}) == IN_PART
    assert word(sparse_apt={"live_units": 71}, l1={"live_units": 60}) == NOT


# -- what is reduced ----------------------------------------------------------------------------


def test_what_is_less_than_the_papers_is_told_by_how_much() -> None:
    data = networks()
    assert reduced.reductions("generalisation", data) == [
        "searches in 20 % of the steps",
        "1 instead of 3 seeds (MLP)",
        "1 instead of 7 values of K (MLP)",
    ]
    data["runs"] = [row for row in data["runs"] if (row["network"], row["title"]) != (FULL, "l1")]
    assert reduced.reductions("generalisation", data)[3:] == ["no L1 (MLP)"]
    changed = copy.deepcopy(pareto.SETTINGS) | {"soft_steps": 30_000, "retrained": True}
    assert reduced.reductions("pareto", {"settings": changed}) == [
        "30,000 instead of 60,000 soft steps (50 %)",
        "L1 with a threshold is retrained and tied",
    ]
    assert reduced.reductions("pareto", {"settings": pareto.SETTINGS}) == []


@pytest.mark.parametrize("mark", [*verdicts.BY_FIGURE, *verdicts.BY_STUDY])
def test_every_claim_of_the_page_ends_in_a_verdict(mark: int | str) -> None:
    name = f"verdict figure {mark}" if isinstance(mark, int) else f"verdict {mark}"
    text = page.DOCUMENT.read_text()
    assert text.count(f"<!-- {name} -->\n**Verdict: ") == 1
