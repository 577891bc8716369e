"""What plain and sparse APT promise beyond the contract."""

import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reefknot import APT, ConfigError, DivergedError, SparseAPT, TyingError
from reefknot.tying import kmeans

INPUTS = torch.randn(32, 6, generator=torch.Generator().manual_seed(5))
LABELS = torch.randint(0, 3, (32,), generator=torch.Generator().manual_seed(6))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def trained(model, steps=5, hard_steps=2, kind=SparseAPT, **settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tie = kind(model, **settings).attach(optimizer)

    def go(count):
        for _ in range(count):
            optimizer.zero_grad()
            cross_entropy(model(INPUTS), LABELS).backward()
            optimizer.step()

    go(steps)
    tie.harden()
    go(hard_steps)
    return tie


def test_the_defaults_work():
    state = trained(net()).finish()
    assert state.num_clusters <= 17
    assert state.density < 1


def test_sparse_apt_has_zeros_even_without_l1_and_plain_apt_has_none():
    assert trained(net(), l1_strength=0.0, num_clusters=5).finish().density < 1
    assert trained(net(), kind=APT, num_clusters=5).finish().density == 1


def test_refits_happen_every_so_many_steps_and_at_hardening(monkeypatch):
    model = net()
    tie = SparseAPT(model, num_clusters=4, refit_every=3)
    refits, refit = [], kmeans.refit
    monkeypatch.setattr(kmeans, "refit", lambda group: (refits.append(tie.step), refit(group))[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tie.attach(optimizer)
    for _ in range(7):
        cross_entropy(model(INPUTS), LABELS).backward()
        optimizer.step()
    tie.harden()
    assert refits == [3, 6, 7]


def test_random_tying_never_refits_not_even_at_hardening():
    model = net()
    first = nn.utils.parameters_to_vector(model.parameters()).detach().double().numpy()
    even = np.linspace(first.min(), first.max(), 4)
    expected = np.abs(first[:, None] - even).argmin(1)
    tie = trained(model, refit_every=0, num_clusters=4)
    assert np.array_equal(tie.tying.groups[0].clusters(), expected)
    assert tie.tying.changed is None


def test_scope_tensor_and_a_number_of_clusters_for_each():
    clusters = {"0.weight": 4, "0.bias": 2, "2.weight": 3, "2.bias": 1}
    with pytest.raises(ConfigError, match="from 2 to"):
        SparseAPT(net(), scope="tensor", num_clusters=clusters)
    state = trained(net(), kind=APT, scope="tensor", num_clusters=clusters).finish()
    sizes = [len(book) for book in state.codebooks]
    assert all(size <= k for size, k in zip(sizes, clusters.values(), strict=True))


def test_a_mapping_must_name_the_groups_that_there_are():
    with pytest.raises(ConfigError, match="'rest'") as caught:
        SparseAPT(net(), num_clusters={"rest": 3})
    assert any("'network'" in mistake for mistake in caught.value.mistakes)


def test_all_mistakes_in_settings_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        SparseAPT(net(), num_clusters=1, tying_strength=-1.0, init="random", refit_every=1.5)
    assert len(caught.value.mistakes) == 4


def test_what_is_skipped_is_logged_and_kept(caplog):
    with caplog.at_level(logging.WARNING, "reefknot"):
        tie = trained(net(), exclude="2.bias")
    assert "2.bias (excluded)" in caplog.text
    assert tie.skipped == {"2.bias": "excluded"}
    state = tie.finish()
    assert [type(t).__name__ for t in state.tensors] == ["TiedTensor"] * 3 + ["KeptTensor"]


def test_tied_parameters_that_nobody_trains_are_refused():
    model = net()
    head = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with pytest.raises(
        TyingError, match=r"trains 2 of 4 tied parameters .*0\.weight, 0\.bias.*exclude"
    ):
        SparseAPT(model).attach(head)
    tie = SparseAPT(model, exclude="0.*").attach(head)
    before = model[0].weight.detach().clone()
    cross_entropy(model(torch.randn(4, model[0].in_features)), torch.zeros(4).long()).backward()
    head.step()
    tie.harden()
    tie.finish()
    assert torch.equal(model[0].weight, before)


def test_an_optimizer_of_something_else_is_refused():
    model, other = net(), net()
    adam, foreign = (torch.optim.Adam(m.parameters()) for m in (model, other))
    for optimizers in ((foreign,), (adam, foreign)):
        tie = SparseAPT(model, num_clusters=4)
        with pytest.raises(TyingError, match="Adam trains no parameter of the model"):
            tie.attach(*optimizers)
        assert not any(o._optimizer_step_pre_hooks for o in (adam, foreign))
    tie.attach(adam)


def test_an_optimizer_of_nothing_that_is_tied_is_refused():
    model = net()
    biases = torch.optim.SGD([model[0].bias, model[2].bias], lr=0.1)
    tie = SparseAPT(model, num_clusters=4, exclude="*.bias")
    with pytest.raises(
        TyingError, match=r"no attached optimizer trains 2 of 2 tied parameters .0.weig"
    ):
        tie.attach(biases)
    tie.attach(biases, torch.optim.SGD([model[0].weight, model[2].weight], lr=0.1))


def test_looking_at_the_figures_before_attaching_changes_nothing():
    plain, looked_at = net(), net()
    results = []
    for model in (plain, looked_at):
        tie = SparseAPT(model, num_clusters=4)
        if model is looked_at:
            stats = tie.stats()
            assert (stats["density"], stats["centers"]) == (1, {})
            assert stats["predicted_bytes"] >= 4 * sum(p.numel() for p in model.parameters())
        with torch.no_grad():
            model[0].weight.mul_(3)  # a checkpoint that is loaded in between
        tie.attach(torch.optim.SGD(model.parameters(), lr=0.1))
        last = tie.stats()
        results.append((tie.tying.groups[0].centers.tolist(), last["kmeans_penalty"]))
    assert results[0] == results[1]
    assert last["predicted_bytes"] < stats["predicted_bytes"]
    size = {"target_bytes": 100, "steps": 50}
    impossible = SparseAPT(net(), exclude="0.weight", **size)
    impossible.stats()
    with pytest.raises(ConfigError, match="target_bytes is 100"):
        impossible.attach(torch.optim.SGD(impossible.model.parameters(), lr=0.1))


def test_weights_changed_behind_its_back_are_named_at_the_end():
    model = net()
    tie = trained(model)
    with torch.no_grad():
        model[2].weight[0, 0] += 1
    with pytest.raises(TyingError, match=r"'2.weight'"):
        tie.finish()


def test_equal_centers_are_merged_and_unused_ones_dropped():
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 1.0, 2.0, 9.0]]))
    tie = APT(model, num_clusters=4).attach(torch.optim.SGD(model.parameters(), lr=0.1))
    tie.harden()
    group = tie.tying.groups[0]
    group.move_to(np.array([0.0, 2.0, 2.0, 9.0]))
    state = tie.finish()
    assert state.codebooks[0].values.tolist() == [0.0, 2.0, 9.0]
    assert state.tensors[0].indices.tolist() == [[0, 1, 1, 2]]


