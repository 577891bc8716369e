"""The pull to the centers beside automatic differentiation of the k-means penalty.

Takes     LeNet-300-100, K = 8, SGD, a refit after each of 200 steps, so that each weight is in the
          cluster of its nearest center; float64, where rounding cannot hide a difference.
Gives     how far the two networks are apart at the end, and how far both went.
Paper     section 4: the naive way needs O(NK) time and memory, and the results are comparable.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import reefknot
from experiments.studies.training import scaled, vector
from reefknot.runs.training import Batches
from reefknot.zoo import DATASETS, NETWORKS

MINUTES = 1.0
STEPS, K, STRENGTH, LR = 200, 8, 1e-3, 0.05


def cases(done: dict[str, Any]) -> dict[str, Any]:
    """One comparison."""
    return {"both": {}}


def measure() -> dict[str, Any]:
    """Train twice on the same batches."""
    start = vector(_network())
    ours, naive = _train(naively=False), _train(naively=True)
    return {
        "steps": scaled(STEPS),
        "num_weights": len(ours),
        "largest_weight": float(ours.abs().max()),
        "largest_move": float((ours - start).abs().max()),
        "largest_difference": float((ours - naive).abs().max()),
    }


def _network() -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS["lenet-300-100"]().double()


def _batches() -> Batches:
    images, labels = DATASETS["mnist"]().train
    return Batches(images.double(), labels, 128, 0)


def _train(*, naively: bool) -> Tensor:
    """With the method's own pull, or with none and the penalty in the objective."""
    model, batches = _network(), _batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    tie = reefknot.APT(model, K, 0.0 if naively else STRENGTH, refit_every=1)
    tie.attach(optimizer)
    for step in range(scaled(STEPS)):
        inputs, labels = batches[step]
        optimizer.zero_grad()
        objective = cross_entropy(model(inputs), labels)
        if naively:
            weights = nn.utils.parameters_to_vector(model.parameters())
            centers = torch.from_numpy(tie.groups[0].centers)
            distances = (weights[:, None] - centers).square()  # N x K
            objective = objective + STRENGTH * distances.min(1).values.sum() / 2
        objective.backward()
        optimizer.step()
    return vector(model)


def data(done: dict[str, Any]) -> dict[str, Any]:
    """The one comparison."""
    return done["both"]
