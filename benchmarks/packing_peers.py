"""Other ways to pack the same VGG-16 without training: bytes and error, beside `packing_vgg.py`.

    python benchmarks/packing_peers.py PARENT.safetensors [--nncodec PYTHON] [--draw 0] [--json FILE]

Rows: `pack --clusters` with 16 and 256 values per tensor; symmetric 8-bit and 4-bit integers with a scale for
each output channel, codes and scales under zstd -19; and bitstreams of NNCodec (the ISO standard: dependent
quantization, DeepCABAC) with one QP for all matrices or with steps relative to their sizes. All of them get
BatchNorm statistics that are estimated again from the same 1,000 unlabelled training images, as ours do.
Everything that is not a weight matrix is counted, too: NNCodec codes it, for the integers it is float32 under
zstd -19. Rows are added to the JSON file one by one; those it has already are not measured again.
"""

import argparse
import copy
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
import zstandard
from packing_vgg import drawn, error, parent

import reefknot
from reefknot.lab.zoo import DATASETS

HELPER = Path(__file__).with_name("nncodec_file.py")
NNCODEC = ("-40", "-36", "-32", "-28", "-24", "0.5rms", "1.0rms", "1.5rms")  # -32 is its default


def is_matrix(value):
    return value.is_floating_point() and value.dim() > 1


def compressed(*arrays):
    return len(zstandard.ZstdCompressor(19).compress(b"".join(a.tobytes() for a in arrays)))


def rest(model):
    """Everything that is not a matrix, in float32, except the counts of batches."""
    return [v.numpy() for v in model.state_dict().values() if v.is_floating_point() and v.dim() < 2]


def integers(model, bits):
    """Symmetric integers, a scale for each output channel."""
    codes, scales = [], []
    most = 2 ** (bits - 1) - 1
    for value in model.state_dict().values():
        if is_matrix(value):
            scale = value.flatten(1).abs().amax(1).clamp_min(1e-12) / most
            by_row = scale.view(-1, *[1] * (value.dim() - 1))
            code = (value / by_row).round()
            value.copy_(code * by_row)
            codes.append(code.to(torch.int8).numpy())
            scales.append(scale.numpy())
    return lambda: compressed(*codes) + compressed(*scales, *rest(model))


def through_nncodec(model, how, python):
    """A bitstream of NNCodec: with one QP, or with steps relative to the size of each matrix."""
    state = model.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        tensors, decoded = Path(folder) / "tensors.npz", Path(folder) / "decoded.npz"
        np.savez(tensors, **{n: v.numpy() for n, v in state.items() if v.is_floating_point()})
        command = [python, HELPER, tensors, decoded, how]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        with np.load(decoded) as found:
            for name in found.files:
                state[name].copy_(torch.from_numpy(found[name]))
    return lambda: int(done.stdout)


def clustered(model, values):
    state = reefknot.cluster(model.state_dict(), num_clusters=values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.reef"
        reefknot.save(state, path)
        model.load_state_dict(reefknot.load(path))

    def count():
        with tempfile.TemporaryDirectory() as folder:  # with the statistics as they are now
            state = reefknot.cluster(model.state_dict(), num_clusters=values)
            return reefknot.save(state, Path(folder) / "m.reef")

    return count


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parent", type=Path)
    parser.add_argument("--nncodec", help="the Python of an environment that has nncodec")
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    data, model = DATASETS["cifar10"](), parent(given.parent)
    images = drawn(data, given.draw, 1000)
    ways = {
        "`pack --clusters 256`": lambda m: clustered(m, 256),
        "`pack --clusters 16`": lambda m: clustered(m, 16),
        "int8, a scale a channel, zstd": lambda m: integers(m, 8),
        "int4, a scale a channel, zstd": lambda m: integers(m, 4),
    }
    if given.nncodec:
        for how in NNCODEC:
            named = f"steps of {how[:-3]} rms" if how.endswith("rms") else f"a QP of {how}"
            ways[f"NNCodec, {named}"] = lambda m, how=how: through_nncodec(m, how, given.nncodec)
    weights = sum(p.numel() for n, p in model.named_parameters() if not n.startswith("bn"))
    found = given.json and given.json.exists()
    rows = json.loads(given.json.read_text()) if found else []
    for name, way in ways.items():
        if any(row["way"] == name for row in rows):
            continue
        packed = copy.deepcopy(model)
        with torch.no_grad():
            count = way(packed)
        reefknot.update_batchnorm(packed, images.split(100))
        size = count()
        rows.append({
            "way": name, "bytes": size, "bits a weight": 8 * size / weights,
            "error %": error(packed.eval(), data.test),
        })  # fmt: skip
        print(rows[-1], flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
