"""Packing with inputs: what is watched, what errors do, and `reefknot.pack` of whole models."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import reefknot
from reefknot.batchnorm import Statistics, make_canonical, renew
from reefknot.errors import ConfigError, UserCodeError
from reefknot.packing.calibration import Moments, patches, sampled
from reefknot.packing.clustering import Settings
from reefknot.packing.feedback import compensating
from reefknot.packing.inputs import pink_noise
from reefknot.packing.network import Packer
from reefknot.packing.outputs import Sensitivity, change_of_outputs
from reefknot.packing.suspended import Network, call


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# -- what is watched ----------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_patches_times_weights_are_the_convolution(dims, groups):
    x = torch.randn(2, 4, *[7] * dims, generator=seeded())
    weight = torch.randn(6, 4 // groups, *[3] * dims, generator=seeded(1))
    options = {"stride": 2, "padding": 1, "dilation": 2}
    expected = getattr(F, f"conv{dims}d")(x, weight, groups=groups, **options)
    view = patches(x, [3] * dims, *([n] * dims for n in options.values()), groups)
    rows = sampled(view, 10**6, seeded())  # (n, groups, in)
    parts = weight.flatten(1).unflatten(0, (groups, -1))
    found = torch.einsum("ngi,goi->ngo", rows, parts).flatten(1)
    assert torch.allclose(found, expected.movedim(1, -1).flatten(0, -2), atol=1e-4)
    assert len(sampled(view, 5, seeded())) == 5


class Reader(nn.Module):
    """Tokens, a recurrent layer, attention: what is not a plain chain."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 32)
        self.lstm = nn.LSTM(32, 16, batch_first=True, bidirectional=True)
        self.attention = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.out = nn.Linear(32, 10)

    def forward(self, tokens, scale=1.0):
        return self.out(self.attention(self.lstm(self.table(tokens))[0]).mean(1)) * scale


def reader():
    torch.manual_seed(0)
    return Reader().eval(), [torch.randint(100, (8, 6), generator=seeded(n)) for n in range(4)]


def images_net():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, groups=2, stride=2), nn.ReLU(), nn.BatchNorm2d(32),
        nn.Flatten(), nn.Linear(32 * 9, 10),
    )  # fmt: skip
    batches = [pink_noise((16, 3, 8, 8), seeded(n)) for n in range(6)]
    for batch in batches:
        model(batch)  # so that statistics are not those of a new layer
    return model.eval(), batches


def test_every_product_with_a_weight_is_a_site_in_order():
    model, batches = reader()
    names = [site.name for site in Network(model, batches, suspends=False).sites]
    assert names[:2] == ["lstm.weight_ih_l0", "lstm.weight_hh_l0"]
    assert names[-5:] == [
        "attention.self_attn.in_proj_weight",
        "attention.self_attn.out_proj.weight",
        "attention.linear1.weight",
        "attention.linear2.weight",
        "out.weight",
    ]
    assert len(names) == 4 + 5


def test_a_norm_knows_whether_it_gets_products_as_they_are():
    model, batches = images_net()
    sites = Network(model, batches, suspends=False).sites
    found = {site.name: site.after for site in sites if site.norm}
    assert found == {"1": "0.weight", "5": ""}


@pytest.mark.parametrize("make", [images_net, reader])
def test_inputs_of_a_site_are_those_of_its_module(make):
    model, batches = make()
    network, heard = Network(model, batches, suspends=False), []
    sites = network.sites
    last = sites[-1]
    module = model.get_submodule(last.name.rpartition(".")[0])
    handle = module.register_forward_pre_hook(lambda _, given: heard.append(given[0]))
    for batch in batches:
        model(batch)
    handle.remove()
    found = torch.cat(list(network.inputs(last, 10**6)))[:, 0]
    assert torch.allclose(found, torch.cat(heard).detach(), atol=1e-5)


