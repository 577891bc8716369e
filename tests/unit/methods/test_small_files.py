"""Sparse APT for the smallest files: relaxing, tied values in front, a size to end at."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reefknot import ConfigError, DivergedError, SparseAPT
from reefknot.format import encode
from reefknot.methods.sized import choose_zeros

INPUTS = torch.randn(32, 6, generator=torch.Generator().manual_seed(5))
LABELS = torch.randint(0, 3, (32,), generator=torch.Generator().manual_seed(6))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def one_tensor(*values):
    """A model with one parameter of these values, whose gradient is always zero."""
    model = nn.ParameterDict({"w": nn.Parameter(torch.tensor(values))})

    def step(optimizer):
        model["w"].grad = torch.zeros(len(values))
        optimizer.step()

    return model, torch.optim.SGD(model.parameters(), lr=1.0), step


def test_relaxing_fixes_the_zeros_and_ends_l1():
    model, optimizer, step = one_tensor(-1.0, -0.1, 0.1, 0.9, 1.1)
    settings = {"num_clusters": 3, "tying_strength": 0.0, "l1_strength": 0.01}
    tie = SparseAPT(model, **settings, relax_from=2).attach(optimizer)
    step(optimizer)
    assert not tie.relaxed
    step(optimizer)  # two steps of L1, then relaxed
    assert tie.relaxed
    expected = torch.tensor([-0.98, 0.0, 0.0, 0.88, 1.08])
    assert torch.allclose(model["w"].detach(), expected)
    with torch.no_grad():
        model["w"].add_(0.5)  # what is fixed at zero comes back to it, the others may move
    step(optimizer)
    assert torch.allclose(model["w"].detach(), torch.tensor([-0.48, 0.0, 0.0, 1.38, 1.58]))
    tie.harden()
    assert torch.allclose(model["w"].detach(), torch.tensor([-0.48, 0.0, 0.0, 1.48, 1.48]))


def test_the_density_before_and_after_the_zeros_are_fixed_is_logged(caplog):
    model, optimizer, step = one_tensor(-1.0, -0.1, 0.1, 0.9, 1.1)
    SparseAPT(model, 5, 0.0, 0.0, relax_from=1, refit_every=0).attach(optimizer)
    with caplog.at_level("INFO", "reefknot"):
        step(optimizer)  # evenly: -1, -0.475, 0.05, 0.575, 1.1
    assert caplog.messages == ["zeros are fixed: density 0.6000 before, 0.6000 after"]
    settings = AT_A_SIZE | {"relax_steps": 520, "target_bytes": 200, "refit_every": 50}
    model, optimizer, _ = started(wide, **settings)
    with caplog.at_level("INFO", "reefknot"):
        go(model, optimizer, 20)
    before, after = (float(caplog.messages[-1].split()[i]) for i in (4, 6))
    assert 0 < after < before < 1


def test_a_refit_of_relaxed_weights_leaves_the_zeros_alone():
    model, optimizer, step = one_tensor(-1.0, -0.1, 0.1, 0.9, 1.1)
    tie = SparseAPT(model, 3, 0.0, 0.0, refit_every=1, relax_from=1).attach(optimizer)
    step(optimizer)
    with torch.no_grad():
        model["w"][0] = 0.001  # nearer to zero than to any center, but a survivor
    step(optimizer)
    assert tie.groups[0].centers.tolist() == pytest.approx([0.0, 0.001, 1.0])
    tie.harden()
    assert model["w"].tolist() == pytest.approx([0.001, 0.0, 0.0, 1.0, 1.0])


def test_a_relaxed_run_goes_on_where_it_was_saved():
    models = [net(), net()]
    settings = {"num_clusters": 5, "refit_every": 2, "rate_power": 1.0, "l1_strength": 0.01}
    settings |= {"relax_from": 5, "relax_tying": 0.1, "relax_steps": 8}
    settings |= {"through_from": 11}
    ties, optimizers = [], []
    for model in models:
        optimizers.append(torch.optim.SGD(model.parameters(), lr=0.1))
        ties.append(SparseAPT(model, **settings).attach(optimizers[-1]))

    def go(number, count):
        for _ in range(count):
            optimizers[number].zero_grad()
            cross_entropy(models[number](INPUTS), LABELS).backward()
            optimizers[number].step()

    # Saved while soft at step 3, relaxed at step 7, and with free weights behind at step 13.
    for before in (3, 2, 4):
        go(0, before)
        models[1].load_state_dict(models[0].state_dict())
        ties[1].load_state_dict(ties[0].state_dict())
        go(0, 2)
        go(1, 2)
        for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert torch.equal(one, other)


def test_from_some_step_on_the_model_runs_on_tied_values():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"num_clusters": 5, "refit_every": 2, "relax_from": 3, "through_from": 5}
    tie = SparseAPT(model, **settings, relax_steps=4).attach(optimizer)

    def values():
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    for step in range(1, 11):
        optimizer.zero_grad()
        cross_entropy(model(INPUTS), LABELS).backward()
        optimizer.step()
        assert (len(values().unique()) <= 5) == (step >= 5)
        assert tie.stats()["phase"] == "soft"
    free = torch.cat([*tie._free[0].weights.values()])
    assert len(free.unique()) > 5  # the weights behind are not tied
    before = values()
    tie.harden()
    assert torch.equal(values(), before)  # nothing is lost at hardening
    assert 0 < tie.finish().density < 1


def test_the_pull_of_the_straight_through_phase_is_that_of_the_free_weights():
    model, optimizer, step = one_tensor(-1.0, 0.0, 0.8, 1.2)
    settings = {"num_clusters": 3, "relax_from": 1, "through_from": 1, "refit_every": 0}
    tie = SparseAPT(model, **settings, tying_strength=0.1, l1_strength=0.0).attach(optimizer)
    step(optimizer)  # still from the first centers, -1, 0.1 and 1.2: 0.8 becomes 0.84
    assert tie._free[0].weights["w"].tolist() == pytest.approx([-1.0, 0.84, 1.2])
    assert model["w"].tolist() == pytest.approx([-1.0, 0.0, 1.02, 1.02])
    step(optimizer)  # a tenth of the way from 1.02 ± 0.18
    assert tie._free[0].weights["w"].tolist() == pytest.approx([-1.0, 0.858, 1.182])
    assert model["w"].tolist() == pytest.approx([-1.0, 0.0, 1.02, 1.02])


THROUGH = {
    "num_clusters": 5,
    "tying_strength": 1e-4,
    "l1_strength": 0.01,
    "relax_from": 5,
    "through_from": 11,
    "relax_steps": 8,
    "init": "kmeans",
}


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 8, 2), nn.Conv2d(8, 8, (1, 2)), nn.Flatten(),
        nn.Linear(8, 3),
    )  # fmt: skip


def started(make=net, **settings):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, SparseAPT(model, **THROUGH | settings).attach(optimizer)


def go(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        dtype = next(model.parameters()).dtype
        cross_entropy(model(INPUTS.to(dtype)), LABELS).backward()
        optimizer.step()


def test_a_weight_comes_back_to_a_block_that_was_all_zero():
    weights = torch.zeros(128)  # two blocks, the second with one survivor
    weights[[0, 1, 2, 100]] = torch.tensor([-1.0, 1.0, 1.0, 0.7])
    model = nn.ParameterDict({"w": nn.Parameter(weights)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = {"refit_every": 2, "relax_from": 1, "through_from": 2, "init": "kmeans"}
    tie = SparseAPT(model, 3, 0.0, 0.0, **settings).attach(optimizer)
    for gradient in (0.0, 0.6, -1.0):
        model["w"].grad = torch.zeros(128)
        model["w"].grad[100] = gradient
        optimizer.step()
    assert model["w"][100].item() == pytest.approx(3.1 / 3)  # the mean of 1, 1 and 0.7 - 0.6 + 1
    assert not list(tie.groups[0].untied())


def test_weights_that_are_not_finite_are_named_while_the_model_runs_on_tied_ones():
    model, optimizer, _ = started()
    go(model, optimizer, 13)
    model[0].weight.grad.fill_(float("nan"))
    with pytest.raises(DivergedError, match="not finite"):
        optimizer.step()


@pytest.mark.parametrize("refit_every", [0, 5])
@pytest.mark.parametrize("saved_at", [11, 12, 14])
def test_free_weights_go_on_exactly_where_they_were_saved(refit_every, saved_at):
    model, optimizer, tie = started(refit_every=refit_every)
    go(model, optimizer, saved_at)
    other, other_optimizer, other_tie = started(refit_every=refit_every)
    go(other, other_optimizer, 13)  # which has free weights of its own already
    other.load_state_dict(model.state_dict())
    other_tie.load_state_dict(tie.state_dict())
    for one, two in ((model, optimizer), (other, other_optimizer)):
        go(one, two, 20)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_free_weights_follow_a_model_that_is_laid_out_or_converted_anew():
    plain, plain_optimizer, _ = started(convolutions)
    model, optimizer, tie = started(convolutions)
    go(plain, plain_optimizer, 13)
    go(model, optimizer, 13)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.to(memory_format=torch.channels_last)
    go(plain, plain_optimizer, 1)
    go(model, optimizer, 1)
    for one, two in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)
    assert any(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    # A state that was saved channels last fits a model that is not.
    saved = tie.state_dict()
    fresh, fresh_optimizer, fresh_tie = started(convolutions)
    fresh.load_state_dict(model.state_dict())
    fresh_tie.load_state_dict(saved)
    go(model, optimizer, 1)
    go(fresh, fresh_optimizer, 1)
    for one, two in zip(fresh.parameters(), model.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)
    model.double()
    optimizer.zero_grad()
    go(model, optimizer, 1)
    assert len(torch.cat([p.detach().flatten() for p in model.parameters()]).unique()) <= 5


def test_no_step_is_lost_when_one_of_two_optimizers_steps_more_often():
    model = net()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.SGD(model[2].parameters(), lr=0.1)
    tie = SparseAPT(model, **THROUGH | {"relax_from": 2, "through_from": 3})
    tie.tying_strength = 0.0
    tie.attach(first, second)
    for _ in range(4):
        model.zero_grad()
        cross_entropy(model(INPUTS), LABELS).backward()
        first.step()
        second.step()
    before = tie._free[0].weights["0.weight"].clone()
    for _ in range(10):
        model.zero_grad()
        model[0].weight.grad = torch.full_like(model[0].weight, -1.0)
        first.step()
        assert len(torch.cat([p.detach().flatten() for p in model.parameters()]).unique()) <= 5
    assert torch.allclose(tie._free[0].weights["0.weight"] - before, torch.tensor(1.0), atol=1e-5)


@pytest.mark.filterwarnings("error")
def test_a_network_of_zeros_can_run_on_tied_values():
    model, optimizer, step = one_tensor(0.0, 0.0, 0.0)
    settings = {"refit_every": 1, "relax_from": 1, "through_from": 1, "init": "kmeans"}
    tie = SparseAPT(model, 2, 0.0, 0.0, **settings).attach(optimizer)
    step(optimizer)
    step(optimizer)
    tie.harden()
    assert tie.finish().density == 0


def test_a_state_from_before_the_start_forgets_what_was_learned_since():
    model, optimizer, tie = started(rate_power=1.0, refit_every=2)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    go(model, optimizer, 14)
    tie.load_state_dict(SparseAPT(net(), **THROUGH | {"rate_power": 1.0}).state_dict())
    model.load_state_dict(weights)
    fresh, fresh_optimizer, _ = started(rate_power=1.0, refit_every=2)
    go(model, optimizer, 12)
    go(fresh, fresh_optimizer, 12)
    for one, two in zip(fresh.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, two)


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 120), nn.ReLU(), nn.Linear(120, 3))


AT_A_SIZE = {"l1_strength": 1e-3, "relax_from": 20, "through_from": 40}


def test_zeros_are_chosen_for_a_size_when_relaxing_begins():
    settings = AT_A_SIZE | {"relax_steps": 520, "target_bytes": 200, "refit_every": 50}
    model, optimizer, tie = started(wide, **settings)
    go(model, optimizer, 19)
    last = torch.cat([p.detach().flatten() for p in model.parameters()])
    go(model, optimizer, 1)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert len(encode(tie._tied_state())) == pytest.approx(210, abs=2)  # 5 % to spare
    kept = weights != 0
    assert 20 < int(kept.sum()) < len(weights) / 3
    assert torch.allclose(weights[kept], last[kept], atol=0.2)  # not tied yet
    assert len(weights[kept].unique()) == int(kept.sum())


def test_the_smallest_weights_of_all_groups_are_cut():
    values = torch.arange(1.0, 101.0)
    model = nn.ParameterDict(
        {"a": nn.Parameter(values[::2].clone()), "b": nn.Parameter(-values[1::2])}
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = {"relax_from": 1, "through_from": 1, "relax_steps": 5, "scope": "tensor"}
    settings |= {"target_bytes": 90}
    tie = SparseAPT(model, 3, 0.0, 0.0, **settings).attach(optimizer)
    choose_zeros(tie.groups, 90, tie._file_bytes)
    alive = {g.name: g.assignments[g.name] != g.zero_cluster for g in tie.groups}
    assert torch.equal(alive["a"], model["a"] >= (least := model["a"][alive["a"]].min()))
    assert torch.equal(alive["b"], -model["b"] >= least)
    assert len(encode(tie._tied_state())) <= 90
    choose_zeros(tie.groups, 10, tie._file_bytes)  # nothing is that small
    assert all((g.assignments[g.name] == g.zero_cluster).all() for g in tie.groups)


def test_weights_of_equal_magnitude_are_cut_together():
    values = torch.cat([torch.full((900,), 1e-5), torch.linspace(0.5, 1.0, 100)])
    model = nn.ParameterDict({"w": nn.Parameter(values)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = {"relax_from": 1, "through_from": 1, "relax_steps": 5, "target_bytes": 150}
    tie = SparseAPT(model, 3, 0.0, 0.0, **settings).attach(optimizer)
    choose_zeros(tie.groups, 10**6, tie._file_bytes)
    assert tie.groups[0].counts[tie.groups[0].zero_cluster] == 900


def test_a_size_below_that_of_what_is_not_tied_is_refused_at_once():
    model = wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"relax_from": 1, "through_from": 1, "relax_steps": 5, "exclude": "0.weight"}
    tie = SparseAPT(model, 5, target_bytes=1000, **settings)
    with pytest.raises(ConfigError, match=r"target_bytes is 1,000, but .* still has 2,\d+ bytes"):
        tie.attach(optimizer)
    SparseAPT(model, 5, target_bytes=3200, **settings).attach(optimizer)


def test_a_size_with_room_for_all_lets_twice_as_many_survive():
    torch.manual_seed(0)
    values = torch.cat([0.001 * torch.rand(900), torch.linspace(0.5, 1.0, 40)])
    model = nn.ParameterDict({"w": nn.Parameter(values)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = {"relax_from": 1, "through_from": 1, "relax_steps": 5, "target_bytes": 10**6}
    SparseAPT(model, 4, 0.0, 0.0, init="kmeans", **settings).attach(optimizer)
    model["w"].grad = torch.zeros(940)
    optimizer.step()
    alive = values.abs() >= values.abs().sort(descending=True).values[79]
    assert torch.equal(model["w"] != 0, alive)


def test_a_group_that_a_size_leaves_nothing_of_is_logged(caplog):
    torch.manual_seed(0)
    big, small = torch.randn(2000), 0.01 * torch.randn(200)
    model = nn.ParameterDict({"big": nn.Parameter(big), "small": nn.Parameter(small)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    settings = {"relax_from": 1, "through_from": 1, "relax_steps": 5, "target_bytes": 300}
    tie = SparseAPT(model, 5, scope="tensor", **settings).attach(optimizer)
    choose_zeros(tie.groups, 300, tie._file_bytes)
    assert [record.getMessage() for record in caplog.records] == [
        "all weights of group 'small' are zero now"
    ]


@pytest.mark.parametrize("target", [130, 200, 230])
def test_a_file_ends_near_its_size(target):
    settings = AT_A_SIZE | {"relax_steps": 520, "target_bytes": target, "refit_every": 50}
    model, optimizer, tie = started(wide, **settings)
    go(model, optimizer, 700)
    tie.harden()
    go(model, optimizer, 10)
    assert 0.93 * target < len(encode(tie.finish())) < 1.05 * target


def test_a_price_takes_away_what_is_too_large():
    settings = AT_A_SIZE | {"relax_steps": 520, "target_bytes": 300, "refit_every": 50}
    model, optimizer, tie = started(wide, **settings)
    go(model, optimizer, 60)
    first = tie._file_bytes()
    tie.schedule = tie._price.schedule = replace(tie.schedule, target_bytes=220)
    go(model, optimizer, 640)
    assert first > 270
    assert tie._file_bytes() == pytest.approx(220, rel=0.05)


def test_a_run_that_follows_a_size_goes_on_where_it_was_saved():
    runs = [started(wide, **AT_A_SIZE, relax_steps=400, target_bytes=300) for _ in range(2)]
    (model, optimizer, tie), (other, other_optimizer, other_tie) = runs
    go(model, optimizer, 250)
    other.load_state_dict(model.state_dict())
    other_optimizer.load_state_dict(optimizer.state_dict())
    other_tie.load_state_dict(tie.state_dict())
    go(model, optimizer, 250)
    go(other, other_optimizer, 250)
    assert tie._price.now == other_tie._price.now > 0
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_l1_is_stronger_where_a_weight_costs_more_bits():
    model = nn.ParameterDict({"w": nn.Parameter(torch.zeros(4, 4))})
    with torch.no_grad():
        model["w"][0] = 1.0  # a full row
        model["w"][3, 3] = 1.0  # a lonely weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    tie = SparseAPT(model, 2, 0.0, 0.1, refit_every=1, rate_power=1.0).attach(optimizer)
    for _ in range(2):  # the first step is before any refit, with the same strength for all
        model["w"].grad = torch.zeros(4, 4)
        optimizer.step()
    moved = 0.9 - model["w"].detach()
    assert moved[3, 3] > moved[0, 0] > 0
    assert moved[0, 0] > moved[0, 3]  # whose column has another
    assert tie.hard is False


def test_finish_keeps_so_many_bits_of_each_center():
    model, optimizer, step = one_tensor(-0.7, 0.0, 0.3, 1.3)
    tie = SparseAPT(model, 4, 0.0, 0.0, center_bits=2).attach(optimizer)
    step(optimizer)
    tie.harden()
    state = tie.finish()
    assert state.codebooks[0].values.tolist() == [-0.75, 0.0, 0.3125, 1.25]
    assert model["w"].tolist() == [-0.75, 0.0, 0.3125, 1.25]


@pytest.mark.parametrize(
    ("settings", "beginning"),
    [
        ({"relax_from": -1}, "relax_from must be a whole number"),
        ({"relax_steps": 0.5}, "relax_steps must be a whole number"),
        ({"relax_tying": 0.0, "relax_from": 1}, "relax_tying must be a number above 0"),
        ({"relax_tying": 0.1}, "relax_tying needs relax_from"),
        (
            {"relax_tying": 0.1, "relax_from": 1, "tying_strength": 0.0},
            "relax_tying grows from tying_strength",
        ),
        ({"through_from": 1.5, "relax_from": 1}, "through_from must be a whole number"),
        ({"through_from": 3}, "through_from needs relax_from"),
        ({"through_from": 3, "relax_from": 1, "distance": "l1"}, "through_from needs distance"),
        ({"through_from": 3, "relax_from": 4}, "through_from must not be before relax_from"),
        ({"target_bytes": 9, "relax_steps": 1}, "target_bytes needs through_from"),
        ({"target_bytes": 9, "through_from": 1, "relax_from": 1}, "target_bytes needs relax_steps"),
        ({"center_bits": True}, "center_bits must be a whole number"),
        ({"center_bits": 99}, "center_bits must be a whole number of bits from 0 to 52, found 99"),
        ({"rate_power": -1.0}, "rate_power must be a number of at least 0"),
        ({"rate_power": 1.0, "l1_step": "proximal"}, "rate_power needs l1_step"),
    ],
)
def test_mistakes_in_the_new_settings_are_named(settings, beginning):
    (mistake,) = SparseAPT.mistakes(settings)
    assert mistake.startswith(beginning)
