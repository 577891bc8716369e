"""`pack` of bare checkpoints, without inputs, beside 8, 6 and 4-bit integers with a scale a channel under zstd.

    python benchmarks/packing_data_free.py FOLDER [--only NAME ...] [--json FILE]

FOLDER holds the wheels; `shipped.py` says which, and that espeak-ng is needed. Two small networks are trained here, for a minute. For each width
of the integers: their bytes and the change of the outputs, and the same of `reefknot.pack(..., size=...)` in at most
these bytes. Then `--error`, a bound for every row of every tensor, at four values. Changes are relative errors of all
outputs together. Networks that the JSON file has already are not measured again.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from packing_shipped import integers, loaded
from shipped import NETWORKS, words
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import reefknot
from reefknot.packing.outputs import change_of_outputs

WIDTHS = (8, 6, 4)
ERRORS = (0.2, 0.1, 0.05, 0.02)
WITHOUT = ("PP-OCR recogniser", "PP-OCR detector")


class Residual(nn.Module):
    def __init__(self, width, to, stride):
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(width, to, 3, stride, 1, bias=False),
            nn.Conv2d(to, to, 3, 1, 1, bias=False),
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(to) for _ in range(3))
        self.around = nn.Conv2d(width, to, 1, stride, bias=False)

    def forward(self, x):
        inner = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return F.relu(inner + self.norms[2](self.around(x)))


def trained(model, batch_of, steps):
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(steps):
        inputs, labels = batch_of()
        optimizer.zero_grad()
        F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten()).backward()
        optimizer.step()
    return model.eval()


def residual_cnn(_):
    """A residual network with BatchNorm, on scikit-learn's digits."""
    torch.manual_seed(0)
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = images.float().view(-1, 1, 8, 8) / 16
    blocks = Residual(1, 32, 1), Residual(32, 64, 2), Residual(64, 64, 1), Residual(64, 128, 2)
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))

    def batch():
        chosen = torch.randint(1200, (64,))
        return images[chosen], labels[chosen]

    return trained(model, batch, 300), [(images[1200:],)], None


class Letters(nn.Module):
    """A GRU that predicts the next letter."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, 64), nn.Linear(192, 128)
        self.gru = nn.GRU(64, 192, 2, batch_first=True)

    def forward(self, x):
        return self.head(self.gru(self.embedding(x))[0])


def gru(_):
    torch.manual_seed(0)
    letters = torch.tensor(list(words().encode("ascii", "replace")))
    training, tests = letters[: 9 * len(letters) // 10], letters[9 * len(letters) // 10 :]

    def batch(text=training, count=32):
        places = torch.randint(len(text) - 65, (count,))
        rows = torch.stack([text[n : n + 65] for n in places])
        return rows[:, :-1], rows[:, 1:]

    model = trained(Letters(), batch, 400)
    return model, [(batch(tests, 64)[0],)], None


STRANGERS = {"residual CNN": residual_cnn, "GRU": gru}


def measure(name, model, tests, path):
    rows = []

    def add(way, size, packed, **more):
        found = change_of_outputs(model, packed, tests)
        rows.append({
            "network": name, "weights": sum(v.numel() for v in model.state_dict().values()), "way": way,
            "bytes": size, "change": found.relative_error, "cosine": found.cosine, **more,
        })  # fmt: skip
        print(rows[-1], flush=True)

    def pack(way, **budget):
        packed = reefknot.pack(model, path, **budget)
        add(way, packed.file_bytes, loaded(model, path), **{"worst row": packed.worst_row})

    for width in WIDTHS:
        size, other = integers(model, width)
        add(f"int{width}", size, other, **{"worst row": worst_row(model, other)})
        pack(f"size of int{width}", size=size)
    for error in ERRORS:
        pack(f"--error {error}", error=error)
    return rows


def worst_row(model, other):
    """The largest relative error of a row in any tensor of two dimensions or more."""
    worst = 0.0
    for before, after in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        if before.is_floating_point() and before.dim() > 1:
            norm, lost = (v.flatten(1).double().norm(dim=1) for v in (before, after - before))
            worst = max(worst, float((lost / norm)[norm > 0].max()))
    return worst


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    networks = {name: load for name, load in NETWORKS.items() if name not in WITHOUT} | STRANGERS
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=list(networks), choices=list(networks))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(given.json.read_text()) if given.json and given.json.exists() else []
    for name in given.only:
        if any(row["network"] == name for row in rows):
            continue
        model, tests, _ = networks[name](given.folder)
        model.requires_grad_(False)
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(name, model, tests, Path(folder) / "packed.reef")
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