def test_moments_are_those_of_all_inputs():
    x, y = torch.randn(2, 50, 2, 5, generator=seeded())
    weights = torch.randn(2, 3, 5, generator=seeded(1))
    moments = Moments(weights)
    for part, twin in zip(x.split(20), y.split(20), strict=True):
        moments.add(part, twin)
    moments.finish()
    assert torch.allclose(moments.second[1], x[:, 1].T @ x[:, 1] / 50, atol=1e-4)
    assert torch.allclose(moments.cross[0], weights[0] @ y[:, 0].T @ x[:, 0] / 50, atol=1e-4)
    assert torch.allclose(moments.first, x.mean(0), atol=1e-4)
    assert torch.allclose(moments.original_first, y.mean(0), atol=1e-4)


def test_few_inputs_need_more_damping():
    found = []
    for count in (20, 200, 20_000):
        x = torch.randn(count, 1, 64, generator=seeded()) * torch.linspace(0.2, 2, 64)
        moments = Moments(torch.ones(1, 1, 64))
        moments.add(x, x)
        moments.finish()
        found.append(float(moments.damping()))
    assert found[0] > 1 > found[1] > 0.1 > found[2]


def test_a_layer_undoes_errors_in_front_of_it():
    x, weights = (
        torch.randn(500, 1, 8, generator=seeded()),
        torch.randn(1, 4, 8, generator=seeded(1)),
    )
    y = 0.5 * x  # what a packed network made of it
    moments = Moments(weights)
    moments.add(y, x)
    moments.finish()
    aims = compensating(weights, moments.second, moments.cross, torch.zeros(1))
    # Twice as large would undo all of it; the ridge leaves 1 / (1 + 0.2) of the way there.
    assert torch.allclose(aims, weights * (1 + 1 / 1.2), rtol=0.1, atol=0.05)
    outputs = torch.bmm(weights, moments.second)
    same = compensating(weights, moments.second, outputs, torch.zeros(1))
    assert torch.allclose(same, weights)


# -- norms ----------------------------------------------------------------------------------


def test_statistics_move_by_what_packing_changed():
    norm = nn.BatchNorm1d(2)
    norm.running_mean.copy_(torch.tensor([1.0, 2.0]))
    norm.running_var.copy_(torch.tensor([4.0, 9.0]))
    x = torch.randn(5000, 2, generator=seeded())
    renew(norm, Statistics.of([x]), Statistics.of([3 * x + 1]))
    assert torch.allclose(norm.running_mean, torch.tensor([2.0, 3.0]), atol=0.1)
    assert torch.allclose(norm.running_var, torch.tensor([36.0, 81.0]), rtol=0.01)


def test_the_canonical_form_is_the_same_function_in_two_numbers_a_channel():
    model, batches = images_net()
    norm, bias = model[1], model[0].bias
    changed = copy.deepcopy(model)
    make_canonical(changed[1], changed[0].bias)
    assert bias.abs().sum() > 0 and changed[0].bias.abs().sum() == 0
    assert torch.equal(changed[1].running_mean, torch.zeros(16))
    assert torch.allclose(changed[1].running_var + norm.eps, torch.ones(16))
    with torch.no_grad():
        before, after = model[:2](batches[0]), changed[:2](batches[0])
    assert float((after - before).norm() / before.norm()) < 2**-8
    bits = changed[1].weight.detach().numpy().view("<u4")
    assert not (bits & 0xFFFF).any()  # at most 8 significant bits


