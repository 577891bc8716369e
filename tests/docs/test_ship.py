"""The sizes told in docs/ship.md are those that the exports write."""

from pathlib import Path

import torch

import reefknot
from reefknot.lab.zoo import INPUTS, NETWORKS

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "ship.md"
RECORDS = {
    "lenet-300-100": "2026-11-17_lenet-300-100_sparse_apt-1770_seed0",
    "lenet-5-caffe": "2026-11-15_lenet-5-caffe_sparse_apt_seed0",
}


def row(network, folder):
    file = ROOT / "experiments" / "records" / RECORDS[network] / "model.reef"
    model, example = NETWORKS[network](), torch.zeros(1, *INPUTS[network].shape)
    onnx = reefknot.export.onnx(file, model, folder / "net.onnx", example).bytes
    small = reefknot.export.safetensors(file, model, folder / "net.safetensors", example).bytes
    dense = 4 * sum(parameter.numel() for parameter in model.parameters())
    sizes = (file.stat().st_size, onnx, small, dense)
    return f"| {network} | " + " | ".join(f"{size:,}" for size in sizes) + " |"


def test_sizes_are_those_that_are_written(tmp_path):
    section = DOCUMENT.read_text().partition("<!-- sizes -->\n")[2].partition("<!-- /sizes -->")[0]
    assert section.splitlines()[2:] == [row(network, tmp_path) for network in RECORDS]
