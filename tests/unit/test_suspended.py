"""Walking: a network that is run once, and waits at each weight."""

import contextvars
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import reefknot
from reefknot.errors import ReefknotError, UserCodeError
from reefknot.packing import suspended
from reefknot.packing.clustering import Settings
from reefknot.packing.network import Packer
from reefknot.packing.suspended import Network, can_suspend


class Residual(nn.Module):
    """Two branches and a norm layer: no plain chain. Counts how often it is run."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.left, self.right = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.out = nn.Linear(8, 5)
        self.runs = 0

    def forward(self, images):
        self.runs += 1
        x = torch.relu(self.norm(self.first(images)))
        x = x + self.left(x) + self.right(x)
        return self.out(x.mean((2, 3)))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Residual().eval()


@pytest.fixture
def batches():
    return list(torch.randn(5, 4, 3, 6, 6, generator=torch.Generator().manual_seed(1)))


def waiting():
    return [t for t in threading.enumerate() if isinstance(t, suspended._SuspendedPass)]


def collected(model, batches):
    with Network(model, batches, suspends=True) as network:
        return [torch.cat(list(network.inputs(site, 10**6))) for site in network.sites]


def test_suspended_passes_run_each_batch_once(model, batches):
    collected(model, batches)
    assert model.runs == 1 + len(batches)  # the first batch tells which sites there are


def test_inputs_are_those_of_a_run_from_the_beginning(model, batches, monkeypatch):
    suspended_once = collected(model, batches)
    monkeypatch.setattr(suspended, "_memory", lambda: 0)
    run_again = collected(model, batches)
    assert model.runs > 4 * len(batches)  # once for each of five sites, and a little
    assert len(suspended_once) == 5
    assert all(
        torch.equal(one, other) for one, other in zip(suspended_once, run_again, strict=True)
    )


def test_a_weight_that_changes_while_batches_wait_is_used_as_it_is_then(model, batches):
    with torch.no_grad(), Network(model, batches, suspends=True) as network:
        first, *_, last = network.sites
        list(network.inputs(first, 10**6))
        model.first.weight.zero_()
        model.first.bias.zero_()
        found = torch.cat(list(network.inputs(last, 10**6)))[:, 0]
        expected = []
        model.out.register_forward_pre_hook(lambda _, given: expected.append(given[0]))
        for batch in batches:
            model(batch)
    assert torch.equal(found, torch.cat(expected))


def test_packing_is_the_same_whether_it_suspends_or_runs_again(model, batches, monkeypatch):
    def packed():
        packer = Packer(model, batches, Settings(min_size=20))
        packer.measure_sensitivity(1e-5)
        return packer.at(1e-5)[0].state_dict()

    suspended_once = packed()
    monkeypatch.setattr(suspended, "_memory", lambda: 0)
    again = packed()
    assert all(torch.equal(suspended_once[name], again[name]) for name in suspended_once)
    assert not torch.equal(suspended_once["left.weight"], model.left.weight)


def test_batches_that_take_another_way_are_left_out_where_they_do_not_come_by(batches):
    class Switch(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.often = nn.Linear(6, 6), nn.Linear(6, 6)
            self.last = nn.Linear(6, 2)

        def forward(self, x):
            x = self.first(x)
            return self.last(self.often(x) if len(x) > 2 else x)

    inputs = [torch.randn(n, 6) for n in (3, 1, 4)]
    with Network(Switch().eval(), inputs, suspends=True) as network:
        rows = [
            sum(len(x) for x in network.inputs(site, 10**6) if x is not None)
            for site in network.sites
        ]
    assert rows == [8, 7, 8]


def test_nothing_waits_after_the_end(model, batches):
    with Network(model, batches, suspends=True) as network:
        next(network.inputs(network.sites[1], 10**6))
        assert len(waiting()) == 1
    assert not waiting()


def test_an_error_in_the_model_is_told_and_nothing_waits_after_it(batches):
    class Broken(Residual):
        def forward(self, images):
            if images.shape[0] == 1:
                images = self.first(images)
                raise ValueError("no single images")
            return super().forward(images)

    broken = Broken().eval()
    with (
        pytest.raises(UserCodeError, match="no single images"),
        Network(broken, [*batches, batches[0][:1]], suspends=True) as network,
    ):
        for site in network.sites:
            list(network.inputs(site, 10**6))
    assert not waiting()


# -- models that do not allow several batches at the same time -------------------------------


class Layers(nn.Module):
    """Three layers, whose forward pass is for others to write."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = (nn.Linear(6, n) for n in (6, 6, 3))

    def forward(self, x):
        return self.last(self.second(self.first(x).relu()).relu())


