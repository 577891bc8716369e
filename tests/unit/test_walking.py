"""Walking: a network that is run once, and waits at each weight."""

import threading

import pytest
import torch
from torch import nn

from reefknot.errors import UserCodeError
from reefknot.packing import walking
from reefknot.packing.clustering import Settings
from reefknot.packing.network import Packer
from reefknot.packing.walking import Network


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
    return [t for t in threading.enumerate() if isinstance(t, walking._Walker)]


def collected(model, batches):
    with Network(model, batches) as network:
        return [torch.cat(list(network.inputs(site, 10**6))) for site in network.sites]


def test_a_walk_runs_each_batch_once(model, batches):
    collected(model, batches)
    assert model.runs == 1 + len(batches)  # the first batch tells which sites there are


def test_inputs_are_those_of_a_run_from_the_beginning(model, batches, monkeypatch):
    walked = collected(model, batches)
    monkeypatch.setattr(walking, "_memory", lambda: 0)
    run_again = collected(model, batches)
    assert model.runs > 4 * len(batches)  # once for each of five sites, and a little
    assert len(walked) == 5
    assert all(torch.equal(one, other) for one, other in zip(walked, run_again, strict=True))


def test_a_weight_that_changes_while_batches_wait_is_used_as_it_is_then(model, batches):
    with torch.no_grad(), Network(model, batches) as network:
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


def test_packing_is_the_same_whether_it_walks_or_runs_again(model, batches, monkeypatch):
    def packed():
        packer = Packer(model, batches, Settings(min_size=20))
        packer.weigh(1e-5)
        return packer.at(1e-5)[0].state_dict()

    walked = packed()
    monkeypatch.setattr(walking, "_memory", lambda: 0)
    again = packed()
    assert all(torch.equal(walked[name], again[name]) for name in walked)
    assert not torch.equal(walked["left.weight"], model.left.weight)


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
    with Network(Switch().eval(), inputs) as network:
        rows = [sum(map(len, network.inputs(site, 10**6))) for site in network.sites]
    assert rows == [8, 7, 8]


def test_nothing_waits_after_the_end(model, batches):
    with Network(model, batches) as network:
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
        Network(broken, [*batches, batches[0][:1]]) as network,
    ):
        for site in network.sites:
            list(network.inputs(site, 10**6))
    assert not waiting()
