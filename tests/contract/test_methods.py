"""Every method of the registry keeps the contract."""

import copy
import functools
import io

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from reefknot import ConfigError, TyingError
from reefknot.lab.baselines import METHODS
from reefknot.lab.runs.batches import Batches
from reefknot.lab.runs.config import read_config
from reefknot.lab.runs.training import Plan, train
from reefknot.loading import tensors

INPUTS = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(5))
LABELS = torch.randint(0, 4, (64,), generator=torch.Generator().manual_seed(6))
PLAN = Plan(steps=10, soft_steps=6, lr=0.05, hard_lr=0.02)
BUDGET = Plan(steps=10, soft_steps=None, lr=0.05, hard_lr=0.02)

# Settings that let a method show what it does within ten steps.
SETTINGS = {
    "apt": {"num_clusters": 5, "refit_every": 3},
    "bayesian_compression": {"num_examples": 64, "num_clusters": 5, "warmup_steps": 4},
    "sparse_apt": {"num_clusters": 5, "refit_every": 3, "l1_strength": 1e-3},
    "sparse_apt budget": {"num_clusters": 5, "target_bytes": 1000, "steps": 10},
    "deep_compression": {"num_clusters": 5, "quality": 1.0, "prune_every": 2, "prune_rounds": 2},
    "soft_weight_sharing": {"num_clusters": 5, "num_examples": 64, "tau": 0.1, "num_components": 7},
    "l1_threshold": {"num_clusters": 5, "l1_strength": 1e-3, "threshold": 0.05, "prune_at": 4},
    "l2": {"num_clusters": 5, "l2_strength": 1e-2},
    "magnitude_kmeans": {"num_clusters": 5, "density": 0.5},
    "random_tying": {"num_clusters": 5, "tying_strength": 1e-2},
    "sparse_vd": {"num_examples": 64, "num_clusters": 5, "warmup_steps": 4},
}
AVERAGED = {"dense averaged": {"average_steps": 3}}  # ties nothing


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 4))


def convnet():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4)
    )


def normed():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(144),
        nn.Linear(144, 4),
    )


def parts(name, make, seed=0):
    torch.manual_seed(seed)
    model = make()
    method = METHODS[name.split()[0]](model, **(SETTINGS | AVERAGED).get(name, {}))
    return model, method, torch.optim.SGD(method.parameter_groups(), lr=0.05, momentum=0.9)


def go(model, method, optimizer, stop=None, step=0):
    """Train to the end, or to a number of completed steps."""
    plan = BUDGET if getattr(method, "steps", None) else PLAN
    for progress in train(
        model, method, optimizer, Batches(INPUTS, LABELS, 16, 0), plan, step=step
    ):
        if progress.event == "step" and progress.step == stop:
            return


@functools.cache
def finished(name, make):
    """What a whole run gives."""
    model, method, optimizer = parts(name, make)
    method.attach(optimizer)
    go(model, method, optimizer)
    return method.finish()


@pytest.fixture(params=sorted({*METHODS, *SETTINGS, *AVERAGED}))
def name(request):
    return request.param


@pytest.fixture(params=[mlp, convnet, normed], ids=["mlp", "convnet", "normed"])
def make(request):
    return request.param


@pytest.mark.parametrize("name", METHODS)
def test_it_is_registered_under_its_own_name(name):
    assert METHODS[name].name == name
    assert METHODS[name].__doc__


def test_a_run_ends_in_a_valid_state_with_the_models_own_keys(name, make):
    model, method, optimizer = parts(name, make)
    keys = list(model.state_dict())
    method.attach(optimizer)
    go(model, method, optimizer)
    state = method.finish()
    assert [n for n, _, _ in state.arrays()] == keys
    assert list(model.state_dict()) == keys
    assert all(np.all(np.isfinite(values)) for _, _, values in state.arrays())
    assert 0 <= state.density <= 1


def test_the_models_outputs_are_those_of_its_state(name, make):
    model, method, optimizer = parts(name, make)
    method.attach(optimizer)
    go(model, method, optimizer)
    fresh = make()
    fresh.load_state_dict(tensors(method.finish()))
    model.eval(), fresh.eval()
    assert torch.equal(model(INPUTS), fresh(INPUTS))


