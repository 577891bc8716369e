"""Five networks that are not from the zoo, each with data, a loop and habits of its own.

Takes     Fashion-MNIST in `FASHION`, as Debian's package has it; everything else is made or comes with Python.
Gives     `STRANGERS`: data, model, optimizer and learning rate schedule of each; `train` and `accuracy`.
Unaware   of any compression.

Fashion-MNIST has 14 x 14 pixels here and 20,000 training images, so that a training takes seconds on one thread.
"""

import gzip
import math
import os
import pydoc_data.topics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import make_classification
from torch import nn, optim
from torch.nn import functional as F

FASHION = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
CONTEXT = 64  # characters that the language model sees


@dataclass(frozen=True)
class Stranger:
    """A network and the habits of whoever trains it."""

    habit: str  # for the table
    steps: int
    batch: int
    data: Callable  # gives inputs and labels: for training, validation, test
    model: Callable[[], nn.Module]
    optimizer: Callable  # of a model, and of a factor of the learning rate
    schedule: Callable  # of an optimizer and a number of steps; stepped after each
    clip: float | None = None
    flip: bool = False  # half of the images are mirrored


@cache
def fashion(*shape):
    """Images of clothes at half the resolution, one of ten classes each."""

    def read(name, head):
        data = gzip.decompress((FASHION / f"{name}-ubyte.gz").read_bytes())
        return torch.tensor(np.frombuffer(data, np.uint8, offset=head))

    def part(name):
        images = read(f"{name}-images-idx3", 16).view(-1, 1, 28, 28).float()
        halved = (F.avg_pool2d(images, 2) - 72.9) / 83.0
        return halved.reshape(-1, *shape), read(f"{name}-labels-idx1", 8).long()

    inputs, labels = part("train")
    return (inputs[:20_000], labels[:20_000]), (inputs[55_000:], labels[55_000:]), part("t10k")


@cache
def table():
    """A synthetic table with 54 columns and seven classes, the shape of UCI's forest cover types."""
    inputs, labels = make_classification(
        40_000, n_features=54, n_informative=16, n_redundant=12, n_classes=7,
        n_clusters_per_class=5, flip_y=0.02, class_sep=1.5, random_state=0,
    )  # fmt: skip
    sizes = [25_000, 5_000, 10_000]
    return list(zip(torch.tensor(inputs).float().split(sizes), torch.tensor(labels).split(sizes)))


@cache
def text():
    """The documentation of Python's language that comes with it; labels are next characters."""
    topics = "\n".join(pydoc_data.topics.topics.values())
    known = {character: i for i, (character, _) in enumerate(Counter(topics).most_common(79))}
    codes = torch.tensor([known.get(character, len(known)) for character in topics])
    windows = codes[: len(codes) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
    tenth = len(windows) // 10
    validation, test, train = windows[order].split([tenth, tenth, len(windows) - 2 * tenth])
    return [(part[:, :-1].contiguous(), part[:, 1:]) for part in (train, validation, test)]


def convolution(width_in, width, size, stride=1, groups=1):
    layer = nn.Conv2d(width_in, width, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(width))


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width_in, width, stride):
        super().__init__()
        self.first = convolution(width_in, width, 3, stride)
        self.second = convolution(width, width, 3)
        same, widths = width_in == width, (width_in, width)
        self.shortcut = nn.Identity() if same else convolution(*widths, 1, stride)

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


def residual():
    blocks = Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)
    end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    return nn.Sequential(convolution(1, 16, 3), nn.ReLU(), *blocks, *end)


class SqueezeExcitation(nn.Module):
    """Channels weighed by what the whole image shows."""

    def __init__(self, width):
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x):
        return x * F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))


class Inverted(nn.Module):
    """Wider, depthwise, squeezed and excited, narrower again (MobileNetV3)."""

    def __init__(self, width_in, width, stride):
        super().__init__()
        wide = 3 * width_in
        depthwise = convolution(wide, wide, 3, stride, groups=wide)
        self.body = nn.Sequential(
            convolution(width_in, wide, 1), nn.Hardswish(), depthwise, nn.Hardswish(),
            SqueezeExcitation(wide), convolution(wide, width, 1),
        )  # fmt: skip
        self.adds = width_in == width and stride == 1

    def forward(self, x):
        return x + self.body(x) if self.adds else self.body(x)


