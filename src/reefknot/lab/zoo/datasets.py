"""The data sets by name: `digits` (from scikit-learn), `mnist` and `cifar10` with variants.

Takes     the files that `sources` finds.
Gives     `DATASETS`, a function for each name that loads it as `Data`.
Paper     section 4: MNIST as it is; CIFAR-10 with random flips and crops while training.
Unaware   of networks and runs.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from reefknot.errors import DataError
from reefknot.lab.zoo import sources
from reefknot.lab.zoo.data import Data, Split, shuffled, split
from reefknot.lab.zoo.readers import parse_cifar10, parse_idx


def digits() -> Data:
    """1,797 handwritten digits of 8 x 8 pixels; a fifth of each class is the test set."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError(
            'the digits data set comes with scikit-learn: pip install "reefknot[lab]"'
        ) from None
    bunch = load_digits()
    images = bunch.images[:, None].astype(np.float32)
    labels = bunch.target.astype(np.int64)
    order = shuffled(len(labels), seed=0)
    classes = [order[labels[order] == label] for label in range(10)]
    test = np.concatenate([members[: round(0.2 * len(members))] for members in classes])
    train = np.concatenate([members[round(0.2 * len(members)) :] for members in classes])
    return split(images[train], labels[train], images[test], labels[test], name="digits")


def mnist() -> Data:
    """60,000 + 10,000 handwritten digits, inputs (N, 1, 28, 28)."""
    return _mnist("mnist", normalise=True)


def mnist_unit() -> Data:
    """MNIST with pixels from 0 to 1, as in the tutorial of Soft Weight Sharing."""
    data = _mnist("mnist-unit", normalise=False)
    for part in (data.train, data.validation, data.test):
        assert part is not None
        part.inputs.div_(255)
    return data


def _mnist(name: str, *, normalise: bool) -> Data:
    arrays = {file: parse_idx(content, file) for file, content in sources.mnist_contents().items()}
    for file, array in arrays.items():
        expected = (28, 28) if "images" in file else ()
        if array.shape[1:] != expected:
            raise DataError(f"{file}: expected shape (N, *{expected}), found {array.shape}")
    return split(
        arrays["train-images-idx3-ubyte"][:, None],
        arrays["train-labels-idx1-ubyte"],
        arrays["t10k-images-idx3-ubyte"][:, None],
        arrays["t10k-labels-idx1-ubyte"],
        name=name,
        normalise=normalise,
    )


def mnist_warped(copies: int = 7) -> Data:
    """MNIST with warped copies of each training image beside it; the paper has none."""
    plain = mnist()
    random = torch.Generator().manual_seed(0)
    warped = [warp(plain.train.inputs, random) for _ in range(copies)]
    inputs = torch.cat([plain.train.inputs, *warped])
    labels = plain.train.labels.repeat(copies + 1)
    return replace(plain, name="mnist-warped", train=Split(inputs, labels))


def cifar10() -> Data:
    """50,000 + 10,000 colour images of ten kinds of things, inputs (N, 3, 32, 32)."""
    parts = {name: parse_cifar10(c, name) for name, c in sources.cifar10_contents().items()}
    images, labels = zip(*(parts[name] for name in sources.CIFAR10_TRAIN), strict=True)
    return split(
        np.concatenate(images),
        np.concatenate(labels),
        *parts[sources.CIFAR10_TEST],
        name="cifar10",
        augment=flip_and_crop,
    )


def cifar10_cutout() -> Data:
    """CIFAR-10 with holes in the training images, besides flips and crops; the paper has none."""
    return replace(cifar10(), name="cifar10-cutout", augment=flip_crop_and_cut_out)


def flip_crop_and_cut_out(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """`flip_and_crop`, then `cut_out`."""
    return cut_out(flip_and_crop(inputs, generator), generator)


def cut_out(inputs: Tensor, generator: torch.Generator, side: int = 12) -> Tensor:
    """Set a square of `side` pixels of each image to 0, the mean of normalised images.

    It is anywhere in the image. Gives a new tensor; the random numbers come from `generator` only.
    """
    count, _, *sizes = inputs.shape
    inside = []
    for size in sizes:
        begin = torch.randint(size - side + 1, (count, 1), generator=generator)
        pixels = torch.arange(size)
        inside.append((begin <= pixels) & (pixels < begin + side))
    hole = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return inputs.masked_fill(hole, 0.0)


def flip_and_crop(inputs: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Mirror each image with probability one half, and shift it by up to `padding` pixels.

    Pixels from outside are 0, the mean of normalised images. Gives a new tensor of the same shape
    (N, C, H, W); the random numbers come from `generator` only.
    """
    count, _, height, width = inputs.shape
    places = 2 * padding + 1
    offsets = torch.randint(places, (2, count), generator=generator, device=generator.device)
    offsets = offsets.to(inputs.device)
    # A view of every window of the padded images, of which each image takes one.
    windows = F.pad(inputs, [padding] * 4).unfold(2, height, 1).unfold(3, width, 1)
    crops = windows[torch.arange(count, device=inputs.device), :, offsets[0], offsets[1]]
    mirrored = torch.randint(2, (len(inputs),), generator=generator, device=generator.device)
    return torch.where(mirrored.bool().to(inputs.device)[:, None, None, None], crops.flip(3), crops)


def warp(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Random affine and elastic distortions, like the differences between handwritings.

    Rotation by about 5 degrees, scaling of width and height by about a twentieth, shear of about a
    tenth, and an elastic distortion: points 7 pixels apart move by about half a pixel. All are
    normally distributed.
    """
    return torch.cat([_warp(part, generator) for part in inputs.split(1000)])


def _warp(inputs: Tensor, generator: torch.Generator) -> Tensor:
    count, _, height, width = inputs.shape

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator)

    turn, slant, (wide, high) = 0.09 * normal(), 0.1 * normal(), (0.05 * normal(2)).exp().T
    cos, sin, zero = turn.cos(), turn.sin(), torch.zeros(count)
    across = torch.stack([wide * cos, wide * (slant * cos - sin), zero], 1)
    down = torch.stack([high * sin, high * (slant * sin + cos), zero], 1)
    straight = F.affine_grid(torch.stack([across, down], 1), [*inputs.shape], align_corners=True)
    pixel = 2 / (max(height, width) - 1)  # the image reaches from -1 to 1
    points = 0.6 * pixel * normal(2, height // 7 + 1, width // 7 + 1)
    bent = F.interpolate(points, (height, width), mode="bicubic", align_corners=True)
    grid = straight + bent.permute(0, 2, 3, 1)
    return F.grid_sample(inputs, grid, padding_mode="border", align_corners=True)


DATASETS: dict[str, Callable[[], Data]] = {
    "digits": digits,
    "mnist": mnist,
    "mnist-unit": mnist_unit,
    "mnist-warped": mnist_warped,
    "cifar10": cifar10,
    "cifar10-cutout": cifar10_cutout,
}
