"""Softened labels, worked out by hand."""

import pytest
import torch
from torch import nn

from reefknot.lab.runs.batches import soft_labels


class Says(nn.Module):
    """Gives the same probabilities for every example."""

    def __init__(self, *probabilities: float) -> None:
        super().__init__()
        self.logits = torch.tensor(probabilities).log()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert not self.training
        return self.logits.expand(len(inputs), -1)


def test_a_teacher_joins_the_label():
    found = soft_labels(
        [Says(0.8, 0.2)], torch.zeros(2, 3), torch.tensor([0, 1]), temperature=1.0, weight=0.5
    )
    assert found.dtype == torch.float32
    assert found.flatten().tolist() == pytest.approx([0.9, 0.1, 0.4, 0.6])


def test_a_temperature_softens_the_mean_of_the_teachers():
    teachers = [Says(1.0, 0.0), Says(0.6, 0.4)]  # mean 0.8, 0.2: roots have the ratio 2 to 1
    found = soft_labels(teachers, torch.zeros(1, 3), torch.tensor([1]), temperature=2.0, weight=1.0)
    assert found[0].tolist() == pytest.approx([2 / 3, 1 / 3])


def test_teachers_are_left_as_they_were():
    teacher = Says(0.5, 0.5)
    soft_labels([teacher], torch.zeros(1, 3), torch.tensor([1]), temperature=2.0, weight=1.0)
    assert teacher.training
