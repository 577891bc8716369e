"""A method written outside of the package, from its public names alone."""

import copy

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import reefknot
from reefknot.methods import TyingMethod
from reefknot.methods.settings import is_number, setting
from reefknot.phases import Frozen, Phase
from reefknot.tying import ops


class Shrinkage(TyingMethod):
    """Weights shrink by a fixed amount a step, and stay at zero once they are there."""

    name = "shrinkage"

    amount: float = setting(default=0.01, doc="of each step towards zero", check=is_number())

    def phases_of(self, tying):
        """Shrinking for five steps, rest until `harden()`, then shared values."""
        shrinking = Shrinking(tying, self.amount)
        return [shrinking, Resting(tying), Frozen(tying, prepare=tying.cluster)]


class Shrinking(Phase):
    """Training in which weights of sparse groups shrink."""

    name = "shrinking"

    def __init__(self, tying, amount):
        super().__init__(tying, steps=5)
        self.amount = amount

    def after_step(self, step):
        """Move each weight towards zero."""
        for _, group, _, parameter in step.moved(self.tying):
            if group.sparse:
                ops.soft_threshold_(parameter.detach(), self.amount)


class Resting(Phase):
    """Training in which zeros stay zero."""

    name = "resting"

    def enter(self):
        """Find the zeros."""
        self.zeros = {p: p == 0 for p in self.tying.home}

    def after_step(self, step):
        """Put them back."""
        for _, _, _, parameter in step.moved(self.tying):
            parameter.detach().masked_fill_(self.zeros[parameter], 0.0)

    def load_state_dict(self, state):
        """The zeros are still there."""
        super().load_state_dict(state)
        self.enter()


INPUTS = torch.randn(64, 20, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 4, (64,), generator=torch.Generator().manual_seed(1))


def trained(steps=12, harden_at=8, resume_at=None):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tie = Shrinkage(model, num_clusters=5, amount=0.02).attach(optimizer)
    for step in range(steps):
        if step == harden_at:
            tie.harden()
        optimizer.zero_grad()
        cross_entropy(model(INPUTS), LABELS).backward()
        optimizer.step()
        if step == resume_at:
            state = copy.deepcopy(tie.state_dict())
            tie.detach()
            tie = Shrinkage(model, num_clusters=5, amount=0.02)
            tie.load_state_dict(state)
            tie.attach(optimizer)
    return tie, model


def test_it_trains_ends_in_a_state_and_is_written_and_read_back(tmp_path):
    tie, model = trained()
    stats = tie.stats()
    assert (stats["phase"], stats["step"]) == ("frozen", 12)
    state = tie.finish()
    assert 0 < state.density < 0.9
    assert all(len(book.values) <= 5 for book in state.codebooks)
    reefknot.save(state, tmp_path / "own.reef")
    for name, value in reefknot.load(tmp_path / "own.reef").items():
        assert torch.equal(value, model.state_dict()[name])


def test_it_resumes_exactly_in_each_phase():
    whole = trained()[0].finish()
    for step in (3, 6, 10):  # one in each phase
        assert trained(resume_at=step)[0].finish() == whole


def test_its_settings_are_checked_and_described():
    try:
        Shrinkage(nn.Linear(4, 4), amount=-1)
    except reefknot.ConfigError as error:
        assert "amount must be a number of at least 0" in str(error)
    assert "amount: of each step towards zero [0.01]" in Shrinkage.__doc__
    assert np.isfinite(Shrinkage(nn.Linear(4, 4)).stats()["density"])