class Locked(Layers):
    lock = threading.Lock()

    def forward(self, x):
        with self.lock:
            return super().forward(x)


class Remembering(Layers):
    def forward(self, x):
        self.skip = x
        return self.last(self.second(self.first(x).relu() + self.skip).relu())


class ChangingKernels(Layers):
    def forward(self, x):
        with sdpa_kernel(SDPBackend.MATH):
            return super().forward(x)


class ChangingWarnings(Layers):
    def forward(self, x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return super().forward(x)


class Random(Layers):
    def forward(self, x):
        return super().forward(x + torch.rand_like(x))


@pytest.fixture
def rows():
    return list(torch.randn(6, 20, 6, generator=torch.Generator().manual_seed(2)))


def test_plain_models_can_be_suspended(model, batches, rows):
    assert can_suspend(model, batches) and can_suspend(Layers().eval(), rows)
    assert can_suspend(Layers().eval(), rows[:1])
    transformer = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 12, batch_first=True), 2)
    recurrent = nn.GRU(6, 5, batch_first=True)
    for layers in (transformer, recurrent):  # torch has kernels for all of it at once
        assert can_suspend(layers.eval(), [x.unflatten(0, (4, 5)) for x in rows])


@pytest.mark.slow
def test_the_first_model_of_a_process_can_be_suspended():
    code = """
import torch
from reefknot.packing.suspended import can_suspend
assert can_suspend(torch.nn.Linear(6, 3).eval(), list(torch.randn(4, 20, 6)))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", [Locked, Remembering, ChangingKernels, ChangingWarnings, Random])
def test_a_model_that_is_not_for_several_batches_at_once_is_run_again(kind, rows, monkeypatch):
    monkeypatch.setattr(suspended, "PATIENCE", 0.5)
    before = torch.backends.cuda.flash_sdp_enabled(), list(warnings.filters)
    assert not can_suspend(kind().eval(), rows)
    assert (torch.backends.cuda.flash_sdp_enabled(), list(warnings.filters)) == before
    assert not waiting()


def test_what_a_model_keeps_of_a_batch_is_that_of_the_same_batch(tmp_path, rows):
    class Local(Layers):
        def forward(self, x):
            return self.last(self.second(self.first(x).relu() + x).relu())

    found = [
        reefknot.pack(kind().eval(), tmp_path / kind.__name__, bits=12, min_size=10, inputs=rows)
        for kind in (Local, Remembering)
    ]
    assert found[0].outputs == found[1].outputs
    assert found[0].file_bytes == found[1].file_bytes


def test_a_lock_in_the_model_does_not_stop_it(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(suspended, "PATIENCE", 0.5)
    packed = [
        reefknot.pack(kind().eval(), tmp_path / "m.reef", bits=12, min_size=10, inputs=rows)
        for kind in (Layers, Locked)
    ]
    assert packed[0].file_bytes == packed[1].file_bytes


def test_many_threads_are_not_started(model, batches, monkeypatch):
    monkeypatch.setattr(suspended, "MOST_THREADS", 4 * torch.get_num_threads())
    assert not Network(model, batches, suspends=True).suspends
    assert Network(model, batches[:4], suspends=True).suspends


def test_a_suspended_pass_has_the_context_of_its_caller(rows):
    scale = contextvars.ContextVar("scale")

    class Scaled(Layers):
        def forward(self, x):
            return super().forward(scale.get() * x)

    scale.set(2.0)
    assert can_suspend(Scaled().eval(), rows)


# -- products that are not seen, and batches that take another way ---------------------------


def test_inference_mode_inside_and_outside_changes_nothing(tmp_path, rows):
    class Inferring(Layers):
        @torch.inference_mode()
        def forward(self, x):
            return super().forward(x)

    def sizes(kind):
        path = tmp_path / "m.reef"
        packed = reefknot.pack(kind().eval(), path, bits=12, min_size=10, inputs=rows)
        return packed.file_bytes, packed.outputs, packed.warnings

    expected = sizes(Layers)
    assert sizes(Inferring) == expected
    with torch.inference_mode():
        assert sizes(Layers) == expected
    with torch.autocast("cpu", torch.bfloat16):
        assert sizes(Layers) == expected


def test_weights_whose_products_are_not_seen_are_named(tmp_path, rows):
    class Casting(Layers):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                x = self.second(self.first(x).relu())
            return self.last(x.float().relu())

    packed = reefknot.pack(Casting().eval(), tmp_path / "m", bits=12, min_size=10, inputs=rows)
    (sentence,) = (s for s in packed.warnings if "not seen" in s)
    assert "'first.weight', 'second.weight'" in sentence and "last" not in sentence
    assert packed.outputs.relative_error > 1e-3  # not that of copies which autocast keeps


class Branching(Layers):
    """Takes the second layer or not."""

    def forward(self, x):
        h = self.first(x)
        return self.last(self.second(h.relu()) if float(x.mean()) > 0 else h)


def test_batches_that_take_a_way_of_their_own_count_after_it(rows):
    positive = [x for x in rows if float(x.mean()) > 0]
    negative = [x for x in rows if float(x.mean()) <= 0]
    assert positive and negative
    for first, most in ((positive, 3), (negative, 2)):
        others = negative if first is positive else positive
        for suspends in (True, False):
            with Network(Branching().eval(), first + others, suspends=suspends) as network:
                seen = {
                    site.name: sum(x is not None for x in network.inputs(site, 100))
                    for site in network.sites
                }
            assert len(seen) == most
            assert seen["first.weight"] == seen["last.weight"] == len(rows)


def test_another_way_through_the_packed_network_is_no_error(tmp_path, rows):
    class Gated(Layers):
        """Takes another way as soon as its first layer is packed."""

        def __init__(self):
            super().__init__()
            self.total = float(self.first.weight.detach().sum())

        def forward(self, x):
            h = self.first(x)
            as_it_was = float(self.first.weight.detach().sum()) == self.total
            return self.last(self.second(h.relu()) if as_it_was else h[:7]).mean(0)

    packed = reefknot.pack(Gated().eval(), tmp_path / "m", bits=12, min_size=10, inputs=rows)
    assert any("'second.weight' were not seen" in sentence for sentence in packed.warnings)


def test_a_model_that_cannot_be_copied_is_refused_in_one_sentence(tmp_path, rows):
    model = Layers().eval()
    model.lock = threading.Lock()
    with pytest.raises(ReefknotError, match="cannot be copied"):
        reefknot.pack(model, tmp_path / "m.reef", bits=12, min_size=10, inputs=rows)


def test_a_scripted_module_is_refused_in_one_sentence(tmp_path, rows):
    with pytest.warns(DeprecationWarning):
        scripted = torch.jit.script(nn.Linear(6, 3).eval())
    with pytest.raises(ReefknotError, match="scripted"):
        reefknot.pack(scripted, tmp_path / "m.reef", bits=12, min_size=10, inputs=rows)
