"""Random inputs, for a network without calibration inputs.

Takes     a model and one batch of example inputs.
Gives     batches of the same shapes and scale: images and sounds with a natural spectrum, or token
          ids.
Unaware   of packing.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

INPUTS, BATCH = 512, 64  # at most
ELEMENTS = 2**22  # of all inputs together, if eight of them are not more
CORRELATION = 0.9  # of the channels of an image


def random_batches(model: nn.Module, example: Any) -> list[Any]:
    """Batches like the example; ids are those of the smallest embedding that has the example's."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, kinds)]
    generator = torch.Generator().manual_seed(0)
    given = [v for v in tree_leaves(example) if isinstance(v, Tensor) and v.dim() and v.numel()]
    rows = [len(v) for v in given]
    each = sum(v.numel() for v in given) // max(rows, default=1)
    inputs = min(max(ELEMENTS // max(each, 1), 8), INPUTS)
    size = min(BATCH, inputs // 4)
    # Where lengths differ, as those of inputs and of a recurrent state, they are kept.
    alike = len(set(rows)) <= 1
    if not alike:
        size = rows[0]

    def like(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dim():
            return copy.copy(value)
        shape = (size, *value.shape[1:]) if alike else tuple(value.shape)
        if value.is_floating_point():
            return _scaled(pink_noise(shape, generator), value)
        if int(value.min()) == int(value.max()) or int(value.max()) <= 1:  # a mask, a type
            return value[:1].expand(shape).clone() if alike else value.clone()
        known = int(value.max()) + 1
        high = min((size for size in tables if size >= known), default=known)
        return torch.randint(high, shape, generator=generator).to(value.dtype)

    return [tree_map(like, example) for _ in range(max(inputs // size, 1))]


def _scaled(made: Tensor, example: Tensor) -> Tensor:
    """With the mean and the deviation of the example, unless it is constant."""
    values = example.detach().double()
    deviation = float(values.std(correction=0))
    if deviation > 0 and math.isfinite(deviation):
        made = made * deviation + float(values.mean())
    return made.to(example.dtype)


def pink_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Noise of mean 0 and variance 1 whose amplitude falls as 1/f along all but two dimensions.

    The second dimension is that of channels, which are correlated; with two dimensions it is white
    noise.
    """
    noise = torch.randn(shape, generator=generator)
    if len(shape) < 3:
        return noise
    common = torch.randn((shape[0], 1, *shape[2:]), generator=generator)
    noise = CORRELATION**0.5 * common + (1 - CORRELATION) ** 0.5 * noise
    dims = tuple(range(2, len(shape)))
    squared = torch.zeros(shape[2:])
    for at, size in enumerate(shape[2:]):
        axis = torch.fft.fftfreq(size) * size
        squared += axis.square().reshape([-1 if d == at else 1 for d in range(len(dims))])
    spectrum = squared.clamp(min=1).rsqrt()
    made = torch.fft.ifftn(torch.fft.fftn(noise, dim=dims) * spectrum, dim=dims).real
    return (made - made.mean()) / made.std().clamp(min=1e-6)
