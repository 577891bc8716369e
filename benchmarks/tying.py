"""What tying costs: the training step, the refit and the memory, against what people use.

    python benchmarks/tying.py [--json FILE] [--quick]

Takes     an environment with reefknot and the peers (coremltools, flash1dkmeans, kmeans1d, scikit-learn);
          one that is not there is left out.
Gives     tables as Markdown on standard output, and everything as JSON.

Steps are ratios to the same step without tying: the variants take turns, and the median ratio of all turns
is given with its quartiles, so that a busy machine disturbs all of them alike. A peer that needs more than two
minutes, or is refused because it would need more than 8 GB, is given as such.
"""

import argparse
import gc
import json
import platform
import signal
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import reefknot
from reefknot.zoo import NETWORKS

LIMIT_SECONDS = 120
INPUTS = {"lenet-300-100": (1, 28, 28), "lenet-5-caffe": (1, 28, 28), "vgg-16": (3, 32, 32)}


# -- steps ----------------------------------------------------------------------------------


def trainer(network, prepare, batch_size=128):
    """A function that makes one training step of a fresh network, and what must be kept alive."""
    torch.manual_seed(0)
    model = NETWORKS[network]()
    inputs = torch.randn(batch_size, *INPUTS[network])
    labels = torch.randint(0, 10, (batch_size,))
    model, optimizer, penalty, after = prepare(model)

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


def plain(model):
    return model, sgd(model), None, lambda: None


def soft(model):
    optimizer = sgd(model)
    reefknot.SparseAPT(model, refit_every=1000).attach(optimizer)
    return model, optimizer, None, lambda: None


def hard(model):
    optimizer = sgd(model)
    reefknot.SparseAPT(model).attach(optimizer).harden()
    return model, optimizer, None, lambda: None


def naive(model, k=17):
    """The k-means penalty and L1 by autograd, as written down in the paper: O(N·K)."""
    weights = list(model.parameters())
    low = min(float(w.detach().min()) for w in weights)
    high = max(float(w.detach().max()) for w in weights)
    centers = torch.linspace(low, high, k)

    def penalty():
        flat = torch.cat([w.flatten() for w in weights])
        nearest = (flat[:, None] - centers[None, :]).square().min(1).values
        return 1e-5 / 2 * nearest.sum() + 1e-4 * flat.abs().sum()

    return model, sgd(model), penalty, lambda: None


def mixture(model, k=17):
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

    return model, sgd(model, means, log_precisions, logits), penalty, lambda: None


def dkm(model):
    """coremltools' differentiable k-means palettizer with 16 values a tensor."""
    from coremltools.optimize.torch.palettization import DKMPalettizer, DKMPalettizerConfig

    config = DKMPalettizerConfig.from_dict({"global_config": {"n_bits": 4, "milestone": 0}})
    palettizer = DKMPalettizer(model, config)
    model = palettizer.prepare(inplace=True)
    return model, sgd(model), None, palettizer.step


def step_rows(network, variants, turns):
    """The ratio of each variant's step to the plain one, all taking turns."""
    steps = {"plain": trainer(network, plain)}
    rows = []
    for name, prepare in variants.items():
        try:
            steps[name] = trainer(network, prepare)
            steps[name]()
        except Exception as error:  # a peer may be missing or unable; that is a result too
            steps.pop(name, None)
            rows.append({"network": network, "variant": name, "note": f"{type(error).__name__}"})
    seconds = {name: [] for name in steps}
    for step in steps.values():
        step(), step()
    for _ in range(turns):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - begin)
    base = np.array(seconds["plain"])
    for name, taken in seconds.items():
        ratio = np.array(taken) / base
        low, middle, high = np.percentile(ratio, [25, 50, 75])
        rows.append({
            "network": network, "variant": name, "ms": 1e3 * float(np.median(taken)),
            "ratio": float(middle), "ratio 25 %": float(low), "ratio 75 %": float(high),
        })  # fmt: skip
    return rows


# -- refits ---------------------------------------------------------------------------------


def ours_cold(values, k):
    return reefknot.kmeans1d(values, k)


