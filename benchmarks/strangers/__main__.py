"""Networks that are none of ours, trained to a size from the README alone, beside the obvious rival.

    python -m benchmarks.strangers [--networks residual,gru] [--ratios 10,30,100,300] [--seeds 3] [--start scratch]
                                   [--schedule own] [--longer 1] [--again] [--rivals 3] [--json FILE]

Takes     an environment with reefknot, scikit-learn and zstandard, and Debian's package dataset-fashion-mnist.
Gives     a line for each point, and benchmarks/results/strangers.json; points that are there are not run again.

The target is the float32 size of all parameters over the ratio. The rival has the same loop, steps and target; what of
it is better on validation data with the first seed (int4 or, at small ratios, int8; magnitudes or LAMP) is used with
the others; `--rivals 1` tries int4 and magnitudes alone, `--rivals 0` none. `--again` runs our side anew, after a change
of reefknot, and keeps the rival. `--schedule tie` is `tie.lr_scheduler` instead of the network's own, `--longer 3` three
times the steps. Seconds are of the processor.
"""

import argparse
import json
import logging
import platform
import tempfile
import time
from pathlib import Path

import torch
from benchmarks.strangers.networks import STRANGERS, accuracy, train
from benchmarks.strangers.rival import PrunedThenQuantized, decode
from safetensors.torch import load_file, save_file

import reefknot

ROOT = Path(__file__).parents[2]
DENSE = ROOT / ".bench" / "strangers"  # trained networks are kept there
POINT = ("network", "start", "ratio", "seed", "steps", "schedule")
GENTLER = 0.3  # learning rate from a trained start, relative to one from scratch
RIVALS = [(4, "magnitude"), (4, "LAMP"), (8, "magnitude")]  # bits of a weight, and scores
LARGEST_INT8 = 10  # the ratio up to which all of them are tried; beyond it int4 buys more weights
NOT_NEWS = (
    "compiling loops",
    "not tied",
    "reefknot: reading",
)  # of time, and of what is kept exact


def fresh(point, stranger, other=0):
    torch.manual_seed(point["seed"] + other)
    return stranger.model()


def trained(point, stranger):
    """The dense network, trained as its owner does and kept for the next call."""
    path = DENSE / f"{point['network']}-{stranger.steps}-{point['seed']}.safetensors"
    model = fresh(point, stranger)
    if not path.exists():
        optimizer = stranger.optimizer(model, 1.0)
        schedule = stranger.schedule(optimizer, stranger.steps)
        train(stranger, model, optimizer, schedule, stranger.steps, point["seed"])
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({key: value.clone() for key, value in model.state_dict().items()}, path)
    model.load_state_dict(load_file(path))
    return model


def begun(point, stranger):
    """Model and optimizer as training to a size finds them."""
    from_scratch = point["start"] == "scratch"
    model = (fresh if from_scratch else trained)(point, stranger)
    return model, stranger.optimizer(model, 1.0 if from_scratch else GENTLER)


class Heard(logging.Handler):
    """The lines of reefknot's log."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        line = f"{record.levelname}: {record.getMessage()}"
        self.lines += [] if any(words in line for words in NOT_NEWS) else [line]

    def announced(self):
        return any(line.startswith(("WARNING", "ERROR")) for line in self.lines)


def ours(point, stranger, target):
    """As in the README: two numbers, the own loop, `update_batchnorm`, `finish()`, `save`, `load`."""
    model, optimizer = begun(point, stranger)
    steps, train_inputs, begin = point["steps"], stranger.data()[0][0], time.process_time()
    more = {"begin": "trained"} if point["start"] == "trained" else {}
    heard, log = Heard(), logging.getLogger("reefknot")
    log.setLevel(logging.INFO)
    log.handlers = [heard]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.reef"
        try:
            tie = reefknot.SparseAPT(model, target_bytes=target, steps=steps, **more)
            tie.attach(optimizer)
            own = point["schedule"] == "own"
            schedule = stranger.schedule(optimizer, steps) if own else tie.lr_scheduler(optimizer)
            train(stranger, model, optimizer, schedule, steps, point["seed"])
            if any(isinstance(layer, torch.nn.BatchNorm2d) for layer in model.modules()):
                batches = train_inputs[: 100 * stranger.batch].split(stranger.batch)
                reefknot.update_batchnorm(model, batches)
            reefknot.save(tie.finish(), path)
        except reefknot.ReefknotError as error:
            heard.lines.append(f"ERROR: {error}")
            return {"bytes": None, "announced": True, "log": heard.lines}
        seconds, size = time.process_time() - begin, path.stat().st_size
        model = fresh(point, stranger, 1)
        model.load_state_dict(reefknot.load(path))
    validation, test = (accuracy(model, part) for part in stranger.data()[1:])
    row = {"bytes": size, "ours": test, "ours validation": validation, "seconds": seconds}
    return row | {"announced": heard.announced(), "log": heard.lines}


def rival(point, stranger, limit, bits, scoring):
    """The rival's file decoded and evaluated."""
    (model, optimizer), begin = begun(point, stranger), time.process_time()
    steps = point["steps"]
    pruned = PrunedThenQuantized(model, optimizer, steps, limit, point["start"], bits, scoring)
    train(stranger, model, optimizer, stranger.schedule(optimizer, steps), steps, point["seed"])
    data, seconds = pruned.finish(), time.process_time() - begin
    model = fresh(point, stranger, 1)
    decode(model, data)
    validation, test = (accuracy(model, part) for part in stranger.data()[1:])
    row = {"rival bytes": len(data), "rival kind": [bits, scoring], "rival seconds": seconds}
    return row | {"rival": test, "rival validation": validation}


