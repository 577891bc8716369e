"""Distillation: soft labels from trained networks.

Takes     trained networks, examples and labels.
Gives     class probabilities for each example, which `cross_entropy` accepts in place of labels;
          the training loop stays as it is.
Unaware   of methods, files and configurations.

Even a network of a few shared values overfits hard labels. Soft labels tell it which examples are
hard and which classes are similar.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from reefknot.lab.runs.precision import reduced_precision


def soft_labels(
    teachers: Sequence[nn.Module],
    inputs: Tensor,
    labels: Tensor,
    *,
    temperature: float,
    weight: float,
    bf16: bool = False,
) -> Tensor:
    """(1 - weight) · one-hot label + weight · the teachers' mean probabilities at a temperature.

    Probabilities p at temperature T are proportional to p^(1/T). With `bf16` the teachers compute
    in bfloat16.
    """
    with reduced_precision(inputs, bf16):
        mean = torch.stack([_probabilities(teacher, inputs) for teacher in teachers]).mean(0)
    softened = (mean.clamp_min(1e-12).log() / temperature).softmax(1)
    return ((1 - weight) * one_hot(labels, mean.shape[1]) + weight * softened).float()


def _probabilities(teacher: nn.Module, inputs: Tensor) -> Tensor:
    was_training = teacher.training
    teacher.eval()
    with torch.no_grad():
        found = torch.cat([teacher(part).double().softmax(1) for part in inputs.split(1000)])
    teacher.train(was_training)
    return found
