"""Packs the record of a large dense network, which would be too large to be committed.

Takes     a record's folder: record.json, config.toml, and model.reef with every weight exact.
Gives     model.reef at 256 values a tensor, and a record.json that tells what this file has: its
          errors, its bytes. `val_error_soft` is the validation error before.

BatchNorm undoes any scaling of the layer in front of it, so the weights of all such layers are
brought to comparable magnitudes first: one codebook and one threshold then suit all of them. The
root mean square falls with the fourth root of the number of weights.
"""

import itertools
from pathlib import Path

import torch
from torch import nn

import reefknot
from reefknot.format import open_state
from reefknot.lab.report import read_record
from reefknot.lab.runs.config import read_config
from reefknot.lab.runs.journal import write_record
from reefknot.lab.runs.parts import network_and_data
from reefknot.lab.runs.run import measured

NUM_VALUES = 256
RMS, AT_WEIGHTS, EXPONENT = 0.05, 36_864, -0.25  # 0.05 for a layer of 64 x 64 filters


def pack(folder: Path) -> None:
    """Pack the file of a record, and measure it again."""
    file, config = folder / "model.reef", read_config(folder / "config.toml")
    model, data = network_and_data(config)
    model.load_state_dict(reefknot.load(file))
    if isinstance(model, nn.Sequential):
        balance_(model)
    reefknot.save(reefknot.cluster(model.state_dict(), NUM_VALUES), file)
    state, record = open_state(file), read_record(folder)
    model.load_state_dict(reefknot.load(file))
    record["val_error_soft"] = record["val_error"]
    record |= measured(config, model, data, state, file.stat().st_size)
    write_record(folder, record)


@torch.no_grad()
def balance_(model: nn.Sequential) -> None:
    """Scale each layer in front of a BatchNorm, and the statistics with it."""
    for layer, norm in itertools.pairwise(model):
        if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            continue
        assert norm.running_mean is not None and norm.running_var is not None
        rms = RMS * (layer.weight.numel() / AT_WEIGHTS) ** EXPONENT
        factor = rms / layer.weight.square().mean().sqrt()
        for tensor in (layer.weight, layer.bias, norm.running_mean):
            tensor.mul_(factor)
        norm.running_var.mul_(factor.square())
