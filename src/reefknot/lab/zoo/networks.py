"""The paper's networks, and a small one for the demo.

Takes     nothing: seed torch's global generator before building one.
Gives     `NETWORKS`, a function for each name that builds it, freshly initialised; `INPUTS`, what
          each takes.
Paper     section 4: LeNet-300-100 and LeNet-5-Caffe on MNIST, VGG-16 on CIFAR-10.
Unaware   of data, training and compression.

Each is a plain `nn.Sequential` with readable names: the modules in order are the forward pass.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from reefknot.lab.zoo.local import LocallyConnected2d, LocalMaxPool2d
from reefknot.reference import Input

# Channels of each 3 x 3 convolution, one row for each stage; a stage ends with a 2 x 2 maximum.
_VGG_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class ChannelsLast(nn.Module):
    """Puts images into the memory format channels_last, without changing a value.

    All layers after it keep this format, in which a step of LeNet-5 takes 0.6 of the time, and one
    of VGG-16 0.9.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Images as channels_last; `contiguous` would leave a single channel as it is."""
        return images.to(memory_format=torch.channels_last)


def lenet_300_100() -> nn.Sequential:
    """784-300-100-10 for MNIST; 266,610 parameters."""
    return _perceptron(784, 300, 100, 10)


def digits_mlp() -> nn.Sequential:
    """64-300-100-10, LeNet-300-100 for scikit-learn's small digits; 50,610 parameters."""
    return _perceptron(64, 300, 100, 10)


def lenet_5_caffe() -> nn.Sequential:
    """Caffe's LeNet-5 for MNIST, without activation after its convolutions; 431,080 parameters."""
    return _lenet_5(
        channels_last=ChannelsLast(),
        conv1=nn.Conv2d(1, 20, 5),  # 28 x 28 -> 24 x 24
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(20, 50, 5),  # 12 x 12 -> 8 x 8
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )


def lenet_5_local() -> nn.Sequential:
    """LeNet-5-Caffe with locally connected layers for convolutions; 2,308,230 parameters."""
    return _lenet_5(
        local1=LocallyConnected2d(1, 20, 5, input_size=28),
        pool1=LocalMaxPool2d(2),
        local2=LocallyConnected2d(20, 50, 5, input_size=12),
        pool2=LocalMaxPool2d(2),
        flatten=nn.Flatten(),
    )


def lenet_5_full() -> nn.Sequential:
    """LeNet-5-Caffe with dense layers instead of convolutions; 18,667,910 parameters."""
    return _lenet_5(
        flatten1=nn.Flatten(),
        full1=nn.Linear(28 * 28, 20 * 24 * 24),
        maps1=nn.Unflatten(1, (20, 24, 24)),
        pool1=nn.MaxPool2d(2),
        flatten2=nn.Flatten(),
        full2=nn.Linear(20 * 12 * 12, 50 * 8 * 8),
        maps2=nn.Unflatten(1, (50, 8, 8)),
        pool2=nn.MaxPool2d(2),
        flatten3=nn.Flatten(),
    )


def _lenet_5(**layers: nn.Module) -> nn.Sequential:
    """These layers, which give 50 maps of 4 x 4 as a vector, and both dense layers behind them."""
    dense = {"fc1": nn.Linear(50 * 4 * 4, 500), "relu1": nn.ReLU(), "fc2": nn.Linear(500, 10)}
    return _initialise_(nn.Sequential(OrderedDict(layers | dense)))


def vgg_16(in_stages: Sequence[float] = (), around_dense: float = 0.3) -> nn.Sequential:
    """VGG-16 for CIFAR-10; 14,982,474 parameters in convolutions and dense layers.

    Batch normalisation (9,472 more parameters) is placed as in the CIFAR variant of Liu and Deng
    (2015), which has dropout of 0.3 and 0.4 between convolutions and 0.5 around the dense layer as
    well. By default there is 0.3 around the dense layer alone: more slows a short training down.
    Pools round up, so that images of 16 and 24 pixels fit too.

    Args:
        in_stages: for each stage the dropout between its convolutions; none by default.
        around_dense: the dropout in front of both dense layers.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(channels_last=ChannelsLast())
    in_channels, number = 3, 0
    for stage, widths in enumerate(_VGG_STAGES, start=1):
        for place, channels in enumerate(widths, start=1):
            number += 1
            layers[f"conv{number}"] = nn.Conv2d(in_channels, channels, 3, padding=1)
            layers[f"bn{number}"] = nn.BatchNorm2d(channels)
            layers[f"relu{number}"] = nn.ReLU()
            if in_stages and place < len(widths):
                layers[f"dropout{number}"] = nn.Dropout(in_stages[stage - 1])
            in_channels = channels
        layers[f"pool{stage}"] = nn.MaxPool2d(2, ceil_mode=True)
    layers |= OrderedDict(
        flatten=nn.Flatten(),  # 512 x 1 x 1 after five halvings of 32
        dropout13=nn.Dropout(around_dense),
        fc1=nn.Linear(512, 512),
        bn14=nn.BatchNorm1d(512),
        relu14=nn.ReLU(),
        dropout14=nn.Dropout(around_dense),
        fc2=nn.Linear(512, 10),
    )
    return _initialise_(nn.Sequential(layers))


def vgg_16_dropout() -> nn.Sequential:
    """VGG-16 with the dropout of Liu and Deng, as the paper and Louizos et al. have it."""
    return vgg_16((0.3, 0.4, 0.4, 0.4, 0.4), around_dense=0.5)


def _perceptron(*widths: int) -> nn.Sequential:
    """Dense layers fc1, fc2, ... of these widths with ReLU between them; flattens its input."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number in range(1, len(widths)):
        layers[f"fc{number}"] = nn.Linear(widths[number - 1], widths[number])
        if number < len(widths) - 1:
            layers[f"relu{number}"] = nn.ReLU()
    return _initialise_(nn.Sequential(layers))


def _initialise_(model: nn.Sequential) -> nn.Sequential:
    """Glorot's uniform initialisation for weights, zero for biases."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lenet-300-100": lenet_300_100,
    "lenet-5-caffe": lenet_5_caffe,
    "lenet-5-local": lenet_5_local,
    "lenet-5-full": lenet_5_full,
    "vgg-16": vgg_16,
    "vgg-16-dropout": vgg_16_dropout,
    "digits-mlp": digits_mlp,
}


_MNIST = Input((1, 28, 28), 33.32321478174603, 78.57214909999482)
INPUTS: dict[str, Input] = {
    "lenet-300-100": _MNIST,
    "lenet-5-caffe": _MNIST,
    "vgg-16": Input((3, 32, 32)),
    "vgg-16-dropout": Input((3, 32, 32)),
    "digits-mlp": Input((1, 8, 8), 4.884370170015456, 6.0148847850435345, 16.0),
}
