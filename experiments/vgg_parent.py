"""Makes the parent of all VGG-16 rows from a trained checkpoint: experiments/vgg-16/parent.reef.

    python -m experiments.vgg_parent vgg-16-cifar10-parent.safetensors

Takes     the checkpoint of a VGG-16 of the zoo.
Gives     the same function in evaluation, packed to 256 values a tensor.

BatchNorm undoes any scaling of the layer in front of it, so the weights of all such layers are
brought to comparable magnitudes first: one codebook and one threshold then suit all of them. The
root mean square falls with the fourth root of the number of weights.
"""

import argparse
import itertools
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

import reefknot
from reefknot.zoo.networks import NETWORKS

PARENT = Path(__file__).parent / "vgg-16" / "parent.reef"
NUM_VALUES = 256
RMS, AT_WEIGHTS, EXPONENT = 0.05, 36_864, -0.25  # 0.05 for a layer of 64 x 64 filters


@torch.no_grad()
def balance_(model: nn.Sequential) -> None:
    """Scale each layer in front of a BatchNorm, and the statistics with it."""
    layers = list(model)
    for layer, norm in itertools.pairwise(layers):
        if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            continue
        assert norm.running_mean is not None and norm.running_var is not None
        rms = RMS * (layer.weight.numel() / AT_WEIGHTS) ** EXPONENT
        factor = rms / layer.weight.square().mean().sqrt()
        for tensor in (layer.weight, layer.bias, norm.running_mean):
            tensor.mul_(factor)
        norm.running_var.mul_(factor.square())


def main() -> None:
    """Read, balance, cluster, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--out", type=Path, default=PARENT)
    options = parser.parse_args()
    model = NETWORKS["vgg-16"]()
    assert isinstance(model, nn.Sequential)
    model.load_state_dict(load_file(options.checkpoint))
    balance_(model)
    reefknot.save(reefknot.cluster(model.state_dict(), NUM_VALUES), options.out)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
