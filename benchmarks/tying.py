"""What tying costs in the training step, the loop, the refit and memory, beside other tools.

    python benchmarks/tying.py [--json FILE] [--quick] [--parts memory,steps,loop,refits]

Takes     an environment with reefknot and the peers (coremltools, flash1dkmeans, kmeans1d, scikit-learn);
          one that is not there is left out.
Gives     tables as Markdown on standard output, and everything as JSON.

Steps are ratios to the same step without tying: the variants take turns of some steps each, so that a busy machine
slows all of them alike, and the result is the median ratio of all turns, with quartiles. A peer that needs more
than two minutes, or would need more than 8 GB, is listed as such.
"""

import argparse
import contextlib
import gc
import json
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import reefknot
from reefknot.lab.zoo import NETWORKS

LIMIT_SECONDS = 120
RECORDS = Path(__file__).parents[1] / "experiments" / "records"
SLOW = ("naive autograd", "Gaussian mixture", "coremltools DKM")
INPUTS = {"lenet-300-100": (1, 28, 28), "lenet-5-caffe": (1, 28, 28), "vgg-16": (3, 32, 32)}


# -- steps ----------------------------------------------------------------------------------


def trainer(network, prepare, make, batch_size=128):
    """A function that runs one training step of a fresh network, and what must be kept alive."""
    torch.manual_seed(0)
    model = NETWORKS[network]()
    inputs = torch.randn(batch_size, *INPUTS[network])
    labels = torch.randint(0, 10, (batch_size,))
    model, optimizer, penalty, after = prepare(model, make)

    def step():
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        if penalty is not None:
            loss = loss + penalty()
        loss.backward()
        optimizer.step()
        after()

    return step


def sgd(model, *more):
    return torch.optim.SGD([*model.parameters(), *more], lr=0.01, momentum=0.9)


def adadelta(model, *more):
    return torch.optim.Adadelta([*model.parameters(), *more], lr=1.0)


OPTIMIZERS = {"adadelta": adadelta, "sgd": sgd}


def plain(model, make):
    return model, make(model), None, lambda: None


def soft(model, make):
    optimizer = make(model)
    reefknot.SparseAPT(model, refit_every=1000).attach(optimizer)
    return model, optimizer, None, lambda: None


def hard(model, make):
    optimizer = make(model)
    reefknot.SparseAPT(model).attach(optimizer).harden()
    return model, optimizer, None, lambda: None


def hard_sparse(model, make):
    """Hard tying of a sparse network: nearly all weights are zero, and their blocks are skipped."""
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for path in sorted(RECORDS.glob("*sparse_apt*/model.reef")):
        state = reefknot.load(path)
        if {name: tuple(value.shape) for name, value in state.items()} == shapes:
            model.load_state_dict(state)
            return hard(model, make)
    raise FileNotFoundError("no record of this network")


def straight_through(model, make):
    """The phase `commit` of a budget: the network runs on tied values, latent weights are trained."""
    optimizer = make(model)
    tie = reefknot.SparseAPT(model, target_density=0.03, steps=100_000)
    tie.attach(optimizer)
    while tie.stats()["phase"] != "commit":
        tie.advance()
    return model, optimizer, None, lambda: None


def naive(model, make, k=17):
    """The k-means penalty and L1 by autograd, as written down in the paper: O(N·K)."""
    weights = list(model.parameters())
    low = min(float(w.detach().min()) for w in weights)
    high = max(float(w.detach().max()) for w in weights)
    centers = torch.linspace(low, high, k)

    def penalty():
        flat = torch.cat([w.flatten() for w in weights])
        nearest = (flat[:, None] - centers[None, :]).square().min(1).values
        return 1e-5 / 2 * nearest.sum() + 1e-4 * flat.abs().sum()

    return model, make(model), penalty, lambda: None