def mobile():
    blocks = Inverted(16, 32, 1), Inverted(32, 32, 1), Inverted(32, 48, 2), Inverted(48, 48, 1)
    end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 10)
    begin = convolution(1, 16, 3, 2), nn.Hardswish()
    return nn.Sequential(*begin, *blocks, convolution(48, 128, 1), nn.Hardswish(), *end)


class Recurrent(nn.Module):
    """A GRU that reads an image row by row."""

    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(14, 112, batch_first=True), nn.Linear(112, 10)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


class Attention(nn.Module):
    """Causal attention, then a perceptron, each behind a LayerNorm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, wide = heads, 4 * width
        self.to_qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x):
        qkv = self.to_qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1))
        mixed = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.before_perceptron(x))


class Transformer(nn.Module):
    """A language model of characters; the embeddings are the output layer as well."""

    def __init__(self, vocabulary=80, width=64, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Attention(width, 4) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.05)
        nn.init.normal_(self.position.weight, std=0.05)

    def forward(self, codes):
        x = self.embedding(codes) + self.position.weight[: codes.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def perceptron():
    first, second = nn.Linear(54, 256), nn.Linear(256, 128)
    return nn.Sequential(first, nn.ReLU(), nn.Dropout(0.1), second, nn.ReLU(), nn.Linear(128, 7))


def sgd(model, factor):
    options = {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
    return optim.SGD(model.parameters(), 0.1 * factor, **options)


def adam(model, factor):
    return optim.Adam(model.parameters(), 1.5e-3 * factor)


def adamw(model, factor):
    """Biases and norms do not decay."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return optim.AdamW(groups, 3e-3 * factor)


def one_cycle(optimizer, steps):
    return optim.lr_scheduler.OneCycleLR(optimizer, optimizer.param_groups[0]["lr"], steps)


def scheduled(factor):
    """A schedule from a function: of the share of the steps that are done, the factor."""
    return lambda optimizer, steps: optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: factor(step / steps)
    )


def cosine(share):
    return 0.5 + 0.5 * math.cos(math.pi * share)


def warm_up(share):
    return min(20 * share + 1 / 60, 0.1 + 0.9 * cosine(share))


def drops(share):
    return 1.0 if share < 0.6 else 0.2 if share < 0.85 else 0.04


IMAGES, ROWS = partial(fashion, 1, 14, 14), partial(fashion, 14, 14)
STRANGERS = {
    "residual": Stranger("SGD, cosine", 1_000, 64, IMAGES, residual, sgd, scheduled(cosine), flip=True),
    "mobile": Stranger("AdamW, one cycle", 700, 64, IMAGES, mobile, adamw, one_cycle, flip=True),
    "gru": Stranger("Adam, drops", 1_500, 64, ROWS, Recurrent, adam, scheduled(drops), clip=1.0),
    "transformer": Stranger("AdamW, warm-up", 1_200, 16, text, Transformer, adamw, scheduled(warm_up), clip=1.0),
    "table": Stranger("Adam, constant", 4_000, 128, table, perceptron, adam, scheduled(lambda share: 1.0)),
}  # fmt: skip


def train(stranger, model, optimizer, schedule, steps, seed):
    """The loop, the same for all; whoever compresses has attached itself to the optimizer."""
    inputs, labels = stranger.data()[0]
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    model.train()
    for _ in range(steps):
        if len(order) < stranger.batch:
            order = torch.randperm(len(labels), generator=generator)
        rows, order = order[: stranger.batch], order[stranger.batch :]
        batch = inputs[rows]
        if stranger.flip:
            mirrored = torch.rand(len(rows), generator=generator) < 0.5
            batch = torch.where(mirrored[:, None, None, None], batch.flip(-1), batch)
        optimizer.zero_grad()
        F.cross_entropy(model(batch).flatten(0, -2), labels[rows].flatten()).backward()
        if stranger.clip:
            nn.utils.clip_grad_norm_(model.parameters(), stranger.clip)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def accuracy(model, part):
    """Percent of the labels that are right: of images, rows or next characters."""
    model.eval()
    batches = zip(*(tensor.split(500) for tensor in part))
    right = [model(inputs).argmax(-1) == labels for inputs, labels in batches]
    return 100 * torch.cat(right).float().mean().item()