def test_training_changes_the_weights(name, make):
    model, method, optimizer = parts(name, make)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    method.attach(optimizer)
    go(model, method, optimizer, stop=2)
    assert not any(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_the_same_seed_gives_the_same_state(name, make):
    first = finished(name, make)
    assert finished.__wrapped__(name, make) == first


STOPS = [(mlp, 2), (convnet, 6), (normed, 8)]
OTHER_STOPS = [(mlp, 6), (mlp, 8), (convnet, 2), (convnet, 8), (normed, 2), (normed, 6)]


@pytest.mark.parametrize(
    ("make", "stop"),
    [*STOPS, *(pytest.param(*other, marks=pytest.mark.slow) for other in OTHER_STOPS)],
)
def test_resuming_equals_not_stopping(name, make, stop):
    uninterrupted = finished(name, make)
    model, method, optimizer = parts(name, make)
    method.attach(optimizer)
    go(model, method, optimizer, stop=stop)
    saved = method.state_dict()
    assert all(isinstance(v, torch.Tensor | int | float) for v in saved.values())
    only_tensors = {k: v.contiguous() for k, v in saved.items() if isinstance(v, torch.Tensor)}
    saved |= load(save(only_tensors))
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    memory = io.BytesIO()
    torch.save(optimizer.state_dict(), memory)
    random = torch.get_rng_state()

    model, method, optimizer = parts(name, make, seed=99)
    model.load_state_dict(weights)
    method.load_state_dict(saved)
    memory.seek(0)
    optimizer.load_state_dict(torch.load(memory, weights_only=True))  # noqa: TID251  our own bytes
    torch.set_rng_state(random)
    method.attach(optimizer)
    go(model, method, optimizer, step=stop)
    assert method.finish() == uninterrupted


@pytest.mark.parametrize("norms", ["separate", "tied", "exact"])
@pytest.mark.parametrize("name", sorted(SETTINGS))  # all but dense, which ties nothing
def test_norm_layers_have_values_of_their_own_or_those_of_all_or_are_kept(name, norms):
    torch.manual_seed(0)
    model = normed()
    settings = SETTINGS[name] | {"norms": norms, "scope": "network", "exclude": ()}
    method = METHODS[name.split()[0]](model, **settings)
    optimizer = torch.optim.SGD(method.parameter_groups(), lr=0.05)
    method.attach(optimizer)
    go(model, method, optimizer)
    state = method.finish()
    assert len(state.codebooks) == (2 if norms == "separate" else 1)
    names = {"1.weight", "1.bias", "4.weight", "4.bias"}
    of_norms = [tensor for tensor in state.tensors if tensor.name in names]
    kinds = {type(tensor).__name__ for tensor in of_norms}
    assert kinds == {"KeptTensor" if norms == "exact" else "TiedTensor"}
    if norms == "separate":
        assert {tensor.codebook for tensor in of_norms} == {1}
        scales = torch.cat([model[1].weight, model[4].weight])
        assert scales.min() > 0.5  # neither pulled to zero nor pruned
    assert len(method.skipped) == (4 if norms == "exact" else 0)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"dense"}))
def test_how_norm_layers_are_tied_is_a_setting_as_any_other(name, tmp_path):
    settings = {k: f"{v}".lower() for k, v in SETTINGS[name].items()}
    lines = [f"{key} = {value}" for key, value in settings.items()]
    text = f'model = "digits-mlp"\ndata = "digits"\nmethod = "{name}"\n[settings]\n'
    config = tmp_path / "run.toml"
    config.write_text(text + "\n".join([*lines, 'norms = "exact"']))
    assert read_config(config).settings["norms"] == "exact"
    config.write_text(text + "\n".join([*lines, 'norms = "loose"']))
    with pytest.raises(
        ConfigError, match="norms must be one of separate, tied, exact, folded, found 'loose'"
    ):
        read_config(config)


REPLACED = {
    "fewer rows": (lambda w: w[:2].clone(), "now has shape"),
    "more rows": (lambda w: torch.cat([w, w]), "now has shape"),
    "a view of fewer rows": (lambda w: w[:2], "now has shape"),
    "rows in turn": (lambda w: torch.cat([w, w])[::2], "fills its memory"),
    "one row for all": (lambda w: w[:1].expand_as(w), "fills its memory"),
    "transposed": (lambda w: w.transpose(0, 1), "now has shape"),
    "float64": (lambda w: w.double(), "convert the whole model"),
}