def mixture(model, make, k=17):
    """A Gaussian mixture prior as in Soft Weight Sharing: -log p(w) with learned components."""
    weights = list(model.parameters())
    means = nn.Parameter(torch.linspace(-0.6, 0.6, k))
    log_precisions = nn.Parameter(torch.full((k,), 5.0))
    logits = nn.Parameter(torch.zeros(k))

    def penalty():
        flat = torch.cat([w.flatten() for w in weights])
        away = (flat[:, None] - means[None, :]).square() * log_precisions.exp()
        log_p = torch.log_softmax(logits, 0) + 0.5 * (log_precisions - away)
        return -1e-6 * torch.logsumexp(log_p, 1).sum()

    return model, make(model, means, log_precisions, logits), penalty, lambda: None


def dkm(model, make):
    """coremltools' differentiable k-means palettizer with 16 values a tensor."""
    from coremltools.optimize.torch.palettization import DKMPalettizer, DKMPalettizerConfig

    config = DKMPalettizerConfig.from_dict({"global_config": {"n_bits": 4, "milestone": 0}})
    palettizer = DKMPalettizer(model, config)
    model = palettizer.prepare(inplace=True)
    return model, make(model), None, palettizer.step


def step_rows(network, optimizer, variants, turns, steps_a_turn):
    """The ratio of each variant's step to the plain one, all taking turns."""
    make = OPTIMIZERS[optimizer]
    named = {"network": network, "optimizer": optimizer}
    steps = {"plain": trainer(network, plain, make)}
    rows = []
    for name, prepare in variants.items():
        try:
            steps[name] = trainer(network, prepare, make)
            steps[name]()
        except Exception as error:  # a peer may be missing or unable; that is a result too
            steps.pop(name, None)
            rows.append(named | {"variant": name, "note": f"{type(error).__name__}"})
    seconds = {name: [] for name in steps}
    for _ in range(turns):
        for name, step in steps.items():
            step()  # brings its memory back into the caches
            count = 1 if name in SLOW else steps_a_turn
            begin = time.perf_counter()
            for _ in range(count):
                step()
            seconds[name].append((time.perf_counter() - begin) / count)
    base = np.array(seconds["plain"])
    tying = np.median(np.array(seconds.get("soft tying", base)) - base)
    for name, taken in seconds.items():
        ratio = np.array(taken) / base
        low, middle, high = np.percentile(ratio, [25, 50, 75])
        row = named | {
            "variant": name, "ms": 1e3 * float(np.median(taken)),
            "ratio": float(middle), "ratio 25 %": float(low), "ratio 75 %": float(high),
        }  # fmt: skip
        if name in SLOW:
            row["adds, of what soft tying adds"] = float(np.median(np.array(taken) - base) / tying)
        rows.append(row)
    return rows


# -- the loop -------------------------------------------------------------------------------


class Stopwatch:
    """Adds up the time inside the outermost calls of some functions."""

    def __init__(self):
        self.seconds, self.depth = 0.0, 0

    def around(self, function):
        def timed(*args, **kwargs):
            self.depth += 1
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.depth -= 1
                if not self.depth:
                    self.seconds += time.perf_counter() - begin

        return timed


