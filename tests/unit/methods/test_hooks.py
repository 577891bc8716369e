"""A method gets its turn around every step that really happens, in any loop."""

import copy
import gc
import weakref
from inspect import signature

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reefknot import SparseAPT, TyingError
from reefknot.lab.baselines import METHODS
from reefknot.phases.hooks import StepHooks

INPUTS = torch.randn(16, 6, generator=torch.Generator().manual_seed(5))
LABELS = torch.randint(0, 3, (16,), generator=torch.Generator().manual_seed(6))
STRENGTHS = {"tying_strength": 0.05, "l1_strength": 0.01}

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def backward(model, scale=1.0):
    loss = cross_entropy(model(INPUTS), LABELS)
    (loss * scale).backward()
    return loss


def with_penalties(model, tie):
    """The naive objective of the paper by autograd: O(N·K), centers and L1 included."""
    weights = torch.cat([p.flatten() for p in model.parameters()])
    centers = torch.from_numpy(tie.tying.groups[0].centers).to(weights.dtype)
    nearest = (weights[:, None] - centers[None, :]).square().min(1).values
    tying = tie.tying_strength / 2 * nearest.sum()
    return cross_entropy(model(INPUTS), LABELS) + tying + tie.l1_strength * weights.abs().sum()


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_soft_step_is_a_step_on_the_naive_objective(make):
    ours, naive = net(), net()
    tie = SparseAPT(ours, num_clusters=4, **STRENGTHS)
    optimizer, reference = make(ours.parameters()), make(naive.parameters())
    tie.attach(optimizer)
    with_penalties(naive, tie).backward()
    reference.step()
    backward(ours)
    optimizer.step()
    torch.testing.assert_close(weights_of(ours), weights_of(naive), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_hard_tying_holds_after_every_step_whatever_the_optimizer_remembers(make):
    model = net()
    optimizer = make(model.parameters())
    tie = SparseAPT(model, num_clusters=4, **STRENGTHS).attach(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    tie.harden()
    zeros = weights_of(model) == 0
    assert zeros.any()
    before = weights_of(model)
    for _ in range(4):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
        assert len(weights_of(model).unique()) <= 4
        assert torch.equal(weights_of(model) == 0, zeros)
    assert not torch.equal(before, weights_of(model))


def test_nothing_is_added_to_the_optimizer():
    model, twin = net(), net()
    optimizer, plain = torch.optim.Adam(model.parameters()), torch.optim.Adam(twin.parameters())
    SparseAPT(model).attach(optimizer)
    for m, o in ((model, optimizer), (twin, plain)):
        backward(m)
        o.step()
    ours, theirs = optimizer.state_dict(), plain.state_dict()
    assert ours["param_groups"] == theirs["param_groups"]
    assert {k: set(v) for k, v in ours["state"].items()} == {
        k: set(v) for k, v in theirs["state"].items()
    }
    copy.deepcopy(ours)


def closure_for(model, optimizer):
    def closure():
        optimizer.zero_grad()
        return backward(model)

    return closure


@pytest.mark.parametrize("keyword", [False, True])
def test_a_closure_gives_the_same_step_although_it_zeroes_the_gradients(keyword):
    plain, closed = net(), net()
    for model in (plain, closed):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        SparseAPT(model, num_clusters=4, **STRENGTHS).attach(optimizer)
        if model is plain:
            backward(model)
            optimizer.step()
        elif keyword:
            loss = optimizer.step(closure=closure_for(model, optimizer))
        else:
            loss = optimizer.step(closure_for(model, optimizer))
    assert torch.equal(weights_of(plain), weights_of(closed))
    assert loss.item() > 0


def test_lbfgs_is_refused():
    model = net()
    with pytest.raises(TyingError, match="LBFGS"):
        SparseAPT(model).attach(torch.optim.LBFGS(model.parameters()))


def test_an_optimizer_that_evaluates_twice_is_found_out():
    class Twice(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            with torch.enable_grad():
                closure()
            return super().step(closure)

    model = net()
    optimizer = Twice(model.parameters(), lr=0.1)
    SparseAPT(model).attach(optimizer)
    with pytest.raises(TyingError, match="more than once"):
        optimizer.step(closure_for(model, optimizer))


def test_an_optimizer_that_calls_its_base_class_is_pulled_once():
    class Derived(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    plain, derived = net(), net()
    for model, kind in ((plain, torch.optim.SGD), (derived, Derived)):
        optimizer = kind(model.parameters(), lr=0.1)
        tie = SparseAPT(model, num_clusters=4, **STRENGTHS).attach(optimizer)
        backward(model)
        optimizer.step()
        assert tie.step == 1
    assert torch.equal(weights_of(plain), weights_of(derived))


def test_a_step_that_raised_does_not_disturb_the_next():
    class Flaky(torch.optim.SGD):
        broken = True

        def step(self, closure=None):
            if self.broken:
                raise OSError
            return super().step(closure)

    model = net()
    optimizer = Flaky(model.parameters(), lr=0.1)
    tie = SparseAPT(model, num_clusters=4, **STRENGTHS).attach(optimizer)
    backward(model)
    with pytest.raises(OSError):
        optimizer.step()
    optimizer.broken = False
    optimizer.step()
    assert tie.step == 1


def test_a_step_that_raised_keeps_nothing_of_its_caller_alive():
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise OSError

    def loop():
        activations = torch.zeros(1)  # stands for gigabytes of them
        dead.append(weakref.ref(activations))
        with pytest.raises(OSError):
            optimizer.step()

    model, dead = net(), []
    optimizer = Broken(model.parameters(), lr=0.1)
    tie = SparseAPT(model, num_clusters=4).attach(optimizer)
    loop()
    gc.collect()
    assert dead[0]() is None
    assert tie.step == 0


def test_an_error_that_is_kept_does_not_hide_the_next_step():
    class Flaky(torch.optim.SGD):
        broken = True

        def step(self, closure=None):
            if self.broken:
                raise OSError
            return super().step(closure)

    model = net()
    optimizer = Flaky(model.parameters(), lr=0.1)
    tie = SparseAPT(model, num_clusters=4, **STRENGTHS).attach(optimizer)
    with pytest.raises(OSError) as kept:  # with its traceback, and so with the frames
        optimizer.step()
    optimizer.broken = False
    backward(model)
    optimizer.step()
    assert kept.tb is not None
    assert tie.step == 1


def test_a_deep_copy_that_would_train_without_tying_is_refused():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    tie = SparseAPT(model, num_clusters=4, **STRENGTHS).attach(optimizer)
    with pytest.raises(TyingError, match="cannot be copied"):
        copy.deepcopy(optimizer)
    with pytest.raises(TyingError, match="cannot be copied"):
        copy.deepcopy({"model": model, "optimizer": optimizer})
    copy.deepcopy(model)
    copy.deepcopy(optimizer.state_dict())
    tie.detach()
    assert "__deepcopy__" not in vars(optimizer)
    other, twin, copied = copy.deepcopy((model, optimizer, tie))
    copied.attach(twin)
    tie.attach(optimizer)
    for each, moved_by in ((model, optimizer), (other, twin)):
        backward(each)
        moved_by.step()
    assert (tie.step, copied.step) == (1, 1)
    assert torch.equal(weights_of(model), weights_of(other))


@pytest.mark.parametrize(
    ("whole", "hard"),
    [
        pytest.param(False, False, id="step, soft", marks=pytest.mark.slow),
        pytest.param(False, True, id="step, hard"),
        pytest.param(True, False, id="whole loop, soft"),
        pytest.param(True, True, id="whole loop, hard", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, about its own profiler
def test_a_compiled_step_is_the_same_step(hard, whole):
    results = []
    for compiled in (False, True):
        torch._dynamo.reset()
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        tie = SparseAPT(model, num_clusters=4, refit_every=2, **STRENGTHS).attach(optimizer)

        def everything(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            backward(model)
            optimizer.step()

        def only_the_step(optimizer=optimizer):
            optimizer.step()

        step = everything if whole else only_the_step
        if compiled:
            step = torch.compile(step, backend="eager")
        if hard:
            tie.harden()
        for _ in range(3):
            optimizer.zero_grad()
            backward(model)
            step()
        assert tie.step == 3
        results.append(weights_of(model))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_an_expanded_gradient_is_as_good_as_any(name, kind):
    needed = {"num_examples": 16} if "num_examples" in signature(METHODS[name]).parameters else {}
    results = []
    for expanded in (False, True):
        model = net()
        method = METHODS[name](model, **needed)
        optimizer = kind(method.parameter_groups(), lr=0.01)
        method.attach(optimizer)
        for hard in (False, True):
            if hard:
                method.harden()
            for parameter in method.parameter_groups()[0]["params"]:
                grad = torch.full((1,) * parameter.dim(), 0.1).expand_as(parameter)
                parameter.grad = grad if expanded else grad.contiguous()
            torch.manual_seed(0)
            optimizer.step()
        results.append(weights_of(model))
    assert torch.equal(*results)


def test_accumulated_and_clipped_gradients_get_the_pull_once_and_unclipped():
    ours, naive = net(), net()
    tie = SparseAPT(ours, num_clusters=4, **STRENGTHS)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    tie.attach(optimizer)
    centers, assignment = tie.tying.groups[0].centers, tie.tying.groups[0].clusters()
    for model in (ours, naive):
        for _ in range(3):
            backward(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    w = weights_of(naive)
    grad = torch.cat([p.grad.flatten() for p in naive.parameters()])
    own = torch.from_numpy(centers[assignment]).float()
    expected = w - 0.1 * (grad + 0.05 * (w - own) + 0.01 * w.sign())
    torch.testing.assert_close(weights_of(ours), expected)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale_first", [False, True])
def test_a_scaled_step_equals_an_unscaled_one(fused, unscale_first):
    plain, scaled = net(), net()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for model in (plain, scaled):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        SparseAPT(model, num_clusters=4, **STRENGTHS).attach(optimizer)
        if model is plain:
            backward(model)
            optimizer.step()
        else:
            scaler.scale(cross_entropy(model(INPUTS), LABELS)).backward()
            if unscale_first:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    torch.testing.assert_close(weights_of(plain), weights_of(scaled))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_a_step_that_amp_skips_does_nothing(fused, hard):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    tie = SparseAPT(model, num_clusters=4, refit_every=1, **STRENGTHS).attach(optimizer)
    if hard:
        tie.harden()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(cross_entropy(model(INPUTS), LABELS)).backward()
    model[0].weight.grad[0, 0] = float("inf")
    before, centers, step = weights_of(model), tie.tying.groups[0].centers.copy(), tie.step
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(weights_of(model), before)
    assert (tie.tying.groups[0].centers == centers).all()
    assert tie.step == step


def test_a_parameter_without_gradient_is_not_pulled_but_counts_in_the_centers():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tie = SparseAPT(model, num_clusters=4, tying_strength=0.5, l1_strength=0.1)
    tie.attach(optimizer)
    model[0].weight.requires_grad_(False)
    before = model[0].weight.detach().clone()
    backward(model)
    optimizer.step()
    assert torch.equal(model[0].weight, before)
    group = tie.tying.groups[0]
    weights, assignment = group.members.weights(), group.clusters()
    for k in range(4):
        inside = weights[assignment == k]
        if len(inside):
            assert group.centers[k] == pytest.approx(inside.mean(dtype=float), abs=1e-6)


def test_the_proximal_step_moves_by_rate_times_strength_and_reaches_zero():
    ours, naive = net(), net()
    optimizer = torch.optim.SGD(
        [
            {"params": ours[0].parameters(), "lr": 0.5},
            {"params": ours[2].parameters(), "lr": 0.1},
        ]
    )
    SparseAPT(ours, tying_strength=0.0, l1_strength=0.4, l1_step="proximal").attach(optimizer)
    backward(ours)
    backward(naive)
    optimizer.step()
    for layer, rate in ((0, 0.5), (2, 0.1)):
        w = naive[layer].weight
        moved = (w - rate * w.grad).detach()
        expected = moved.sign() * (moved.abs() - rate * 0.4).clamp(min=0)
        torch.testing.assert_close(ours[layer].weight.detach(), expected)
    assert (ours[0].weight == 0).any()


def test_with_two_optimizers_centers_move_once_a_round():
    model = net()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.Adam(model[2].parameters(), lr=0.01)
    tie = SparseAPT(model, num_clusters=4, **STRENGTHS).attach(first, second)
    backward(model)
    centers = tie.tying.groups[0].centers.copy()
    first.step()
    assert (tie.tying.groups[0].centers == centers).all()
    assert tie.step == 0
    second.step()
    assert (tie.tying.groups[0].centers != centers).any()
    assert tie.step == 1


def test_an_optimizer_that_steps_more_often_begins_a_new_round():
    calls = []
    a, b = (torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1) for _ in range(2))
    StepHooks((a, b), lambda s: None, lambda s: calls.append(s.ends_round))
    for optimizer in (a, a, b):
        optimizer.step()
    assert calls == [False, False, True]


def test_two_optimizers_keep_hard_tied_weights_tied_after_each_step():
    model = net()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.Adam(model[2].parameters(), lr=0.01)
    tie = SparseAPT(model, num_clusters=4, **STRENGTHS).attach(first, second)
    tie.harden()
    backward(model)
    for optimizer in (first, second):
        optimizer.step()
        assert len(weights_of(model).unique()) <= 4


def test_sparse_gradients_are_refused_by_name():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SparseAPT(model, num_clusters=3).attach(optimizer)
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(TyingError, match=r"'0.weight' is sparse"):
        optimizer.step()


def test_a_compiled_model_trains_under_its_original_names():
    model = net()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    tie = SparseAPT(compiled, num_clusters=4, **STRENGTHS).attach(optimizer)
    backward(compiled)
    optimizer.step()
    tie.harden()
    assert [t.name for t in tie.finish().tensors] == list(model.state_dict())


def test_detaching_ends_the_pull():
    model, twin = net(), net()
    optimizer, plain = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    tie = SparseAPT(model, tying_strength=1.0, l1_strength=1.0).attach(optimizer)
    tie.detach()
    for m, o in ((model, optimizer), (twin, plain)):
        backward(m)
        o.step()
    assert torch.equal(weights_of(model), weights_of(twin))
    tie.attach(optimizer)


def test_attaching_twice_or_to_something_else_is_refused():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tie = SparseAPT(model).attach(optimizer)
    with pytest.raises(TyingError, match="attached already"):
        tie.attach(optimizer)
    with pytest.raises(TyingError, match="another method is attached to the SGD already"):
        SparseAPT(model).attach(optimizer)
    tie.detach()
    SparseAPT(model).attach(optimizer)
    with pytest.raises(TyingError, match="optimizers, found Sequential"):
        SparseAPT(net()).attach(model)
    with pytest.raises(TyingError, match="needs the optimizer"):
        SparseAPT(net()).attach()


def test_the_same_optimizer_twice_is_refused():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TyingError, match="twice"):
        SparseAPT(model).attach(optimizer, optimizer)
