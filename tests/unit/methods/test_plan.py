"""What a budget says before training, what it refuses, and the habits of those who train."""

import copy
import itertools
import logging

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reefknot import ConfigError, SparseAPT, TyingError, load, save
from reefknot.format import encode
from reefknot.phases.budget import begin_of
from reefknot.tying import Tying

INPUTS = torch.randn(64, 6, generator=torch.Generator().manual_seed(5))
LABELS = (INPUTS[:, 0] + INPUTS[:, 1] > 0).long() + (INPUTS[:, 2] > 1).long()


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 120), nn.ReLU(), nn.Linear(120, 3))


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 60), nn.BatchNorm1d(60), nn.ReLU(), nn.Linear(60, 3))


def started(make=wide, lr=0.1, optimizer=torch.optim.SGD, **settings):
    model = make()
    optimizer = optimizer(model.parameters(), lr=lr)
    settings = {"target_bytes": 200, "steps": 100} | settings
    return model, optimizer, SparseAPT(model, **settings).attach(optimizer)


def go(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(INPUTS), LABELS).backward()
        optimizer.step()


def told(caplog, level):
    return [r.getMessage() for r in caplog.records if r.levelno == level]


# -- the plan -------------------------------------------------------------------------------


def test_the_plan_says_what_is_fixed_what_is_left_and_how_many_weights_that_buys(caplog):
    caplog.set_level(logging.INFO, "reefknot")
    model = wide()
    model.register_buffer("table", torch.randn(10))
    model[2].bias.requires_grad = False
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    optimizer.add_param_group({"params": [model[2].weight]})
    SparseAPT(model, target_bytes=300, steps=5000).attach(optimizer)
    first, second, third = told(caplog, logging.INFO)
    assert first.startswith("plan: begin = 'sparsify' (as the weights look")
    assert "sparsify 3,300, recover 300, commit 1,300, frozen 100" in first
    fixed = int(second.split()[1])
    parts = {
        part.rpartition(" ")[0]: int(part.rpartition(" ")[2])
        for part in second.partition(": ")[2].partition(": ")[2].split(", ")
        if part[-1].isdigit()
    }
    assert 35 <= parts["buffers"] <= 50  # ten float32 numbers
    assert 8 <= parts["frozen or excluded parameters"] <= 20  # three of them
    assert f"{300 - fixed} bytes buy" in third and "of 1,200 weights" in third


def test_a_target_with_too_few_weights_is_warned_of_with_what_would_do(caplog):
    started(target_bytes=100, steps=50)
    [warning] = told(caplog, logging.WARNING)
    steps = int(warning.partition("steps = ")[2].split()[0].replace(",", ""))
    target = int(warning.partition("target_bytes = ")[2].split()[0].replace(",", ""))
    assert steps > 50 and target > 100
    caplog.clear()
    started(target_bytes=100, steps=steps)
    started(target_bytes=target, steps=50)
    assert not told(caplog, logging.WARNING)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"norms": "exact"}, 'for BatchNorm: set norms = "folded"'),
        ({"exclude": "0.*", "norms": "folded"}, "for frozen or excluded parameters: tie them"),
    ],
)
def test_a_refusal_names_what_weighs_most_and_the_way_out(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        started(normed, target_bytes=100, **settings)


def test_batchnorm_is_folded_by_default_with_a_budget_alone():
    model, optimizer, tie = started(normed, target_bytes=400)
    assert tie.norm_form == "folded"
    go(model, optimizer, 100)
    tie.finish()
    assert not model[1].running_mean.any()
    assert SparseAPT(normed()).norm_form == "separate"
    assert SparseAPT(wide(), target_bytes=200, steps=20).norm_form == "separate"


def test_a_layer_norm_beside_a_folded_batchnorm_is_tied():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.LayerNorm(8), nn.Linear(8, 3))
    tying = Tying(model, norms="folded")
    assert sorted(tying.skipped) == ["1.bias", "1.weight"]
    assert {group.name: list(group.members) for group in tying.groups}["norms"] == [
        "2.weight", "2.bias"
    ]  # fmt: skip