def test_shared_parameters_and_buffers_end_up_right_in_the_state():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    state = trained(model).finish()
    assert dict(state.aliases) == {"2.weight": "0.weight"}
    kept = {t.name: t.trainable for t in state.tensors if type(t).__name__ == "KeptTensor"}
    assert kept == dict.fromkeys(
        ["1.running_mean", "1.running_var", "1.num_batches_tracked"], False
    )
    assert {name for name, _, _ in state.arrays()} == set(model.state_dict())


BYTES = {"target_bytes": 300, "steps": 120}


@pytest.mark.parametrize(
    ("saved", "here", "words"),
    [
        (
            BYTES,
            {"target_density": 0.05, "steps": 120},
            "target_density' is missing, expected 0.05",
        ),
        (BYTES, BYTES | {"target_bytes": 400}, "target_bytes' is 300, expected 400"),
        (BYTES, BYTES | {"steps": 1000}, "plan.0.sparsify' is 79, expected 660"),
        (BYTES, BYTES | {"begin": "trained"}, "plan.begin' is 0, expected 1"),
        (BYTES, {}, "plan.0.sparsify' is 79, expected -1"),
        ({}, BYTES, "plan.target_bytes' is missing, expected 300"),
    ],
)
def test_a_state_of_another_plan_is_refused_and_changes_nothing(saved, here, words):
    tie = SparseAPT(net(), **here)
    before = tie.state_dict()
    with pytest.raises(TyingError, match=f"of another plan: its entry '.*{words}; give the method"):
        tie.load_state_dict(SparseAPT(net(), **saved).state_dict())
    assert tie.state_dict() == before