def test_a_network_for_inference_gets_statistics_to_train_with_and_computes_the_same():
    model, batches = images_net()
    make_canonical(model[1], model[0].bias)
    make_canonical(model[5], None)
    before = [model(batch).detach() for batch in batches]
    model.train()
    reefknot.update_batchnorm(model, batches)
    assert all(module.training for module in model.modules())
    inputs = torch.cat([model[0](batch) for batch in batches]).detach()
    assert torch.allclose(model[1].running_mean, inputs.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(model[1].running_var, inputs.var((0, 2, 3), correction=0), rtol=1e-4)
    for batch, expected in zip(batches, before, strict=True):
        assert torch.allclose(model.eval()(batch), expected, atol=1e-5)
    whole = torch.cat(batches)
    assert torch.allclose(model.eval()(whole), model.train()(whole), atol=1e-4)


# -- what an error does to the outputs -----------------------------------------------------------


def test_sensitivity_is_the_change_of_the_outputs_and_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 40), nn.Linear(40, 30, bias=False)).eval()
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(400, 50, generator=seeded())
    measure = Sensitivity(model, [(part,) for part in x.split(100)])
    # All outputs are 3/4 of what they were: they lose a sixteenth of their square.
    assert measure.of({"1.weight": 0.75 * model[1].weight}) == pytest.approx(1 / 16, rel=1e-5)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_what_batchnorm_undoes_does_no_harm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6, eps=1e-12), nn.Linear(6, 3)).eval()
    before = copy.deepcopy(model.state_dict())
    measure = Sensitivity(model, [torch.randn(64, 8, generator=seeded())])
    assert measure.of({"0.weight": 3 * model[0].weight, "0.bias": model[0].bias + 1}) < 1e-10
    assert measure.of({"2.weight": 0 * model[2].weight}) > 0.1
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not model[1].training
    assert model[1].track_running_stats


def test_a_layer_that_the_outputs_hardly_depend_on_gets_fewer_bits():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), Beside(0.05), nn.Linear(64, 64)).eval()
    batches = [(torch.randn(100, 64, generator=seeded(n)),) for n in range(4)]
    packer = Packer(model, batches, Settings())
    _, plain = packer.at(1e-6)
    packer.measure_sensitivity(1e-6)
    _, changes = packer.at(1e-6)
    assert abs(plain["1.inner.weight"].bits - plain["2.weight"].bits) < 1
    assert changes["1.inner.weight"].bits < changes["2.weight"].bits - 3


def test_a_weight_that_the_outputs_do_not_depend_on_is_packed_too():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), Beside(0.0), nn.Linear(64, 64)).eval()
    batches = [(torch.randn(100, 64, generator=seeded(n)),) for n in range(4)]
    packer = Packer(model, batches, Settings())
    packer.measure_sensitivity(1e-6)
    _, changes = packer.at(1e-6)
    assert changes["1.inner.weight"].bits < 0.1
    assert changes["2.weight"].bits > 2


def test_batches_of_one_are_enough_for_a_network_with_batchnorm(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64)).eval()
    batches = [torch.randn(1, 64, generator=seeded(n)) for n in range(40)]
    packed = reefknot.pack(model, tmp_path / "m.reef", bits=8, inputs=batches)
    assert packed.outputs.relative_error < 0.2


def test_an_embedding_is_weighed_by_what_its_rows_do():
    torch.manual_seed(0)
    loud, quiet = nn.Embedding(40, 16), nn.Embedding(40, 16)

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loud, self.quiet = loud, quiet

        def forward(self, ids):
            return self.loud(ids) + 0.01 * self.quiet(ids)

    batches = [(torch.randint(40, (64,), generator=seeded(n)),) for n in range(4)]
    packer = Packer(Sum().eval(), batches, Settings(min_size=256))
    packer.measure_sensitivity(1e-6)
    _, changes = packer.at(1e-6)
    assert changes["quiet.weight"].bits < changes["loud.weight"].bits - 5


# -- the whole -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "for_inference"), [(images_net, False), (images_net, True), (reader, False)]
)
def test_a_model_with_inputs_fits_its_size_and_is_not_changed(tmp_path, make, for_inference):
    model, batches = make()
    before = copy.deepcopy(model.state_dict())
    size = sum(p.numel() for p in model.parameters()) * 2 // 8 + 3000
    path = tmp_path / "m.reef"
    packed = reefknot.pack(model, path, size=size, inputs=batches, for_inference=for_inference)
    assert 0.95 * size < packed.file_bytes == path.stat().st_size <= size
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    again = copy.deepcopy(model)
    again.load_state_dict(reefknot.load(path))
    change = change_of_outputs(model, again, batches[-1:])
    assert packed.outputs.num_inputs == len(batches[-1])
    assert change.relative_error == pytest.approx(packed.outputs.relative_error, rel=1e-4)
    assert [c.name for c in packed.changes] == list(before)