def test_dead_channels_count_as_nothing_while_training():
    model, optimizer, tie = started(normed, target_bytes=250, steps=200)
    go(model, optimizer, 199)
    assert not model[3].weight.any(0).all()  # there are dead channels
    foreseen = tie.stats()["predicted_bytes"]
    go(model, optimizer, 1)
    state = tie.finish()
    assert abs(len(encode(state)) - foreseen) <= 12
    assert foreseen <= 250


# -- where training begins ------------------------------------------------------------------


INITS = [torch.clone, nn.init.orthogonal_, nn.init.xavier_normal_, nn.init.trunc_normal_]


@pytest.mark.parametrize("init", [*INITS, lambda p: nn.init.sparse_(p, 0.5)])
def test_random_weights_look_random(init):
    for make in (wide, lambda: nn.GRU(8, 48), lambda: nn.TransformerEncoderLayer(32, 2, 64)):
        model = make()
        for parameter in model.parameters():
            if parameter.dim() == 2:
                init(parameter.data)
        assert begin_of(Tying(model)) == "sparsify"


def test_trained_weights_look_trained_and_a_saved_state_decides(caplog):
    caplog.set_level(logging.INFO, "reefknot")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 120), nn.ReLU(), nn.Linear(120, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    tie = SparseAPT(model, target_bytes=200, steps=300).attach(optimizer)
    assert tie.phases[0].init == "even"
    go(model, optimizer, 100)
    again = copy.deepcopy(model)
    fresh = SparseAPT(again, target_bytes=200, steps=300)
    assert fresh.phases[0].init == "kmeans"
    fresh.attach(torch.optim.Adam(again.parameters(), lr=0.01))
    assert any("begin = 'trained' (as the weights look" in line for line in told(caplog, 20))
    resumed = SparseAPT(copy.deepcopy(model), target_bytes=200, steps=300)
    resumed.load_state_dict(tie.state_dict())
    assert resumed.plan() == tie.plan()
    assert resumed.state_dict().keys() == tie.state_dict().keys()


# -- the bytes are used ---------------------------------------------------------------------


@pytest.mark.parametrize("target", [130, 200, 400])
@pytest.mark.parametrize("lr", [0.05, 0.3])
def test_the_budget_is_used(target, lr):
    model, optimizer, tie = started(target_bytes=target, steps=400, lr=lr)
    go(model, optimizer, 400)
    assert 0.97 * target <= len(encode(tie.finish())) <= target


# -- what cannot work is refused ------------------------------------------------------------


def test_a_network_without_weights_is_no_result():
    model, optimizer, tie = started(target_bytes=24)
    go(model, optimizer, 100)
    with pytest.raises(TyingError, match=r"pruned to death: .* larger target_bytes or more steps"):
        tie.finish()


def test_a_network_whose_outputs_do_not_depend_on_its_inputs_is_no_result():
    model, optimizer, tie = started()
    go(model, optimizer, 100)
    state = copy.deepcopy(model.state_dict())
    group = tie.tying.groups[0]
    group.assignments["2.weight"].fill_(group.zero_cluster)
    group.set_centers(group.centers, recount=True)
    model[2].weight.data.zero_()
    assert state["0.weight"].any()
    with pytest.raises(TyingError, match="outputs are the same for all inputs"):
        tie.finish()


# -- habits ---------------------------------------------------------------------------------


def test_the_best_state_of_the_last_phase_can_be_put_back(tmp_path):
    model, optimizer, tie = started(lr=0.05)
    go(model, optimizer, 99)
    assert tie.stats()["is_last"]
    best = copy.deepcopy(model.state_dict())
    go(model, optimizer, 20)
    assert not torch.equal(model[0].weight, best["0.weight"])
    model.load_state_dict(best)
    save(tie.finish(), tmp_path / "best.reef")
    found = load(tmp_path / "best.reef")
    for name, weights in best.items():
        torch.testing.assert_close(found[name], weights, rtol=2**-8, atol=0)


def test_the_best_state_of_an_earlier_phase_is_refused():
    model, optimizer, tie = started(lr=0.05)
    go(model, optimizer, 50)
    best = copy.deepcopy(model.state_dict())
    go(model, optimizer, 50)
    model.load_state_dict(best)
    with pytest.raises(TyingError, match=r'no longer tied .* while tie.stats\(\)\["is_last"\]'):
        tie.finish()


def test_an_average_of_the_last_phase_is_tied(tmp_path):
    model, optimizer, tie = started(lr=0.05)
    go(model, optimizer, 98)
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(10):
        go(model, optimizer, 1)
        average.update_parameters(model)
    model.load_state_dict(average.module.state_dict())
    tie.finish()
    torch.testing.assert_close(model[0].weight, average.module[0].weight, rtol=2**-8, atol=0)


def test_steps_after_the_end_are_refused_until_it_is_detached():
    model, optimizer, tie = started()
    go(model, optimizer, 100)
    tie.finish()
    before = model[0].weight.clone()
    with pytest.raises(TyingError, match=r"after finish\(\)"):
        go(model, optimizer, 1)
    assert torch.equal(model[0].weight, before)
    SparseAPT(model, target_bytes=150, steps=20, begin="commit").attach(optimizer)
    go(model, optimizer, 1)
    other, optimizer, tie = started()
    go(other, optimizer, 100)
    tie.finish()
    tie.detach()
    go(other, optimizer, 1)


def test_a_forgotten_attach_is_named():
    model = wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tie = SparseAPT(model, target_bytes=200, steps=20)
    scheduler = tie.lr_scheduler(optimizer)
    go(model, optimizer, 1)
    assert not tie.stats()["is_attached"]
    with pytest.raises(TyingError, match=r"attach\(optimizer\) was not called"):
        scheduler.step()
    with pytest.raises(TyingError, match=r"attach\(optimizer\) was not called"):
        tie.finish()


def test_stats_say_whether_bytes_and_accuracy_are_of_one_network():
    model, optimizer, tie = started()
    go(model, optimizer, 20)
    assert (tie.stats()["phase"], tie.stats()["is_tied"]) == ("sparsify", False)
    go(model, optimizer, 60)
    assert (tie.stats()["phase"], tie.stats()["is_tied"]) == ("commit", True)


def test_a_model_that_waits_for_its_first_inputs_can_be_copied():
    model, optimizer, tie = started(normed, target_bytes=400)
    twin = copy.deepcopy(model)
    twin(INPUTS)
    assert tie.first_inputs.example is None
    go(model, optimizer, 1)
    assert len(tie.first_inputs.example[0]) == 1
    assert not model._forward_pre_hooks and not twin._forward_pre_hooks


# -- sparsify and frozen --------------------------------------------------------------------


def test_pruning_far_more_than_planned_is_told(caplog):
    model, _, tie = started(target_bytes=60, steps=5000)
    caplog.clear()
    tie.harden()  # nothing was made sparse
    assert any("of the weights' sum of squares" in line for line in told(caplog, 30))
    weights = torch.cat([p.detach().flatten() for p in wide().parameters()])
    alive = torch.cat([p.detach().flatten() for p in model.parameters()]) != 0
    lost = float(weights[~alive].square().sum() / weights.square().sum())
    assert any(f"takes {100 * lost:.0f} %" in line for line in told(caplog, 30))


def test_the_values_come_to_rest_in_the_last_phase():
    """Whatever the learning rate: the same gradient moves them less and less."""
    model, optimizer, tie = started(steps=1000)
    tie.harden()
    moves = []
    for _ in range(21):
        before = model[0].weight.detach().clone()
        optimizer.zero_grad()
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.1)
        optimizer.step()
        moves.append(float((model[0].weight.detach() - before).abs().max()))
    assert moves[0] == pytest.approx(0.1 * 0.1, rel=0.02)
    assert all(a > b for a, b in itertools.pairwise(moves[:18]))
    assert moves[19] == moves[20] == pytest.approx(0.05 * 0.1 * 0.1, rel=0.02)