def run(point, before, choice, options):
    """The row of a point; what an earlier run has found is taken from it, and the choice of a rival."""
    stranger, row = STRANGERS[point["network"]], before
    if not before or options.again:
        model = trained(point, stranger)
        size, dense = (
            4 * sum(p.numel() for p in model.parameters()),
            accuracy(model, stranger.data()[2]),
        )
        row = point | {"float32 bytes": size, "target": size // point["ratio"], "dense": dense}
        row |= ours(point, stranger, row["target"])
    if "rival" in before:
        return row | {key: value for key, value in before.items() if key.startswith("rival")}
    if not options.rivals:
        return row
    kinds = RIVALS if point["ratio"] <= LARGEST_INT8 else RIVALS[:2]
    tried = [choice] if choice else kinds[: options.rivals]
    rivals = [rival(point, stranger, row["target"], *kind) for kind in tried]
    return row | max(rivals, key=lambda found: found["rival validation"])


def told(row):
    """One line."""
    point = f"{row['network']} {row['start']} {row['ratio']}x seed {row['seed']}"
    own = f"{row['ours']:.2f} with {row['bytes']:,}" if row["bytes"] else "refused"
    what = f"{point}: dense {row['dense']:.2f}, ours {own} of {row['target']:,} bytes"
    if "rival" in row:
        bits, scoring = row["rival kind"]
        what += f", rival {row['rival']:.2f} with {row['rival bytes']:,} (int{bits}, {scoring})"
    return what + f", {row.get('seconds', 0):.0f} s{', announced' if row['announced'] else ''}"


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", default=",".join(STRANGERS))
    parser.add_argument("--ratios", default="10,30,100,300")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--start", default="scratch,trained")
    parser.add_argument("--schedule", choices=("own", "tie"), default="own")
    parser.add_argument("--longer", type=float, default=1.0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--rivals", type=int, default=len(RIVALS), help="how many kinds are tried")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/strangers.json")
    return parser.parse_args()


def points(options):
    for seed in range(options.seeds):
        for start in options.start.split(","):
            for ratio in map(int, options.ratios.split(",")):
                for name in options.networks.split(","):
                    steps = round(options.longer * STRANGERS[name].steps)
                    yield dict(zip(POINT, (name, start, ratio, seed, steps, options.schedule)))


def main():
    options = parsed()
    torch.set_num_threads(1)
    rows = json.loads(options.json.read_text())["rows"] if options.json.exists() else []
    found = {tuple(row[key] for key in POINT): row for row in rows}
    for point in points(options):
        key = tuple(point.values())
        before = found.get(key, {})
        if before and not options.again and (not options.rivals or "rival" in before):
            continue
        first = found.get(tuple((point | {"seed": 0}).values()), {}) if point["seed"] else {}
        found[key] = run(point, before, first.get("rival kind"), options)
        print(told(found[key]), flush=True)
        versions = {"torch": torch.__version__, "python": platform.python_version()}
        result = {"versions": versions, "rows": list(found.values())}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