def test_inputs_are_worth_more_than_none(tmp_path):
    model, batches = images_net()
    results = []
    for inputs in (None, batches):
        reefknot.pack(model, tmp_path / "m.reef", size=4_500, inputs=inputs)
        again = copy.deepcopy(model)
        again.load_state_dict(reefknot.load(tmp_path / "m.reef"))
        results.append(change_of_outputs(model, again, batches[-1:]).relative_error)
    assert results[1] < 0.9 * results[0]


def test_with_inputs_it_is_the_outputs_that_are_warned_of(tmp_path):
    model, batches = images_net()
    poor = reefknot.pack(model, tmp_path / "m.reef", size=1_900, inputs=batches)
    assert poor.outputs.relative_error > 0.3
    assert [w for w in poor.warnings if "outputs are off by" in w] == poor.warnings != []
    good = reefknot.pack(model, tmp_path / "m.reef", size=8_000, inputs=batches)
    assert good.outputs.relative_error < 0.1 and good.warnings == []


def test_an_error_of_the_outputs_is_a_budget(tmp_path):
    model, batches = images_net()
    packed = reefknot.pack(model, tmp_path / "m.reef", error=0.1, inputs=batches)
    assert 0.05 < packed.outputs.relative_error <= 0.1


def test_batches_may_be_tuples_with_labels_or_dicts(tmp_path):
    model, batches = reader()
    plain = reefknot.pack(model, tmp_path / "a.reef", bits=4, inputs=batches)
    labelled = [(batch, torch.zeros(len(batch))) for batch in batches]
    named = [{"tokens": batch, "labels": torch.zeros(len(batch))} for batch in batches]
    for inputs in (labelled, named):
        assert reefknot.pack(model, tmp_path / "b.reef", bits=4, inputs=inputs) == plain
        assert (tmp_path / "b.reef").read_bytes() == (tmp_path / "a.reef").read_bytes()


def test_an_example_input_alone_is_enough(tmp_path):
    model, batches = images_net()
    packed = reefknot.pack(model, tmp_path / "m.reef", bits=6, example_input=batches[0][:1])
    assert packed.outputs.relative_error < 0.2 and "random inputs" in str(packed.outputs)
    tokens, examples = reader()
    packed = reefknot.pack(tokens, tmp_path / "t.reef", bits=6, example_input=examples[0][:1])
    assert packed.outputs.relative_error < 0.2


def test_a_model_in_half_precision_keeps_its_types(tmp_path):
    model, batches = images_net()
    half = copy.deepcopy(model).half()
    packed = reefknot.pack(half, tmp_path / "m.reef", bits=6, inputs=batches)
    loaded = reefknot.load(tmp_path / "m.reef")
    assert loaded["3.weight"].dtype == torch.float16
    assert packed.outputs.relative_error < 0.3


def test_small_tensors_stay():
    model, batches = images_net()
    packer = Packer(model, batches, Settings())
    packed, changes = packer.at(1e-6)
    assert set(changes) == {"3.weight", "7.weight"}
    assert torch.equal(packed[0].weight, model[0].weight)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"inputs": []}, "no batch"),
        ({"inputs": {"x": 1}}, "put a single batch in a list"),
        ({"for_inference": True}, "needs a budget"),
        ({"size": 10, "bits": 2.0}, "one of size"),
        ({"keep": ["nothing*"]}, "matches no tensor"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, options, sentence):
    options = (
        options if "for_inference" in options or "size" in options else {"bits": 2.0} | options
    )
    with pytest.raises(ConfigError, match=sentence):
        reefknot.pack(images_net()[0], tmp_path / "m.reef", **options)
    assert not list(tmp_path.iterdir())


