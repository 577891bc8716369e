"""No step leaves the device: every operation on its tensors is intercepted, and noted."""

import pytest
import torch
from accelerator import Away, accelerator, moved
from torch import nn

import reefknot
from reefknot.tying import kmeans

K, STEPS = 9, 8
TENSORS = 4
SUMS = 8 * (K + 1)  # of each cluster, and whether one has overflown
COUNTS = 8 * K
BINS = 8 * (2 * 2 * 21 * 1024 + 2)  # counts and places of each bin, and those that are left out
EXTENTS = 4 * 2 * TENSORS  # of each tensor


def network():
    """44,010 weights, so that they are counted in bins also where a fifth of them is zero."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 700), nn.ReLU(), nn.Linear(700, 14))


def set_gradients(model, step):
    for number, parameter in enumerate(model.parameters()):
        source = torch.Generator().manual_seed(1000 * step + number)
        noise = torch.randn(parameter.shape, generator=source) * 0.05
        parameter.grad = Away(noise) if isinstance(parameter, Away) else noise


class Run:
    """Steps of a method on a model, and what each of them has brought to the host."""

    def __init__(self, model, left=(), **settings):
        self.model, self.left, self.made = model, left, 0
        self.tie = reefknot.SparseAPT(model, **settings)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        self.tie.attach(self.optimizer)

    def step(self):
        set_gradients(self.model, self.made)
        self.made += 1
        before = len(self.left)
        self.optimizer.step()
        return list(self.left[before:])

    def clusters(self):
        group = self.tie.tying.groups[0]
        held = [a.inner if isinstance(a, Away) else a for a in group.assignments.values()]
        return group.centers.tolist(), [a.tolist() for a in held]


def paper(model, left=()):
    return Run(
        model, left, num_clusters=K, tying_strength=0.01, l1_strength=0.01, refit_every=STEPS // 2
    )


def test_soft_and_hard_steps_bring_sums_to_the_host_and_nothing_else():
    with accelerator() as device:
        run = paper(moved(network()), device.left)
        soft = [run.step() for _ in range(STEPS)]
        assert soft[0] == []  # the centers are those of the start
        assert soft[1:3] == [[COUNTS * TENSORS, SUMS], [SUMS]]  # the first one counts
        assert soft[3] == [SUMS, EXTENTS, BINS, 8]  # a refit
        run.tie.harden()
        hard = [run.step() for _ in range(3)]
        assert hard[1:] == [[EXTENTS, SUMS, SUMS]] * 2  # shared gradients, then means


def test_every_phase_of_a_budget_brings_sums_to_the_host_and_nothing_else():
    """But for refits, and looks at the size; a density is counted."""
    torch.manual_seed(0)
    model, steps = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 5)), 180
    usual = {
        "sparsify": [[], [SUMS], [COUNTS * TENSORS, SUMS]],  # means every eighth step
        "recover": [[SUMS], [COUNTS * TENSORS, SUMS]],
        "commit": [[COUNTS, SUMS, COUNTS * TENSORS]],  # the last is the look
        "frozen": [[EXTENTS, SUMS, SUMS], [COUNTS * TENSORS, EXTENTS, SUMS, SUMS]],
    }
    seen = set()
    with accelerator() as device:
        run = Run(moved(model), device.left, num_clusters=K, target_density=0.9, steps=steps)
        every = steps // 60
        for _ in range(steps):
            phase = run.tie.phase
            refits = phase.step % every == 0 or (phase.step + 1) % every == 0
            left = run.step()
            if not refits and run.tie.phase is phase:
                assert left in usual[phase.name], phase.name
                seen.add(phase.name)
    assert seen == set(usual)


@pytest.mark.parametrize("hard", [False, True])
def test_the_torch_path_gives_the_clusters_of_the_compiled_loops(hard):
    compiled = paper(network())
    with accelerator() as device:
        run = paper(moved(network()), device.left)
        for one in (compiled, run):
            for _ in range(STEPS + 1):
                one.step()
            if hard:
                one.tie.harden()
                one.step()
        assert run.clusters() == compiled.clusters()


def test_survivors_are_fitted_again_on_the_device_as_on_the_host():
    """Zeros that stay: they are left out where the weights are counted."""

    def refitted(model):
        tie = reefknot.SparseAPT(model, num_clusters=K)
        group = tie.tying.groups[0]
        kmeans.prune(group, 0.02, K)
        group.fix_zeros()
        for number, name in enumerate(group.members):
            source = torch.Generator().manual_seed(number)
            noise = torch.randn(group.members[name].shape, generator=source) * 0.02
            parameter = group.members[name].detach()
            parameter.add_(Away(noise) if isinstance(parameter, Away) else noise)
        group.hold_zeros()
        changed = kmeans.refit(group)
        held = [a.inner if isinstance(a, Away) else a for a in group.assignments.values()]
        return changed, group.zero_cluster, group.centers.tolist(), [a.tolist() for a in held]

    with accelerator() as device:
        found = refitted(moved(network()))
        assert max(device.left, default=0) > 0
    assert found == refitted(network())
