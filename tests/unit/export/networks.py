"""Networks that are no chains, as people write them, for the tests of C and of the page."""

import torch
import torch.nn.functional as F
from torch import nn


def conv(inputs, outputs, kernel=3, stride=1, groups=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Block(nn.Module):
    """A residual block whose shortcut is a convolution, or slices and padding (option A)."""

    def __init__(self, inputs, outputs, stride, option="B"):
        super().__init__()
        self.one, self.two = conv(inputs, outputs, 3, stride), conv(outputs, outputs)
        self.more = outputs - inputs
        self.option = option
        if option == "B" and (stride > 1 or self.more):
            self.shortcut = conv(inputs, outputs, 1, stride)

    def forward(self, x):
        y = self.two(F.relu(self.one(x)))
        if self.option == "A" and self.more:
            side = self.more // 2
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, side, side), "constant", 0)
        elif hasattr(self, "shortcut"):
            x = self.shortcut(x)
        y += x
        return F.relu(y)


class Residual(nn.Module):
    """A small ResNet with global average pooling."""

    def __init__(self, channels=1, option="B", widths=(4, 8)):
        super().__init__()
        first, second = widths
        self.stem = conv(channels, first)
        self.body = nn.Sequential(
            Block(first, first, 1), Block(first, second, 2, option), Block(second, second, 1)
        )
        self.head = nn.Linear(second, 10)

    def forward(self, x):
        x = self.body(F.relu(self.stem(x)))
        return self.head(F.avg_pool2d(x, x.size()[3]).view(x.size(0), -1))


class Squeeze(nn.Module):
    """Squeeze and excitation: a gate for each channel."""

    def __init__(self, channels, gate):
        super().__init__()
        self.down, self.up = nn.Linear(channels, 3), nn.Linear(3, channels)
        self.gate = gate

    def forward(self, x):
        y = self.up(F.relu(self.down(x.mean((2, 3)))))
        return x * self.gate(y)[:, :, None, None]


class Inverted(nn.Module):
    """An inverted residual block: wide, depthwise, gated, narrow."""

    def __init__(self, channels, wide, outputs, stride, gate):
        super().__init__()
        self.keeps = stride == 1 and channels == outputs
        self.layers = nn.Sequential(
            conv(channels, wide, 1), nn.Hardswish(), conv(wide, wide, 3, stride, wide), nn.SiLU(),
            Squeeze(wide, gate), conv(wide, outputs, 1),
        )  # fmt: skip

    def forward(self, x):
        return x + self.layers(x) if self.keeps else self.layers(x)


class Mobile(nn.Module):
    """A small MobileNet with squeeze and excitation."""

    def __init__(self, channels=1):
        super().__init__()
        self.features = nn.Sequential(
            conv(channels, 4, 3, 2), nn.Hardswish(), Inverted(4, 8, 4, 1, nn.Hardsigmoid()),
            Inverted(4, 12, 6, 2, nn.Sigmoid()), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(6, 10))

    def forward(self, x):
        return self.classifier(self.features(x))


class Dense(nn.Module):
    """Channels of all layers side by side, a norm that nothing can hold, a shuffle, two halves."""

    def __init__(self, channels=1):
        super().__init__()
        self.first = nn.Conv2d(channels, 4, 3, 2, 1)
        self.norm = nn.BatchNorm2d(4)
        self.second, self.third = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.last = nn.Conv2d(6, 3, 1)

    def forward(self, x):
        x = self.first(x)
        y = torch.cat([x, self.second(F.relu(self.norm(x)))], 1)
        y = torch.cat([self.third(y), y * 0.5 + 1], dim=1)
        batch, channels, height, width = y.shape
        y = y.view(batch, 2, channels // 2, height, width).transpose(1, 2)
        y = y.reshape(batch, channels, height, width)
        one, two = y.chunk(2, dim=1)
        y = F.elu(one) * torch.sigmoid(two - 0.25)
        y = F.pad(y, (0, 1, 1, 2))[:, :, 1:]
        return F.log_softmax(self.last(y).amax(dim=(2, 3)), 1)


class Cropped(nn.Module):
    """A crop of the input, channels in another order, and both as one vector."""

    def __init__(self, channels=1):
        super().__init__()
        self.last = nn.Linear(4 * 4 * 5, 3)

    def forward(self, x):
        x = x[:, :, 2:10:2, 3:8]
        x = torch.cat([x, x[:, :1]], 1)
        y = x.unflatten(1, (2, 2)).transpose(1, 2).flatten(1, 2)
        return self.last(torch.flatten(y, 1)) + x.mean((2, 3))[:, 1:]


class Perceptron(nn.Module):
    """A sum of vectors, and a gate over places rather than channels."""

    def __init__(self, channels=1):
        super().__init__()
        self.gate, self.one, self.two = nn.Conv2d(channels, 1, 1), nn.Linear(36, 9), nn.Linear(9, 9)
        self.norm = nn.BatchNorm1d(9)

    def forward(self, x):
        x = F.max_pool2d(x, 2)
        x = torch.flatten(x + self.gate(x), 1).tanh()
        x = self.one(x)
        return 1 - self.norm(F.relu(self.two(x)) + x)


def strangers():
    """Name, network, shape of its input."""
    yield "residual", Residual(), (1, 28, 28)
    yield "residual-a", Residual(3, "A"), (3, 16, 16)
    yield "mobile", Mobile(3), (3, 32, 32)
    yield "dense", Dense(3), (3, 12, 10)
    yield "cropped", Cropped(), (3, 12, 12)
    yield "perceptron", Perceptron(), (1, 12, 12)


def ready(model, shape):
    """With statistics that do something, in evaluation, and the sizes that it needs."""
    torch.manual_seed(0)
    model.eval()(torch.zeros(1, *shape))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
    return model