def test_a_model_that_fails_on_its_inputs_is_named_as_the_cause(tmp_path):
    with pytest.raises(UserCodeError, match="failed on the inputs"):
        reefknot.pack(images_net()[0], tmp_path / "m.reef", bits=2, inputs=[torch.zeros(2, 2)])


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x,), lambda x: {"x": x}])
def test_a_model_that_changes_its_inputs_in_place_gets_the_same_ones_each_time(wrap):
    class Doubling(nn.Module):
        def forward(self, x):
            return x.mul_(2)

    x = torch.randn(4, 3, generator=seeded())
    before = x.clone()
    for _ in range(2):
        assert torch.equal(call(Doubling(), wrap(x)), 2 * before)
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("last", "found"),
    [
        (lambda y: y.argmax(-1), "torch.int64"),
        (lambda y: (y > 0, None), "NoneType, torch.bool"),
        (lambda y: torch.complex(y, y), "torch.complex64"),
        (lambda y: float(y.sum()), "float"),
        (lambda y: {}, "nothing"),
    ],
)
@pytest.mark.parametrize("given", ["inputs", "example_input"])
def test_a_model_that_returns_no_floats_is_refused_in_one_sentence(tmp_path, last, found, given):
    class Decided(nn.Linear):
        def forward(self, x):
            return last(super().forward(x))

    x = torch.randn(32, 20, generator=seeded())
    options = {"bits": 4, given: [x] if given == "inputs" else x}
    with pytest.raises(UserCodeError, match=f"returns {found}: let it return .* such as logits"):
        reefknot.pack(Decided(20, 30), tmp_path / "m.reef", **options)
    assert not list(tmp_path.iterdir())


class Scaled(nn.Linear):
    """A layer with a factor: one for all inputs, or one for each feature."""

    def forward(self, x, factor):
        return super().forward(x * factor)


class Bags(nn.Module):
    """Sums of rows of a table: which ones, and where each sum begins."""

    def __init__(self):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(50, 20), nn.Linear(20, 30)

    def forward(self, ids, offsets):
        return self.out(self.bag(ids, offsets))


X = torch.randn(64, 20, generator=seeded())


@pytest.mark.parametrize(
    ("kind", "batch", "measured"),
    [
        (Scaled, (X, torch.rand(20, generator=seeded(1))), 64),
        (Scaled, (X, torch.tensor(2.0)), 4),  # one in sixteen is held back
        (Bags, (torch.arange(300) % 50, torch.arange(0, 300, 5)), 60),
    ],
)
def test_a_single_batch_is_cut_only_where_all_its_tensors_are_equally_long(
    tmp_path, kind, batch, measured
):
    torch.manual_seed(0)
    model = Bags() if kind is Bags else kind(20, 30)
    packed = reefknot.pack(model, tmp_path / "m.reef", bits=8, inputs=[batch])
    assert packed.outputs.num_inputs == measured


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        (nn.Linear, [X[:1]]),
        (nn.Linear, [X] * 8),
        (nn.Linear, [X[:40], X[20:], X.flip(0)]),
        (Scaled, [(X, torch.ones(1, 20))]),
        (Scaled, [(X, torch.tensor(2.0)), (X, torch.tensor(2.0))]),
    ],
)
def test_outputs_on_inputs_that_were_fitted_are_not_said_to_be_held_back(tmp_path, kind, inputs):
    torch.manual_seed(0)
    packed = reefknot.pack(kind(20, 30), tmp_path / "m.reef", bits=8, inputs=inputs)
    assert packed.outputs.seen and "fitted inputs" in str(packed.outputs)
    (sentence,) = packed.warnings
    assert "packed for" in sentence and "some hundred different inputs" in sentence


@pytest.mark.parametrize(
    ("kind", "inputs", "warned"),
    [
        (nn.Linear, [X[:32], X[32:]], False),
        (nn.Linear, [X], False),
        (nn.Linear, X[:9].split(1), False),
        (nn.Linear, X[:8].split(1), True),
        (Scaled, [(X, torch.tensor(2.0)), (X, torch.tensor(3.0))], False),
        (Scaled, [(X, torch.ones(1, 20)), (X, torch.full((1, 20), 2.0))], False),
    ],
)
def test_few_inputs_are_warned_of_where_some_are_held_back(tmp_path, kind, inputs, warned):
    torch.manual_seed(0)
    packed = reefknot.pack(kind(20, 30), tmp_path / "m.reef", bits=8, inputs=inputs)
    assert packed.outputs.few == warned and "held-back inputs" in str(packed.outputs)
    assert ["may be worse than none" in sentence for sentence in packed.warnings] == [True] * warned