def last_centers(values, k):
    """Where centers stand a thousand steps after a refit: near their places, not in them."""
    found = reefknot.kmeans1d(values[:: max(1, len(values) // 10**5)], k).centers
    return found * np.random.default_rng(1).normal(1, 0.03, len(found))


def ours_warm(values, k):
    return reefknot.kmeans1d(values, k, centers=last_centers(values, k))


def sorted_lloyd(values, k):
    """The paper's own way: sort, then binary searches for the boundaries."""
    from reefknot.kernels import kmeans1d

    line = kmeans1d._Line.of(values, None, "l2")
    starts = line.lloyd(np.sort(last_centers(values, k)), k, 100)
    return line.centers(starts), np.searchsorted(line.points[starts[1:]], values, side="right")


def flash(values, k):
    import flash1dkmeans

    centers, labels = flash1dkmeans.kmeans_1d(values, k, max_iter=100)
    return centers, labels


def kmeans1d_package(values, k):
    import kmeans1d

    found = kmeans1d.cluster(values, k)
    return np.array(found.centroids), np.array(found.clusters)


def scikit_learn(values, k):
    from sklearn.cluster import KMeans

    start = np.linspace(values.min(), values.max(), k)[:, None]
    found = KMeans(k, init=start, n_init=1, max_iter=100).fit(values[:, None])
    return found.cluster_centers_[:, 0], found.labels_


REFITS = {
    "reefknot, cold": ours_cold,
    "reefknot, warm": ours_warm,
    "sorted, warm": sorted_lloyd,
    "flash1dkmeans": flash,
    "kmeans1d (exact)": kmeans1d_package,
    "scikit-learn KMeans": scikit_learn,
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
    """The mean squared distance, in pieces so that it needs no memory to speak of."""
    total = 0.0
    for begin in range(0, len(values), 1 << 20):
        piece = slice(begin, begin + (1 << 20))
        total += float(((values[piece] - np.asarray(centers)[assignment[piece]]) ** 2).sum())
    return total / len(values)


def refit_rows(sizes, clusters):
    rows, given_up = [], set()
    for size in sizes:
        values = (np.random.default_rng(0).standard_t(4, size) * 0.05).astype(np.float32)
        for k in clusters:
            exact = None
            if size <= 10**6:
                best = reefknot.kmeans1d(values, k, exact=True)
                exact = distortion(values, *best)
            for name, refit in REFITS.items():
                row = {"N": size, "K": k, "method": name}
                if (name, k) in given_up or (name == "kmeans1d (exact)" and size * k * 8 > 8e9):
                    rows.append(row | {"note": "over 2 minutes or 8 GB"})
                    continue
                gc.collect()
                try:
                    first = timed(lambda r=refit, v=values, n=k: r(v, n))
                    again = first and first[0] < 5 and timed(lambda r=refit, v=values, n=k: r(v, n))
                except Exception as error:  # a peer may be missing
                    rows.append(row | {"note": type(error).__name__})
                    continue
                if first is None:
                    given_up.add((name, k))
                    rows.append(row | {"note": "over 2 minutes"})
                    continue
                seconds, result = min([first] + [again] * bool(again), key=lambda pair: pair[0])
                row["ms"] = 1e3 * seconds
                row["distortion"] = distortion(values, *result)
                if exact:
                    row["over the optimum %"] = 100 * (row["distortion"] / exact - 1)
                rows.append(row)
    return rows


# -- memory ---------------------------------------------------------------------------------


def memory_row(network="vgg-16"):
    """Bytes per weight that tying holds on to between steps."""
    model = NETWORKS[network]()
    tie = reefknot.SparseAPT(model).attach(torch.optim.SGD(model.parameters(), lr=0.01))
    held = sum(a.nbytes for group in tie.groups for a in group.assignments.values())
    held += sum(group.centers.nbytes + group.counts.nbytes for group in tie.groups)
    weights = sum(group.num_weights for group in tie.groups)
    return {"network": network, "weights": weights, "bytes per weight": held / weights}


def table(rows):
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        cells = [row.get(column, "") for column in columns]
        shown = [f"{c:.4g}" if isinstance(c, float) else f"{c:,}" if isinstance(c, int) else c
                 for c in cells]  # fmt: skip
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write everything there")
    parser.add_argument("--quick", action="store_true", help="small sizes only, to try it out")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ours = {"soft tying": soft, "hard tying": hard}
    peers = {"naive autograd": naive, "Gaussian mixture": mixture, "coremltools DKM": dkm}
    turns = 20 if options.quick else 200
    steps = step_rows("lenet-300-100", ours | peers, turns)
    steps += step_rows("lenet-5-caffe", ours, turns // 4)
    if not options.quick:
        steps += step_rows("vgg-16", ours, 5)
    sizes = [10**5, 10**6] if options.quick else [10**5, 10**6, 10**7, 10**8]
    refits = refit_rows(sizes, [17] if options.quick else [17, 64, 256])
    memory = [memory_row()]
    result = {
        "machine": {"processor": platform.processor() or platform.machine(), "threads": options.threads},
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "steps": steps, "refits": refits, "memory": memory,
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    for title, rows in (("Steps", steps), ("Refits", refits), ("Memory", memory)):
        print(f"\n## {title}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
