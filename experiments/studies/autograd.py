"""The pull to the centers beside automatic differentiation of the k-means penalty.

Takes     LeNet-300-100, K = 8, SGD, a refit after each of 100 steps; float64, so that rounding does
          not hide a difference. The penalty is written in both ways of the paper's equation 1: over
          the clusters of k-means, and with the minimum over all centers.
Gives     the distance of each network from ours at the end, and of ours from its start.
Paper     section 4: the naive way needs O(NK) time and memory, and the results are comparable.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import reefknot
from experiments.studies.training import scaled, vector
from reefknot.lab.runs.batches import Batches
from reefknot.lab.zoo import DATASETS, NETWORKS

MINUTES = 1.0
STEPS, K, STRENGTH, LR = 100, 8, 1e-3, 0.05


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """One comparison."""
    return {"all": {}}


def measure() -> dict[str, Any]:
    """Train three times on the same batches."""
    start, ours = vector(_network()), _train(None)
    return {
        "steps": scaled(STEPS),
        "num_weights": len(ours),
        "largest_move": float((ours - start).abs().max()),
        "difference_assigned": float((ours - _train("assigned")).abs().max()),
        "difference_nearest": float((ours - _train("nearest")).abs().max()),
    }


def _network() -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS["lenet-300-100"]().double()


def _batches() -> Batches:
    images, labels = DATASETS["mnist"]().train
    return Batches(images.double(), labels, 128, 0)


def _train(naive: Literal["assigned", "nearest"] | None) -> Tensor:
    """With the method's own pull, or with none and the penalty in the objective."""
    model, batches = _network(), _batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    tie = reefknot.APT(model, K, 0.0 if naive else STRENGTH, refit_every=1)
    tie.attach(optimizer)
    (group,) = tie.tying.groups
    for step in range(scaled(STEPS)):
        inputs, labels = batches[step]
        optimizer.zero_grad()
        objective = cross_entropy(model(inputs), labels)
        if naive:
            weights = nn.utils.parameters_to_vector(model.parameters())
            distances = (weights[:, None] - torch.from_numpy(group.centers)).square()  # N x K
            own = [group.assignment(name).flatten().long() for name in group.members]
            chosen = torch.cat(own) if naive == "assigned" else distances.argmin(1)
            penalty = distances.gather(1, chosen[:, None]).sum() / 2
            objective = objective + STRENGTH * penalty
        objective.backward()
        optimizer.step()
    return vector(model)


def data(done: dict[str, Any]) -> dict[str, Any]:
    """The one comparison."""
    return done["all"]