def loop_row(steps=2000):
    """The share of `reefknot run` that goes into forward, backward and optimizer (tying included)."""
    from reefknot.lab.runs import training
    from reefknot.lab.runs.config import make_config
    from reefknot.lab.runs.run import run

    config = make_config({
        "model": "lenet-300-100", "data": "mnist", "method": "sparse_apt", "evaluate_test": False,
        "training": {"soft_steps": steps, "hard_steps": steps // 4, "threads": torch.get_num_threads()},
    })  # fmt: skip
    watch = Stopwatch()
    held = nn.Module.__call__, torch.Tensor.backward
    torch.optim.Adadelta([torch.zeros(1)])  # torch puts the hooks around `step` at the first use
    optimizer, loss = torch.optim.Adadelta.step, training.cross_entropy
    nn.Module.__call__ = watch.around(held[0])
    torch.Tensor.backward = watch.around(held[1])
    torch.optim.Adadelta.step = watch.around(optimizer)
    torch.optim.Adadelta.step.hooked = True  # and not again
    training.cross_entropy = watch.around(loss)
    try:
        with tempfile.TemporaryDirectory() as folder:
            record = run(config, Path(folder) / "run")
    finally:
        nn.Module.__call__, torch.Tensor.backward = held
        torch.optim.Adadelta.step, training.cross_entropy = optimizer, loss
    whole = record["seconds"]
    return {"steps": steps + steps // 4, "seconds": whole, "share": watch.seconds / whole}


# -- refits ---------------------------------------------------------------------------------


def ours_cold(values, k, start):
    return reefknot.kmeans1d(values, k)


def last_centers(values, k):
    """Centers as some steps after a refit: near the optimum, but not at it."""
    found = reefknot.kmeans1d(values, k).centers
    return found * np.random.default_rng(1).normal(1, 0.01, len(found))


def ours_warm(values, k, start):
    return reefknot.kmeans1d(values, k, centers=start)


def sorted_lloyd(values, k, start):
    """The paper's own way: sort, then binary searches for the boundaries."""
    from reefknot.kernels import kmeans1d

    line = kmeans1d._Line.of(values, None, "l2")
    starts = line.lloyd(np.sort(start), k, 100)
    return line.centers(starts), np.searchsorted(line.points[starts[1:]], values, side="right")


def flash(values, k, start):
    import flash1dkmeans

    centers, labels = flash1dkmeans.kmeans_1d(values, k, max_iter=100)
    return centers, labels


def kmeans1d_package(values, k, start):
    import kmeans1d

    found = kmeans1d.cluster(values, k)
    return np.array(found.centroids), np.array(found.clusters)


def scikit_learn(values, k, start):
    from sklearn.cluster import KMeans

    found = KMeans(k, init=np.sort(start)[:, None], n_init=1, max_iter=100).fit(values[:, None])
    return found.cluster_centers_[:, 0], found.labels_


REFITS = {
    "reefknot, cold": ours_cold,
    "reefknot, warm": ours_warm,
    "sorted, warm": sorted_lloyd,
    "flash1dkmeans": flash,
    "kmeans1d (exact)": kmeans1d_package,
    "scikit-learn KMeans, warm": scikit_learn,
}


class TooLong(BaseException):
    pass


def timed(call):
    """Seconds and result, or None after the limit."""

    def stop(*_):
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_SECONDS)
    try:
        begin = time.perf_counter()
        result = call()
        return time.perf_counter() - begin, result
    except TooLong:
        return None
    finally:
        signal.alarm(0)


def distortion(values, centers, assignment):
    """The mean squared distance, in chunks so that it needs little memory."""
    total = 0.0
    for begin in range(0, len(values), 1 << 20):
        piece = slice(begin, begin + (1 << 20))
        total += float(((values[piece] - np.asarray(centers)[assignment[piece]]) ** 2).sum())
    return total / len(values)


def refit_rows(sizes, clusters, repeats=3):
    rows, given_up = [], {}
    for refit in REFITS.values():  # some compile themselves at the first use
        with contextlib.suppress(Exception):
            refit(np.linspace(-1, 1, 1000, dtype=np.float32), 4, np.linspace(-1, 1, 4))
    for size in sizes:
        values = (np.random.default_rng(0).standard_t(4, size) * 0.05).astype(np.float32)
        for k in clusters:
            start = last_centers(values, k)
            exact = None
            if size <= 10**6:
                exact = distortion(values, *reefknot.kmeans1d(values, k, exact=True))
            for name, refit in REFITS.items():
                row = {"N": size, "K": k, "method": name}
                too_large = name == "kmeans1d (exact)" and size * k * 8 > 8e9
                if too_large or size * k >= given_up.get(name, np.inf):
                    rows.append(row | {"note": "over 2 minutes or 8 GB"})
                    continue
                gc.collect()
                try:
                    runs = [timed(lambda r=refit, v=values, n=k, s=start: r(v, n, s))]
                    while runs[-1] and len(runs) < repeats and runs[-1][0] < 5:
                        runs.append(timed(lambda r=refit, v=values, n=k, s=start: r(v, n, s)))
                except Exception as error:  # a peer may be missing
                    rows.append(row | {"note": type(error).__name__})
                    continue
                if runs[-1] is None:
                    given_up[name] = size * k
                    rows.append(row | {"note": "over 2 minutes"})
                    continue
                taken = [1e3 * seconds for seconds, _ in runs]
                row |= {"ms": min(taken), "slowest ms": max(taken)}
                row["distortion"] = distortion(values, *runs[-1][1])
                if exact:
                    row["over the optimum %"] = 100 * (row["distortion"] / exact - 1)
                rows.append(row)
                del runs
    return rows


# -- memory ---------------------------------------------------------------------------------


def memory_rows(weights=40_000_000):
    """The peak of a process that trains with and without tying, in bytes per weight, refit included."""
    code = """
import sys, torch, reefknot
def train(rows, tied):
    model = torch.nn.Linear(4000, rows, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if tied:
        reefknot.SparseAPT(model, refit_every=2).attach(optimizer)
    x = torch.randn(4, 4000)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
train(20, True)  # what the compiler and the loops themselves take is in both figures
train(int(sys.argv[1]) // 4000, sys.argv[2] == "tied")
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(int(line.split()[1]) * 1024)
"""
    peaks = {}
    for kind in ("plain", "tied"):
        run = subprocess.run(
            [sys.executable, "-c", code, str(weights), kind],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks[kind] = int(run.stdout)
    more = (peaks["tied"] - peaks["plain"]) / weights
    return [{"weights": weights, "plain MB": peaks["plain"] / 1e6, "tied MB": peaks["tied"] / 1e6,
             "more bytes a weight": more}]  # fmt: skip


def table(rows):
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        cells = [row.get(column, "") for column in columns]
        shown = [f"{c:.4g}" if isinstance(c, float) else f"{c:,}" if isinstance(c, int) else c
                 for c in cells]  # fmt: skip
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines)


def all_steps(quick):
    ours = {
        "soft tying": soft, "straight-through": straight_through, "hard tying": hard,
        "hard tying, a sparse net": hard_sparse,
    }  # fmt: skip
    peers = {"naive autograd": naive, "Gaussian mixture": mixture, "coremltools DKM": dkm}
    turns = 5 if quick else 60
    steps = step_rows("lenet-300-100", "adadelta", ours | peers, turns, 20)
    steps += step_rows("lenet-300-100", "sgd", ours, turns, 20)
    steps += step_rows("lenet-5-caffe", "adadelta", ours, turns // 4 + 1, 5)
    if not quick:
        del ours["hard tying, a sparse net"]
        steps += step_rows("vgg-16", "sgd", ours, 6, 1)
    return steps


def all_refits(quick):
    if quick:
        return refit_rows([10**5, 10**6], [17])
    return refit_rows([10**5, 10**6, 10**7, 10**8], [17, 64, 256])


PARTS = {
    "memory": lambda quick: memory_rows(),
    "steps": all_steps,
    "loop": lambda quick: [loop_row(200 if quick else 2000)],
    "refits": all_refits,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write everything there")
    parser.add_argument("--quick", action="store_true", help="small sizes only, to try it out")
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="only these; the rest of FILE stays"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result = {
        "machine": {"processor": platform.processor() or platform.machine(), "threads": options.threads},
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
    }  # fmt: skip
    if options.json and options.json.exists():
        result = json.loads(options.json.read_text()) | result
    for part in options.parts.split(","):
        result[part] = PARTS[part](options.quick)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    for part in PARTS:
        print(f"\n## {part}\n\n{table(result.get(part, []))}")


if __name__ == "__main__":
    main()
