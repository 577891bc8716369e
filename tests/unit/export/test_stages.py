"""Stages and their memory: what is needed at the same time does not overlap, in little room."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from unit.export.networks import Residual, Squeeze, ready, strangers

from reefknot.export.layers import program
from reefknot.export.stages import _packed, plan


@st.composite
def values(draw):
    sizes = draw(st.lists(st.integers(1, 50), min_size=1, max_size=12))
    lives = {}
    for value in range(len(sizes)):
        born = draw(st.integers(-1, 12))
        lives[value] = (born, draw(st.integers(born, 13)))
    return dict(enumerate(sizes)), lives


@given(values())
def test_values_that_live_at_the_same_time_do_not_overlap(found):
    sizes, lives = found
    places, arena = _packed(sizes, lives)
    for step in range(-1, 14):
        taken = np.zeros(arena, int)
        for value, (born, dead) in lives.items():
            if born <= step <= dead:
                taken[places[value] : places[value] + sizes[value]] += 1
        assert taken.max(initial=0) <= 1
    assert arena <= sum(sizes.values())


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12))
def test_a_chain_takes_no_more_than_its_largest_neighbours(sizes):
    lives = {value: (value, value + 1) for value in range(len(sizes))}
    _, arena = _packed(dict(enumerate(sizes)), lives)
    pairs = zip(sizes, [*sizes[1:], 0], strict=True)
    assert arena == max(one + two for one, two in pairs)


def planned(model, *shape):
    return plan(program(ready(model, shape), torch.zeros(1, *shape)))


def test_a_residual_block_is_two_stages_and_a_sum_in_place():
    found = planned(Residual(widths=(4, 4)), 1, 28, 28)
    names = [(s.conv.name, s.join.kind if s.join else "", s.in_place) for s in found.stages]
    assert names[:3] == [
        ("stem.0", "", False), ("body.0.one.0", "", False), ("body.0.two.0", "add", True),
    ]  # fmt: skip
    assert all(stage.after.kind == "relu" for stage in found.stages if stage.join)


def test_a_gate_is_multiplied_in_place():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), Squeeze(6, nn.Sigmoid()), nn.Conv2d(6, 2, 1))
    found = planned(model, 3, 12, 12)
    gated = next(stage for stage in found.stages if stage.join)
    assert gated.in_place
    assert gated.source.place == gated.target.place
    assert (gated.second.shape, gated.target.shape) == ((6, 1, 1), (6, 10, 10))
    assert found.arena < 4 * 6 * 10 * 10 // 3


class Halves(nn.Module):
    """Two convolutions side by side, the outputs of which are one value."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 3, 1), nn.Conv2d(2, 5, 3, padding=1)

    def forward(self, x):
        return torch.cat([self.one(x), self.two(x).relu()], 1).tanh()


def test_parts_of_a_concatenation_are_written_where_they_belong():
    found = planned(Halves(), 2, 7, 7)
    one, two, last = found.stages
    assert two.target.place == one.target.place + 3 * 7 * 7
    assert last.source.shape == (8, 7, 7)
    assert last.source.place == one.target.place


@pytest.mark.parametrize("name", ["residual", "residual-a", "mobile"])
def test_norms_take_no_stage_of_their_own(name):
    model, shape = next(found[1:] for found in strangers() if found[0] == name)
    weighted = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    stages = planned(model, *shape).stages
    assert sum(stage.scale is not None for stage in stages) == len(norms)
    others = {"residual": 1, "residual-a": 2, "mobile": 4}[name]  # means of sums, a slice, gates
    assert len(stages) == len(weighted) + others
