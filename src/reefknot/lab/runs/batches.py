"""Which examples a step trains on, and with which labels.

Takes     examples in memory, what is done to a batch of them, and trained networks as teachers.
Gives     batch number n, whichever batches were asked for before; soft labels, which
          `cross_entropy` accepts in place of labels.
Unaware   of methods, of training, and of configurations.

Even a network of a few shared values overfits hard labels. Soft labels tell it which examples are
hard and which classes are similar.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, one_hot

from reefknot.lab.runs.precision import reduced_precision

Augment = Callable[[Tensor, torch.Generator], Tensor]
Relabel = Callable[[Tensor, Tensor], Tensor]


class Batches:
    """Shuffled batches of data held in memory; batch n depends only on n and the seed.

    `augment` changes the inputs of a batch, and then `relabel` gives labels for the new inputs.
    `small` are pairs of a batch number and a side length: images of the batches before that number
    are scaled down to that many pixels at last, so that teachers see them at full size.
    """

    def __init__(
        self,
        inputs: Tensor,
        labels: Tensor,
        batch_size: int,
        seed: int,
        augment: Augment | None = None,
        relabel: Relabel | None = None,
        small: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.inputs, self.labels = inputs, labels
        self.batch_size = min(batch_size, len(labels))
        self.per_epoch = len(labels) // self.batch_size
        self.seed = seed
        self.augment, self.relabel = augment, relabel
        self.small = small
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        inputs, labels = self.before_relabel(number)
        if self.relabel is not None:
            labels = self.relabel(inputs, labels)
        for end, pixels in self.small:
            if number < end:
                return scaled_down(inputs, pixels), labels
        return inputs, labels

    def before_relabel(self, number: int) -> tuple[Tensor, Tensor]:
        """The batch as `relabel` gets it: augmented, at full size."""
        epoch, place = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = torch.randperm(len(self.labels), generator=self._random(epoch, 0))
        rows = self._order[place * self.batch_size : (place + 1) * self.batch_size]
        inputs, labels = self.inputs.index_select(0, rows), self.labels[rows]
        if self.augment is not None:
            inputs = self.augment(inputs, self._random(number, 1))
        return inputs, labels

    def some_inputs(self, most: int = 100) -> Iterator[Tensor]:
        """The inputs of the first batches, at most one epoch of them."""
        for number in range(min(most, self.per_epoch)):
            yield self.before_relabel(number)[0]

    def _random(self, number: int, purpose: int) -> torch.Generator:
        """A separate generator for each epoch's order and each batch's augmentation."""
        mixed = (self.seed * 0x9E3779B97F4A7C15 + number * 2 + purpose) % 2**63
        return torch.Generator().manual_seed(mixed)


def scaled_down(images: Tensor, pixels: int) -> Tensor:
    """Images brought to `pixels` rows and columns, low-pass filtered first."""
    return interpolate(images, size=(pixels, pixels), mode="bilinear", antialias=True)


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
