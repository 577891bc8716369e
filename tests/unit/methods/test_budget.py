"""A budget: how small and how long, and the phases go by themselves."""

import copy
import itertools
import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reefknot import ConfigError, DivergedError, SparseAPT, TyingError, load, save
from reefknot.format import encode
from reefknot.kernels.kmeans1d import counted
from reefknot.phases.budget import _lengths
from reefknot.phases.num_clusters import better_num_clusters
from reefknot.phases.prune import Pruning
from reefknot.phases.target import Target

INPUTS = torch.randn(64, 6, generator=torch.Generator().manual_seed(5))
LABELS = (INPUTS[:, 0] + INPUTS[:, 1] > 0).long() + (INPUTS[:, 2] > 1).long()


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 120), nn.ReLU(), nn.Linear(120, 3))


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 8, 2), nn.Conv2d(8, 8, (1, 2)), nn.Flatten(),
        nn.Linear(8, 3),
    )  # fmt: skip


def started(make=wide, lr=0.1, **settings):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    settings = {"target_bytes": 200, "steps": 200} | settings
    return model, optimizer, SparseAPT(model, **settings).attach(optimizer)


def go(model, optimizer, steps, tie=None):
    """Some steps, at the learning rates of the method if it is given."""
    for _ in range(steps):
        if tie is not None:
            optimizer.param_groups[0]["lr"] = 0.5 * tie.lr_factor(tie.step)
        optimizer.zero_grad()
        dtype = next(model.parameters()).dtype
        cross_entropy(model(INPUTS.to(dtype)), LABELS).backward()
        optimizer.step()


