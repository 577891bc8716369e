"""VGG-16 on CIFAR-10, packed with 1,000 unlabelled images and no training.

    python benchmarks/packing_vgg.py PARENT.safetensors [--draws 0 1 2] [--prices 1.2e-8] [--images 1000]
                                     [--random] [--validation] [--folder FOLDER] [--json FILE]

For each draw of training images (labels are not used) and each price of a bit: the file, everything
counted, and the error on the whole test set. `reefknot.pack(size=...)` finds the price by itself in two to
four such passes; here it is given, so that one pass is enough for a point of the curve. Rows are added to the
JSON file one by one. Settings were chosen on validation images (`--validation` evaluates those only).
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

import reefknot
from reefknot.lab.zoo import DATASETS, NETWORKS
from reefknot.packing.clustering import Settings
from reefknot.packing.inputs import random_batches
from reefknot.packing.network import Packer


@torch.no_grad()
def error(model, part):
    wrong = sum(
        int((model(x).argmax(1) != y).sum())
        for x, y in zip(part.inputs.split(500), part.labels.split(500))
    )
    return 100 * wrong / len(part.labels)


def parent(path):
    model = NETWORKS["vgg-16"]()
    state = load_file(path)
    model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in state.items()})
    return model.eval()


def drawn(data, draw, count):
    """Random training images, without their labels."""
    which = np.random.default_rng(draw).permutation(len(data.train.inputs))[:count]
    return data.train.inputs[which]


def row(model, part, images, draw, price, folder):
    """One file; the draw is None for random inputs of the shape of the images."""
    start = time.time()
    batches = random_batches(model, (images,)) if draw is None else list(images.split(64))
    packer = Packer(model, batches, Settings(), for_inference=True, random=draw is None)
    packer.measure_sensitivity(price)
    packed, _ = packer.at(price)
    path = folder / f"vgg-16-{draw}-{price:g}.reef"
    file_bytes = reefknot.save(reefknot.cluster(packed.state_dict()), path)
    seconds = time.time() - start
    print(f"{path}: {file_bytes:,} bytes after {seconds:.0f} s", flush=True)
    packed.load_state_dict(reefknot.load(path))  # what is measured is what was stored
    weights = sum(p.numel() for n, p in model.named_parameters() if not n.startswith("bn"))
    return {
        "draw": draw, "images": len(images), "price": price, "bytes": file_bytes,
        "bits a weight": 8 * file_bytes / weights, "error %": error(packed.eval(), part),
        "seconds": seconds, "threads": torch.get_num_threads(),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parent", type=Path)
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--prices", type=float, nargs="+", default=[1.2e-8])
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--random", action="store_true", help="random inputs instead of images")
    parser.add_argument(
        "--validation",
        action="store_true",
        help="evaluate validation images instead of test images",
    )
    parser.add_argument("--folder", type=Path, default=Path(), help="where files are written")
    parser.add_argument("--json", type=Path, help="where rows are added")
    given = parser.parse_args()
    data, model = DATASETS["cifar10"](), parent(given.parent)
    part = data.validation if given.validation else data.test
    result = {"parent's error %": error(model, part), "rows": []}
    if given.json and given.json.exists():
        result["rows"] = json.loads(given.json.read_text())["rows"]
    for price in given.prices:
        for draw in [None] if given.random else given.draws:
            images = drawn(data, draw or 0, given.images)
            result["rows"].append(row(model, part, images, draw, price, given.folder))
            print(result["rows"][-1], flush=True)
            if given.json:
                given.json.write_text(json.dumps(result, indent=1) + "\n")
    parent_error = result["parent's error %"]
    print(f"parent: {parent_error} %")


if __name__ == "__main__":
    main()