def test_a_state_dict_has_no_inputs(tmp_path):
    model, batches = images_net()
    with pytest.raises(ConfigError, match="need the model"):
        reefknot.pack(model.state_dict(), tmp_path / "m.reef", bits=2, inputs=batches)


class Turned(nn.Module):
    """A layer whose weight is (in, out), as in GPT-2."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(0.2 * torch.randn(48, 32)),
            nn.Parameter(torch.zeros(32)),
        )

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight)


def test_a_weight_that_is_stored_turned_is_packed_as_if_it_were_not():
    torch.manual_seed(0)
    turned, plain = Turned(), nn.Linear(48, 32)
    with torch.no_grad():
        plain.weight.copy_(turned.weight.T)
        plain.bias.copy_(turned.bias)
    mixed = torch.randn(400, 12, generator=seeded(1)) @ torch.randn(12, 48, generator=seeded(2))
    batches = [(mixed + 0.3 * torch.randn(400, 48, generator=seeded(3)),)]
    results = [Packer(m, batches, Settings()).at(1e-5)[0] for m in (turned, plain)]
    assert torch.equal(results[0].weight.T, results[1].weight)
    assert torch.allclose(results[0].bias, results[1].bias, atol=1e-5)
    assert not torch.equal(results[0].weight, turned.weight)


class Autoencoder(nn.Module):
    """The decoder is the encoder transposed."""

    def __init__(self, width):
        super().__init__()
        self.code, self.inner = nn.Linear(20, width), nn.Linear(width, width)

    def forward(self, x):
        return F.linear(self.inner(self.code(x)).relu(), self.code.weight.t())


@pytest.mark.parametrize("width", [40, 20])
def test_a_weight_that_is_also_used_transposed_is_packed_by_its_own_values(width):
    torch.manual_seed(0)
    # Inputs that vary in one direction alone would let errors in all others grow.
    line = torch.randn(64, 1, generator=seeded()) @ torch.randn(1, 20, generator=seeded(1))
    model = Autoencoder(width).eval()
    packed, changes = Packer(model, [(line,), (line + 1,)], Settings(min_size=16)).at(1e-6)
    assert list(changes) == ["code.weight", "inner.weight"]
    assert changes["code.weight"].done.endswith("without its inputs")
    assert "inputs" not in changes["inner.weight"].done
    assert 0 < changes["code.weight"].relative_error < 0.1
    change = change_of_outputs(model, packed, [line])
    assert change.relative_error < 0.1


class Beside(nn.Module):
    """A layer whose outputs are a small part of what goes on."""

    def __init__(self, share):
        super().__init__()
        self.inner, self.share = nn.Linear(64, 64), share

    def forward(self, x):
        return x + self.share * self.inner(x)


class Steps(nn.Module):
    """A recurrent cell that begins with a state of zeros, as most do."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(16, 16)

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0]


def test_weights_of_a_recurrent_cell_meet_the_states_of_all_steps():
    torch.manual_seed(0)
    model, batch = Steps().eval(), torch.randn(64, 6, 16, generator=seeded())
    network = Network(model, [(batch,)], suspends=False)
    sites = network.sites
    site = next(site for site in sites if site.name == "cell.weight_hh")
    (inputs,) = network.inputs(site, 10_000)
    assert len(inputs) == 64 * 6
    assert (inputs.flatten(1) != 0).any(1).sum() == 64 * 5  # all but the first


def test_a_weight_that_meets_only_zeros_is_packed_by_its_own_values():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).eval()
    packer = Packer(model, [(torch.zeros(64, 32),)], Settings(min_size=100))
    _, changes = packer.at(1e-4)
    assert changes["0.weight"].bits < 5