def values(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# -- phases ---------------------------------------------------------------------------------


def test_the_phases_go_by_themselves_and_the_file_has_its_size():
    model, optimizer, tie = started()
    seen = []
    for _ in range(200):
        if tie.phase.name not in seen:
            seen.append(tie.phase.name)
        go(model, optimizer, 1, tie)
    assert seen == ["sparsify", "recover", "commit", "frozen"]
    state = tie.finish()
    assert 190 <= len(encode(state)) <= 200


TARGETS = [(60, "auto"), (130, 5), (200, 5), (400, "auto")]
OTHER_TARGETS = [(60, 5), (130, "auto"), (200, "auto"), (400, 5)]


@pytest.mark.parametrize(
    ("target", "num_clusters"),
    [*TARGETS, *(pytest.param(*other, marks=pytest.mark.slow) for other in OTHER_TARGETS)],
)
def test_the_file_is_never_above_its_target(tmp_path, target, num_clusters):
    model, optimizer, tie = started(target_bytes=target, num_clusters=num_clusters)
    go(model, optimizer, 200)
    file = tmp_path / "model.reef"
    assert save(tie.finish(), file) <= target
    fresh = wide()
    fresh.load_state_dict(load(file))
    assert torch.equal(fresh(INPUTS), model(INPUTS))


def test_a_density_is_a_target_too():
    model, optimizer, tie = started(target_bytes=None, target_density=0.1, steps=1000)
    go(model, optimizer, 1000, tie)
    density = tie.finish().density
    assert 0.09 <= density <= 0.1


def test_the_model_runs_on_tied_values_from_commit_on():
    model, optimizer, tie = started(num_clusters=5)
    for _ in range(200):
        go(model, optimizer, 1)
        assert (len(values(model).unique()) <= 5) == tie.phase.is_tied
    assert tie.phase.is_tied


def test_zeros_are_fixed_when_recovering_begins():
    model, optimizer, tie = started()
    while tie.phase.name == "sparsify":
        go(model, optimizer, 1)
    zeros = values(model) == 0
    assert 0.3 < zeros.float().mean() < 1
    assert len(encode(tie.content().state())) == pytest.approx(210, rel=0.03)  # 5 % to spare
    while tie.phase.name == "recover":
        go(model, optimizer, 1)
        assert (values(model)[zeros] == 0).all()


def test_little_has_to_be_cut_when_the_zeros_are_fixed():
    model, optimizer, tie = started(steps=2000, lr=0.05)
    while not tie.phase.over and tie.phase.name == "sparsify":
        last = values(model)
        go(model, optimizer, 1)
    kept = values(model) != 0
    lost = float(last[~kept].square().sum() / last.square().sum())
    assert lost < 0.1


@pytest.mark.parametrize("begin", ["sparsify", "trained"])
def test_l1_starts_at_a_hundredth_of_the_mean_gradient(begin):
    model, optimizer, tie = started(begin=begin, steps=2000)
    optimizer.zero_grad()
    (1000 * cross_entropy(model(INPUTS), LABELS)).backward()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
    expected = 0.01 * float(gradients.abs().mean())
    optimizer.step()
    assert tie.stats()["l1_strength"] == pytest.approx(expected, rel=1e-5)


def test_steps_beyond_the_budget_stay_frozen():
    model, optimizer, tie = started()
    go(model, optimizer, 210)
    assert tie.phase.name == "frozen"
    assert tie.finish().density < 1


def test_finishing_too_early_says_how_many_steps_are_left():
    model, optimizer, tie = started()
    go(model, optimizer, 50)
    with pytest.raises(TyingError, match="phase 'sparsify' with 150 steps left"):
        tie.finish()


@pytest.mark.parametrize("after", [20, 135, 170])
def test_hardening_early_keeps_the_size_and_is_told(after, caplog):
    model, optimizer, tie = started()
    go(model, optimizer, after)
    cut = tie.phase.name
    tie.harden()
    assert any(f"{cut} is cut short" in record.getMessage() for record in caplog.records)
    go(model, optimizer, 10)
    assert len(encode(tie.finish())) <= 200


def test_a_loop_may_advance_the_phases_itself():
    model, optimizer, tie = started()
    tie.advances = False
    go(model, optimizer, tie.phases[0].steps)
    assert tie.phase.over
    assert tie.phase.name == "sparsify"
    tie.advance()
    assert tie.phase.name == "recover"


def test_every_phase_has_a_step_at_least():
    for steps in range(10, 200):
        found = _lengths(steps, (0.66, 0.06, 0.26))
        assert sum(found) == steps
        assert min(found) >= 1
    assert _lengths(60_000, (0.66, 0.06, 0.26)) == [39_600, 3_600, 15_600, 1_200]


@pytest.mark.parametrize(("steps", "is_held"), [(200, True), (20_000, False)])
def test_the_learning_rate_falls_in_each_phase_of_a_long_training(steps, is_held):
    """In a short one it stays as it is until the model runs on tied values."""
    tie = SparseAPT(wide(), target_bytes=200, steps=steps)
    factors = [tie.lr_factor(step) for step in range(steps)]
    ends = np.cumsum([phase.steps for phase in tie.phases])
    for number, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        part = factors[begin:end]
        assert part[0] == pytest.approx(0.1 if number == 3 else 1.0)
        if is_held and number < 2:
            assert set(part) == {1.0}
        else:
            assert all(a > b for a, b in itertools.pairwise(part))
            assert part[-1] < 0.05


def test_the_scheduler_follows_the_phases():
    model, optimizer, tie = started()
    scheduler = tie.lr_scheduler(optimizer)
    for step in range(200):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * tie.lr_factor(step))
        go(model, optimizer, 1)
        scheduler.step()


def test_the_density_before_and_after_is_logged(caplog):
    caplog.set_level(logging.INFO, logger="reefknot")
    model, optimizer, _ = started()
    go(model, optimizer, 200)
    told = [record.getMessage() for record in caplog.records]
    assert [t.split(":")[0] for t in told if "begins" in t] == ["step 132", "step 144", "step 196"]


def test_stats_tell_the_phase_the_bytes_and_the_target():
    model, optimizer, tie = started()
    go(model, optimizer, 190)
    stats = tie.stats()
    assert stats["phase"] == "commit"
    assert stats["predicted_bytes"] == len(encode(tie.content().state()))
    assert stats["target_bytes"] == 200
    assert stats["num_clusters"] == tie.tying.groups[0].num_clusters


# -- saving, moving, several optimizers -----------------------------------------------------


SAVED_AT, SAVED_AT_LENGTH = (0, 50, 132, 140, 144, 196, 198), (3, 150, 170)