def test_a_second_method_that_ties_the_same_weights_is_noticed(caplog):
    model = net()

    def attached(**settings):
        caplog.clear()
        tie = SparseAPT(model, **settings)
        with caplog.at_level(logging.WARNING, "reefknot"):
            tie.attach(torch.optim.SGD(model.parameters(), lr=0.1))
        return tie, "another method, SparseAPT, is attached" in caplog.text

    first, noticed = attached(include="0.*")
    assert not noticed
    _, noticed = attached(include="2.*")
    assert not noticed
    second, noticed = attached(include="0.*")
    assert noticed
    assert any(name in caplog.text for name in ("'0.weight'", "'0.bias'"))
    first.detach(), second.detach()
    _, noticed = attached(include="0.*")
    assert not noticed


def test_a_state_dict_entry_that_is_no_tensor_is_refused_by_name():
    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

        def set_extra_state(self, state):
            pass

    with pytest.raises(TyingError, match="_extra_state"):
        trained(nn.Sequential(Extra(6, 3))).finish()


def test_bfloat16_models_are_tied_too():
    model = net().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tie = SparseAPT(model, num_clusters=4).attach(optimizer)
    cross_entropy(model(INPUTS.bfloat16()), LABELS).backward()
    optimizer.step()
    tie.harden()
    state = tie.finish()
    assert state.codebooks[0].dtype.tag == "BF16"


def test_stats_tell_density_penalty_and_clusters():
    tie = trained(net(), num_clusters=4)
    weights = nn.utils.parameters_to_vector(tie.model.parameters())
    stats = tie.stats()
    assert stats["density"] == pytest.approx(float((weights != 0).float().mean()))
    assert stats["kmeans_penalty"] == pytest.approx(0.0, abs=1e-12)
    assert sum(stats["counts"]["network"]) == len(weights)
    assert len(stats["centers"]["network"]) == len(stats["spreads"]["network"]) == 4
    assert 0 < stats["predicted_bytes"] < 4 * len(weights)


def test_kmeans_penalty_is_half_the_squared_distance():
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 1.0, 4.0]]))
    tie = APT(model, num_clusters=2)  # even: centers 0 and 4
    tie.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    assert tie.stats()["kmeans_penalty"] == 0.5


def test_hardening_twice_is_refused():
    with pytest.raises(TyingError, match="hard already"):
        trained(net()).harden()


def test_kmedians_trains_and_ties():
    state = trained(net(), distance="l1", num_clusters=4).finish()
    assert state.num_clusters <= 4


def test_a_parameter_that_was_replaced_is_found_out():
    model = net()
    tie = SparseAPT(model, num_clusters=4)
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    with pytest.raises(TyingError, match=r"another parameter '0\.weight'"):
        tie.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    model = net()
    tie = trained(model)
    model[2] = nn.Linear(8, 3)
    with pytest.raises(TyingError, match=r"another parameter '2\.weight'"):
        tie.finish()


def test_memory_that_has_gaps_later_is_refused():
    model = net()
    tie = SparseAPT(model, num_clusters=4).attach(torch.optim.SGD(model.parameters(), lr=0.1))
    wide = torch.zeros(8, 12)
    wide[:, :6] = model[0].weight.data
    model[0].weight.data = wide[:, :6]
    with pytest.raises(TyingError, match="fills its memory"):
        tie.harden()


