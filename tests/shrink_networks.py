"""Small networks of many kinds, with random zeros, for the tests of shrinking and of exports."""

import copy
import random

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    """A stem, a block with a sum, a head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.first = nn.Conv2d(4, 6, 3, padding=1)
        self.first_norm = nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 4, 1)
        self.head = nn.Linear(4, 3)
        self.example = torch.rand(1, 3, 8, 8)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        branch = F.relu(self.first_norm(self.first(x)))
        x = F.relu(x + self.second(branch), inplace=True)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Depthwise(nn.Module):
    """Two blocks as in mobile networks: wider, depthwise, narrower; a sum around the second."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            self._block(3, 5, 4),
        )
        self.blocks.append(self._whole(4, 8, 4))
        self.head = nn.Linear(4, 3)
        self.example = torch.rand(1, 3, 9, 9)

    def _whole(self, inputs, wide, outputs):
        return nn.Sequential(*self._block(inputs, wide, outputs))

    def _block(self, inputs, wide, outputs):
        return [
            nn.Conv2d(inputs, wide, 1), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.ReLU6(), nn.Conv2d(wide, outputs, 1), nn.BatchNorm2d(outputs),
        ]  # fmt: skip

    def forward(self, x):
        *first, second = self.blocks
        for layer in first:
            x = layer(x)
        return self.head((x + second(x)).mean((2, 3)))


class Concatenation(nn.Module):
    """Two branches side by side."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(6, 4), nn.Linear(6, 3), nn.Linear(7, 2)
        self.example = torch.rand(1, 6)

    def forward(self, x):
        return self.head(torch.cat([torch.tanh(self.left(x)), F.relu(self.right(x))], 1))


class TransformerMlp(nn.Module):
    """The second half of a transformer's block: norm, wide layer, GELU, narrow layer, sum."""

    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(6), nn.Linear(6, 12), nn.Linear(12, 6)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(6, 2)
        self.example = torch.rand(1, 5, 6)

    def forward(self, x):
        x = x + self.dropout(self.narrow(F.gelu(self.wide(self.norm(x)))))
        return self.head(x)


class Grouped(nn.Module):
    """Groups of several channels, in one dimension; views by numbers instead of flatten."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(2, 8, 3)
        self.second = nn.Conv1d(8, 12, 3, groups=4, stride=2)
        self.pool = nn.AvgPool1d(2)
        self.prelu = nn.PReLU(12)
        self.head = nn.Linear(12 * 3, 3)
        self.example = torch.rand(1, 2, 18)

    def forward(self, x):
        x = self.prelu(self.second(torch.sigmoid(self.first(x))))
        return self.head(self.pool(x).view(-1, 36))


class Shuffled(nn.Module):
    """Channels shuffled between groups, by a view whose numbers are partly computed; a gate."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1, groups=2)
        self.gate, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.example = torch.rand(1, 3, 4, 4)

    def forward(self, x):
        x = F.relu(self.first(x))
        size, _, height, width = x.shape
        x = x.view(size, 2, 4, height, width).transpose(1, 2).reshape(size, 8, height, width)
        x = self.second(x)
        x = x * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
        return self.head(x.mean((2, 3)))


def _mlp():
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3)
    )
    model.example = torch.rand(1, 1, 4, 4)
    return model


NETWORKS = {
    "perceptron": _mlp,
    "residual": Residual,
    "depthwise": Depthwise,
    "concatenation": Concatenation,
    "transformer mlp": TransformerMlp,
    "grouped": Grouped,
    "shuffled": Shuffled,
}


def build(model):
    """Another model like this one."""
    return copy.deepcopy(model)


def sparsified(model, seed):
    """The model with random statistics, and with rows, columns and single elements zero."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.rand(shape, generator=random)

    with torch.no_grad():
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                parameter.copy_(2 * draw(*parameter.shape) - 1)
                if parameter.ndim > 1:
                    parameter[draw(len(parameter)) < 0.3] = 0
                    parameter[:, draw(parameter.shape[1]) < 0.3] = 0
                parameter[draw(*parameter.shape) < 0.3] = 0
            for name, buffer in module.named_buffers(recurse=False):
                if name == "running_mean":
                    buffer.copy_(2 * draw(*buffer.shape) - 1)
                if name == "running_var":
                    buffer.copy_(0.5 + draw(*buffer.shape))
    return model


class Random(nn.Module):
    """A random network: convolutions of all sorts, sums, concatenations, then dense layers."""

    def __init__(self, choose):
        super().__init__()
        self.plan, channels = [], choose.choice((1, 2, 3))
        self.example = torch.randn(2, channels, 7, 7)
        for number in range(choose.randint(1, 4)):
            kind = choose.choice(
                ("plain", "plain", "padded", "depthwise", "grouped", "sum", "both")
            )
            width = choose.choice((2, 4, 6))
            self.plan.append(
                (number, kind, choose.choice(("relu", "tanh", "sigmoid", "none", "gelu")))
            )
            if kind == "depthwise":
                layer = nn.Conv2d(
                    channels, channels * choose.choice((1, 2)), 3, padding=1, groups=channels
                )
            elif kind == "grouped" and channels % 2 == 0:
                layer = nn.Conv2d(channels, width, 1, groups=2, bias=choose.random() < 0.5)
            elif kind == "sum":
                layer = nn.Conv2d(channels, channels, 3, padding=1)
            elif kind == "both":
                layer = nn.Conv2d(channels, width, 1)
            elif kind == "padded":
                layer = nn.Conv2d(
                    channels, width, 3, padding=1, padding_mode=choose.choice(("zeros", "reflect"))
                )
            else:
                layer = nn.Conv2d(channels, width, choose.choice((1, 2)))
            self.add_module(f"conv{number}", layer)
            if choose.random() < 0.5:
                self.add_module(f"norm{number}", nn.BatchNorm2d(layer.out_channels))
            channels = layer.out_channels + (channels if kind == "both" else 0)
        self.pool = choose.choice(
            (
                nn.MaxPool2d(2),
                nn.AvgPool2d(3, 2, 1),
                nn.AdaptiveAvgPool2d(2),
                nn.MaxPool2d(2, 2, 1, ceil_mode=True),
                nn.Identity(),
            )
        )
        with torch.no_grad():
            features = self._features(self.example).flatten(1).shape[1]
        self.hidden = nn.Linear(features, choose.choice((3, 8)), bias=choose.random() < 0.8)
        self.out = nn.Linear(self.hidden.out_features, 3)

    def _features(self, x):
        for number, kind, activation in self.plan:
            before, x = x, getattr(self, f"conv{number}")(x)
            if hasattr(self, f"norm{number}"):
                x = getattr(self, f"norm{number}")(x)
            x = {
                "relu": F.relu,
                "tanh": torch.tanh,
                "sigmoid": torch.sigmoid,
                "gelu": F.gelu,
                "none": lambda x: x,
            }[activation](x)
            if kind == "sum":
                x = x + before
            if kind == "both":
                x = torch.cat([before, x], 1)
        return self.pool(x)

    def forward(self, x):
        return self.out(F.relu(self.hidden(self._features(x).flatten(1))))


def random_network(seed):
    """A random network with random zeros; the same for the same seed."""
    torch.manual_seed(seed)
    return sparsified(Random(random.Random(seed)), seed)