@pytest.fixture(scope="module")
def saved():
    """What is saved on the way, and the state in the end."""
    parts = model, optimizer, tie = started()
    found = {}
    for step in range(200):
        if step in SAVED_AT + SAVED_AT_LENGTH:
            found[step] = copy.deepcopy([part.state_dict() for part in parts])
        go(model, optimizer, 1)
    return found, tie.finish()


@pytest.mark.parametrize(
    "step", [*SAVED_AT, *(pytest.param(step, marks=pytest.mark.slow) for step in SAVED_AT_LENGTH)]
)
def test_a_run_goes_on_exactly_where_it_was_saved(saved, step):
    parts = model, optimizer, tie = started()
    go(model, optimizer, 146)  # in another phase, with latent weights of its own
    assert tie.phase.name == "commit"
    for part, state in zip(parts, copy.deepcopy(saved[0][step]), strict=True):
        part.load_state_dict(state)
    go(model, optimizer, 200 - step)
    assert tie.finish() == saved[1]


def test_latent_weights_follow_a_model_that_is_laid_out_or_converted_anew():
    settings = {"target_bytes": 90, "num_clusters": 5}
    plain, plain_optimizer, _ = started(convolutions, lr=0.01, **settings)
    model, optimizer, tie = started(convolutions, lr=0.01, **settings)
    go(plain, plain_optimizer, 150)
    go(model, optimizer, 150)
    model.to(memory_format=torch.channels_last)
    go(plain, plain_optimizer, 1)
    go(model, optimizer, 1)
    assert torch.allclose(values(plain), values(model), atol=1e-6)
    model.double()
    optimizer.zero_grad()
    go(model, optimizer, 1)
    assert len(values(model).unique()) <= 5
    assert tie.phase.name == "commit"


def test_weights_that_are_not_finite_are_told_while_the_model_runs_on_tied_ones():
    model, optimizer, _ = started()
    go(model, optimizer, 150)
    model[0].weight.grad.fill_(float("nan"))
    with pytest.raises(DivergedError, match="not finite"):
        optimizer.step()


def test_two_optimizers_are_one_round():
    model = wide()
    first = torch.optim.SGD(model[0].parameters(), lr=0.05)
    second = torch.optim.SGD(model[2].parameters(), lr=0.05)
    tie = SparseAPT(model, target_bytes=200, steps=100).attach(first, second)
    for _ in range(100):
        model.zero_grad()
        cross_entropy(model(INPUTS), LABELS).backward()
        first.step()
        second.step()
    assert tie.step == 100
    assert len(encode(tie.finish())) <= 200


def test_norm_layers_are_tied_but_not_pruned():
    def normed():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 60), nn.LayerNorm(60), nn.ReLU(), nn.Linear(60, 3))

    model, optimizer, tie = started(normed, target_bytes=250)
    go(model, optimizer, 200)
    state = tie.finish()
    assert len(encode(state)) <= 250
    assert (model[1].weight != 0).all()
    assert len(model[1].weight.unique()) <= 9


def batch_normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 60), nn.BatchNorm1d(60), nn.ReLU(), nn.Linear(60, 3))


def test_batchnorm_for_inference_is_the_same_function_in_few_bytes_and_counts(tmp_path):
    for norms, target in (("folded", 400), ("exact", 1_100)):
        model, optimizer, tie = started(batch_normed, target_bytes=target, norms=norms)
        go(model, optimizer, 200)
        model.eval()
        before = model(INPUTS)
        norm = model[1]
        scale = norm.weight.detach().double() / (norm.running_var.double() + norm.eps).sqrt()
        state = tie.finish()
        assert 0.9 * target < len(encode(state)) <= target
        save(state, tmp_path / f"{norms}.reef")
        again = batch_normed().eval()
        again.load_state_dict(load(tmp_path / f"{norms}.reef"))
        assert torch.equal(again(INPUTS), model(INPUTS))
        change = (model(INPUTS) - before).norm() / before.norm()
        assert change < 2**-7
        if norms == "folded":
            assert not norm.running_mean.any()
            assert torch.equal(norm.running_var, torch.full((60,), 1 - norm.eps))
            used = model[3].weight.any(0)
            assert ((norm.weight.double() / scale - 1).abs() <= 2**-8)[used].all()
            assert not norm.weight[~used].any()
            bits = norm.bias.detach().numpy().view("<u4")
            assert not (bits & 0xFFFF).any()  # at most 8 significant bits