def test_a_model_that_is_partly_converted_is_refused():
    model = net()
    tie = SparseAPT(model, num_clusters=4)
    model[2].bfloat16()
    with pytest.raises(TyingError, match="bfloat16"):
        tie.harden()


def test_hardening_at_once_still_gives_every_cluster():
    torch.manual_seed(0)
    model = nn.Linear(300, 300)
    model.weight.data = torch.distributions.StudentT(2.0).sample((300, 300)) * 0.02
    tie = SparseAPT(model, num_clusters=64).attach(torch.optim.SGD(model.parameters(), lr=0.1))
    tie.harden()
    assert len(tie.finish().codebooks[0]) == 64


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adadelta, torch.optim.RMSprop])
def test_a_shared_value_goes_downhill_with_optimizers_that_scale_each_step(kind):
    model = nn.ParameterDict({"w": nn.Parameter(torch.tensor([1.0, 1.0, 1.0, 3.0]))})
    optimizer = kind(model.parameters(), lr=0.1)
    tie = APT(model, 2, init="kmeans").attach(optimizer)
    tie.harden()
    # Two of the three want to grow, but their sum is steeper the other way.
    model["w"].grad = torch.tensor([10.0, -1.0, -1.0, 0.0])
    optimizer.step()
    assert model["w"][0].item() < 1.0
    assert model["w"].tolist() == [*[model["w"][0].item()] * 3, 3.0]


@pytest.mark.parametrize("name", ["0.weight", "2.bias"])
def test_a_gradient_that_is_not_finite_is_refused_in_hard_tying(name):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    SparseAPT(model, 4).attach(optimizer).harden()
    cross_entropy(model(INPUTS), LABELS).backward()
    model.get_parameter(name).grad.view(-1)[0] = float("nan")
    with pytest.raises(DivergedError, match="gradient is not finite"):
        optimizer.step()


def hand_tied(hard_tying):
    """Two weights of one cluster, hard, about to take a step of Adam with gradients 3 and -1."""
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    tie = APT(model, num_clusters=1, hard_tying=hard_tying).attach(optimizer)
    tie.harden()
    with torch.no_grad():
        model.weight.fill_(0.5)
    model.weight.grad = torch.tensor([[3.0, -1.0]])
    optimizer.step()
    return model.weight.flatten().tolist()


def test_literal_hard_tying_is_an_optimizer_step_and_then_the_projection():
    # The first step of Adam is the learning rate times the gradient's sign. Shared, both have the
    # gradient 1 and go down; to the letter, one goes down and one up, and their mean stays.
    assert hand_tied("shared") == pytest.approx([0.4, 0.4])
    assert hand_tied("literal") == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(("hard_tying", "refits"), [("shared", 1), ("literal", 0)])
def test_literal_hard_tying_keeps_the_clusters_of_the_last_refit(hard_tying, refits, monkeypatch):
    model = net()
    tie = SparseAPT(model, num_clusters=4, hard_tying=hard_tying)
    found, refit = [], kmeans.refit
    monkeypatch.setattr(kmeans, "refit", lambda group: (found.append(1), refit(group))[1])
    tie.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    tie.harden()
    assert len(found) == refits


def test_a_parameter_that_is_replaced_after_attaching_is_found_out_by_the_next_step():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SparseAPT(model, 4).attach(optimizer)
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())  # as FSDP and some to() do
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with pytest.raises(TyingError, match=r"another parameter '0\.weight' than when it was tied"):
        optimizer.step()


@pytest.mark.parametrize(
    "settings",
    [{"num_clusters": 4}, {"target_bytes": 400, "steps": 20, "begin": "commit"}],
    ids=["paper", "begins tied"],
)
def test_hardening_before_attaching_is_refused(settings):
    with pytest.raises(TyingError, match=r"harden\(\) ends a training that has not begun; call"):
        SparseAPT(net(), **settings).harden()


def test_there_is_nothing_after_the_last_phase():
    model = net()
    tie = SparseAPT(model, 4).attach(torch.optim.SGD(model.parameters(), lr=0.1))
    tie.harden()
    with pytest.raises(TyingError, match="frozen is the last phase"):
        tie.advance()