@pytest.mark.parametrize("name", sorted(SETTINGS))  # all but dense, which ties nothing
@pytest.mark.parametrize("stop", [2, 7], ids=["soft", "hard"])
@pytest.mark.parametrize(("change", "sentence"), REPLACED.values(), ids=REPLACED)
def test_a_parameter_that_is_replaced_in_place_is_refused(name, change, sentence, stop):
    model = mlp()
    method = METHODS[name.split()[0]](model, **SETTINGS[name] | {"scope": "network"})
    optimizer = torch.optim.SGD(method.parameter_groups(), lr=0.05)
    method.attach(optimizer)
    go(model, method, optimizer, stop=stop)
    weight = model[3].weight
    weight.grad = None
    weight.data = change(weight.data)
    for grad in (torch.zeros_like(weight), None):
        weight.grad = grad
        with pytest.raises(TyingError, match=sentence):
            optimizer.step()
    for use in (method.stats, method.state_dict):
        with pytest.raises(TyingError, match=sentence):
            use()


def damages(saved):
    """The state with one entry wrong, in every way that we can think of."""
    yield "unknown", saved | {"something": 1}
    yield "unknown", saved | {7: 1}
    for key, value in saved.items():
        yield f"no {key}", {k: v for k, v in saved.items() if k != key}
        wrong = ["text", None, True, [1], -7, 2.5, 10**400, float("nan"), float("inf")]
        if isinstance(value, torch.Tensor):
            wrong += [0, value[:1], value[None], value.to_sparse(), value.new_zeros(0)]
            types = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64)
            wrong += [value.to(t) for t in types if t != value.dtype]
            if value.is_floating_point():
                wrong += [torch.full_like(value, float("nan")), torch.full_like(value, -torch.inf)]
            elif value.dtype != torch.bool:
                wrong += [torch.full_like(value, 77), torch.full_like(value, 5)]
        else:
            wrong += [torch.tensor(value), 10**30]
        for other in wrong:
            if not (isinstance(value, float) and isinstance(other, int | float)):
                yield f"{key} = {other!r}", saved | {key: other}


@pytest.mark.parametrize("stop", [2, 7])
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(name, stop):
    model, method, optimizer = parts(name, mlp)
    method.attach(optimizer)
    go(model, method, optimizer, stop=stop)
    saved = method.state_dict()
    _, other, _ = parts(name, mlp, seed=1)
    before = other.state_dict()
    for what, damaged in damages(saved):
        with pytest.raises(TyingError):
            other.load_state_dict(damaged)
            pytest.fail(f"accepted: {what}")
        after = other.state_dict()
        assert list(after) == list(before)
        assert all(
            torch.equal(torch.as_tensor(after[k]), torch.as_tensor(before[k])) for k in after
        )
    other.load_state_dict(saved)


def test_finishing_before_hardening_is_refused(name, make):
    _, method, optimizer = parts(name, make)
    method.attach(optimizer)
    with pytest.raises(TyingError, match="harden"):
        method.finish()


def test_stats_have_what_a_progress_bar_shows(name, make):
    model, method, optimizer = parts(name, make)
    method.attach(optimizer)
    go(model, method, optimizer, stop=2)
    stats = method.stats()
    assert stats["phase"] == method.phase.name
    assert stats["step"] == 2
    assert 0 <= stats["density"] <= 1
    assert stats["predicted_bytes"] > 0


def test_after_finishing_a_step_cannot_untie_and_the_optimizer_is_free_when_detached(name, make):
    model, method, optimizer = parts(name, make)
    method.attach(optimizer)
    go(model, method, optimizer)
    method.finish()
    step, before = method.step, copy.deepcopy(model.state_dict())
    if hasattr(method, "tying"):
        with pytest.raises(TyingError, match=r"after finish\(\)"):
            optimizer.step()
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    method.detach()
    optimizer.step()
    assert method.step == step


def test_in_the_hard_phase_tied_weights_share_their_gradient(name, make):
    model, method, _ = parts(name, make)
    optimizer = torch.optim.Adam(method.parameter_groups(), lr=1e-3)
    method.attach(optimizer)
    go(model, method, optimizer, stop=9 if "budget" in name else 7)
    if method.phase.over:
        method.advance()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = {p: p.grad.clone() for p in model.parameters()}
    optimizer.step()
    groups = method.tying.groups if hasattr(method, "tying") else []
    tied = {p for group in groups for p in group.members.values()}
    assert tied or name.startswith("dense")
    for group in groups:
        grads = torch.cat([p.grad.flatten() for p in group.members.values()])
        clusters = torch.cat([group.assignment(n).flatten() for n in group.members])
        assert len(grads.unique()) < len(grads)
        assert all(len(grads[clusters == k].unique()) == 1 for k in clusters.unique())
    for parameter in set(model.parameters()) - tied:
        assert torch.equal(parameter.grad, before[parameter])