def test_dead_channels_of_a_batchnorm_for_inference_are_zero():
    torch.manual_seed(0)
    model = batch_normed()
    settings = {"target_bytes": 300, "steps": 200, "norms": "folded"}
    tie = SparseAPT(model, example_input=INPUTS[:1], **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tie.attach(optimizer)
    go(model, optimizer, 200)
    tie.finish()
    unused = ~model[3].weight.any(0)
    assert unused.any()
    assert not model[1].weight[unused].any() and not model[1].bias[unused].any()
    assert model[1].weight[~unused].any()


# -- what can go wrong ----------------------------------------------------------------------


def test_a_target_that_cannot_be_met_is_refused_at_once():
    model = wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tie = SparseAPT(model, target_bytes=1000, steps=100, exclude="0.weight")
    sentence = (
        r"target_bytes is 1,000, but .* still has 2,\d+, 2,\d+ of them for frozen or excluded"
    )
    with pytest.raises(ConfigError, match=sentence):
        tie.attach(optimizer)


def test_statistics_that_fill_up_in_training_count_at_once():
    """A new BatchNorm holds zeros and ones, which cost nothing; soon it holds numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 100), nn.BatchNorm1d(100), nn.Linear(100, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tie = SparseAPT(model, target_bytes=300, steps=600, norms="exact")
    with pytest.raises(ConfigError, match=r"still has 800, 779 of them for BatchNorm: .*folded"):
        tie.attach(optimizer)
    assert not model[1].running_mean.any()
    SparseAPT(model, target_bytes=300, steps=600).attach(optimizer)  # folded, and channels may die


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"target_bytes": 100}, "target_bytes needs steps"),
        ({"steps": 100}, "steps needs target_bytes or target_density"),
        ({"target_bytes": 1, "target_density": 0.5, "steps": 20}, "are both given"),
        ({"target_bytes": 0, "steps": 20}, "target_bytes must be a whole number"),
        ({"target_density": 1.5, "steps": 20}, "target_density must be a number from"),
        ({"target_bytes": 9, "steps": 3}, "steps must be a whole number of steps, at least 10"),
        ({"target_bytes": 9, "steps": 20, "l1_strength": 1e-4}, "l1_strength is set by the budget"),
        ({"target_bytes": 9, "steps": 20, "init": "kmeans"}, "init is set by the budget"),
        ({"num_clusters": "auto"}, 'num_clusters = "auto" needs target_bytes'),
        ({"num_clusters": "many"}, "num_clusters must be a whole number from 2"),
        ({"begin": "trained"}, "begin needs target_bytes"),
    ],
)
def test_settings_that_do_not_go_together_are_named(settings, sentence):
    with pytest.raises(ConfigError) as caught:
        SparseAPT(wide(), **settings)
    assert any(sentence in mistake for mistake in caught.value.mistakes)


# -- from a network that is tied already ----------------------------------------------------


def tied_already(num_values=4):
    """Weights of few values, as a packed file gives them; half of them zero."""
    model = wide()
    for parameter in model.parameters():
        steps = (parameter.detach() * num_values).round().clamp(-num_values, num_values)
        parameter.data = steps / num_values * (torch.rand_like(steps) < 0.5)
    return model


def test_a_tied_network_starts_from_its_own_values():
    model = tied_already()
    before = values(model)
    tie = SparseAPT(model, target_bytes=400, steps=40, begin="commit")
    tie.attach(torch.optim.SGD(model.parameters(), lr=0.0))
    assert tie.stats()["phase"] == "commit"
    assert torch.equal(values(model), before)
    distinct = before.unique()
    assert torch.equal(torch.from_numpy(tie.tying.groups[0].centers).float(), distinct)
    assert tie.stats()["num_clusters"] == len(distinct)


def test_a_tied_network_has_its_size_in_the_end_and_its_zeros_stay(tmp_path):
    model = tied_already(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    zeros = values(model) == 0
    tie = SparseAPT(model, target_bytes=170, steps=200, begin="commit").attach(optimizer)
    assert tie._file_bytes() > 170
    go(model, optimizer, 200)
    assert 150 < save(tie.finish(), tmp_path / "x.reef") <= 170
    assert (values(model)[zeros] == 0).all()


def test_a_given_number_of_values_is_fitted_to_a_tied_network():
    model = tied_already()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    SparseAPT(model, target_bytes=400, steps=40, begin="commit", num_clusters=3).attach(optimizer)
    assert len(values(model).unique()) == 3


def test_a_network_that_is_not_tied_is_refused_where_it_should_be():
    model = wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tie = SparseAPT(model, target_bytes=400, steps=40, begin="commit")
    with pytest.raises(TyingError, match=r"1,203 values, more than 256.*pack the network first"):
        tie.attach(optimizer)
    go(model, optimizer, 1)  # nothing is attached


# -- pruning and the number of values -------------------------------------------------------


def sized(model, target, **settings):
    tie = SparseAPT(model, target_bytes=target, steps=100, **settings)
    tie.tying.start("kmeans")
    return tie


def test_the_smallest_weights_of_all_groups_are_cut():
    some = torch.arange(1.0, 101.0)
    model = nn.ParameterDict({"a": nn.Parameter(some[::2].clone()), "b": nn.Parameter(-some[1::2])})
    tie = sized(model, 34, num_clusters=3, scope="tensor")
    tie.phases[0].controller.pruning.prune()
    alive = {g.name: g.assignments[g.name] != g.zero_cluster for g in tie.tying.groups}
    least = model["a"][alive["a"]].min()
    assert torch.equal(alive["a"], model["a"] >= least)
    assert torch.equal(alive["b"], -model["b"] >= least)
    assert len(encode(tie.content().state())) <= 34
    assert 0 < sum(int(a.sum()) for a in alive.values()) < 100


def test_a_look_at_what_would_be_lost_changes_nothing():
    model = wide()
    tie = sized(model, 200)
    before = tie.state_dict()
    weights = values(model).double()
    lost = tie.phases[0].controller.pruning.energy_lost()
    after = tie.state_dict()
    changed = {"survivors", "num_clusters.0", "checked"}
    assert all(
        torch.equal(torch.as_tensor(after[k]), torch.as_tensor(v))
        for k, v in before.items()
        if k not in changed
    )
    square = weights.square().sort().values
    expected = square[: -tie.phases[0].controller.pruning.survivors].sum() / square.sum()
    assert lost == pytest.approx(float(expected), rel=1e-6)


def test_a_trimmed_network_loses_what_is_worth_least():
    weights = torch.zeros(20, 20)
    weights[:, 0] = 3.0
    weights[7, 9] = 0.5
    model = nn.ParameterDict({"w": nn.Parameter(weights)})
    tie = sized(model, 10_000, num_clusters=3)
    tie.phases[0].controller.pruning.prune()
    size = tie._file_bytes()
    pruning = Pruning(
        tie.tying.groups, Target(size - 1, tie._file_bytes), choose_num_clusters=False
    )
    pruning.trim()
    clusters = tie.tying.groups[0].assignments["w"]
    assert clusters[7, 9] == tie.tying.groups[0].zero_cluster
    assert (clusters[:, 0] != tie.tying.groups[0].zero_cluster).all()
    assert tie._file_bytes() < size


def test_values_that_pay_stay_and_others_go():
    rng = np.random.default_rng(0)
    three = np.repeat([-1.0, 1.0, 2.0], 200) + rng.normal(0, 1e-3, 600)
    weights = counted(np.concatenate([three, rng.normal(0, 0.01, 4000)]))
    assert better_num_clusters(weights, 600, 4, 4000.0) == 4  # the three and zero
    assert better_num_clusters(weights, 600, 6, 4000.0) == 5  # one at a time
    assert better_num_clusters(weights, 600, 3, 4000.0) == 3  # a fourth would cost too many weights


def test_a_word_that_was_renamed_is_told_by_its_new_one():
    with pytest.raises(ConfigError, match="norms = 'own' is called 'separate' now"):
        SparseAPT(nn.Linear(4, 4), norms="own")
