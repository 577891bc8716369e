"""Writes the results of the benchmarks into docs/performance.md and docs/scaling.md, between marks, and the figure.

    python benchmarks/document.py

Takes     benchmarks/results/*.json, as `make bench` writes them.
Gives     the tables of docs/performance.md and docs/scaling.md, and docs/growth.svg.
"""

import json
import math
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = [ROOT / "docs" / "performance.md", ROOT / "docs" / "scaling.md"]
PLOT = ROOT / "docs" / "growth.svg"
BYTES = ["gzip -9", "xz -9e", "zstd -19", "CSR+Huffman", "DeepCABAC", ".reef"]


def markdown(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def codec(result):
    all_nets = result["nets"]
    nets = [net for net in all_nets if "seed" not in net["net"] or net["net"].endswith("seed0")]
    seeds = [
        net[".reef / DeepCABAC"]
        for net in all_nets
        if "seed" in net["net"] and ".reef / DeepCABAC" in net
    ]
    sizes = [
        [net["net"], f"{100 * net['density']:.2f}", *(f"{net[c]:,}" if c in net else "" for c in BYTES),
         f"{net['.reef / DeepCABAC']:.3f}" if ".reef / DeepCABAC" in net else ""]
        for net in nets
    ]  # fmt: skip
    times = [
        [net["net"], *(f"{net[c]:.2f}" if c in net else "" for c in
                       ("decode ms", "its decode ms", "encode ms", "its encode ms"))]
        for net in nets
    ]  # fmt: skip
    fast, packs = result["fast"][0], result["pack"]
    parts = [
        markdown(["net", "non-zero %", *BYTES, ".reef / DeepCABAC"], sizes),
        f"Over all {len(seeds)} records, other seeds included, `.reef` is {min(seeds):.3f} to {max(seeds):.3f} of DeepCABAC, "
        f"on average {sum(seeds) / len(seeds):.3f}.",
        markdown(["net", "decode ms", "DeepCABAC's", "encode ms, whole search", "DeepCABAC's"], times),
        f"`fast`, a dense tensor of 16 million weights with 16 values: {fast['decoded M/s']:.0f} million weights a "
        f"second decoded, {fast['encoded M/s']:.0f} encoded; {fast['bytes']:,} bytes, entropy "
        f"{fast['entropy bytes']:,}.",
        "`pack` of a 500 MB checkpoint, 125 million weights in ten tensors: "
        + "; ".join(
            f"{p['clusters']}: {p['seconds']:.0f} s, peak {p['peak MB']:.0f} MB of {p['allowed MB']:.0f} allowed"
            for p in packs
        )
        + ".",
        f"All loops of the codec compile in {result['compiling the loops, seconds']:.1f} s, and are loaded from the "
        f"cache in {result['loading them from the cache, seconds']:.2f} s; reading a small file needs none of them.",
    ]  # fmt: skip
    return "\n\n".join(parts)


def ratios(rows, cells):
    """Rows of step costs: the ratio to plain training with its quartiles."""
    lines = []
    for row in rows:
        if "note" in row:
            lines.append([*(row[c] for c in cells), "", row["note"], "", ""])
            continue
        spread = f"{row['ratio 25 %']:.3f} to {row['ratio 75 %']:.3f}"
        more = row.get("adds, of what soft tying adds")
        times = "" if more is None else f"{more:.0f} times"
        named = [row[c] for c in cells]
        lines.append([*named, f"{row['ms']:.2f}", f"{row['ratio']:.3f}", spread, times])
    return lines


def tying(result):
    refits, cells = {}, []
    for row in result["refits"]:
        refits.setdefault((row["N"], row["K"]), {})[row["method"]] = row
    methods = list(dict.fromkeys(row["method"] for row in result["refits"]))
    for (n, k), found in refits.items():
        shown = [
            f"{found[m]['ms']:,.1f}" if "ms" in found[m] else found[m]["note"] for m in methods
        ]
        peers = [
            found[m]["ms"] for m in methods if "ms" in found[m] and not m.startswith("reefknot")
        ]
        times = [f"{min(peers) / found[m]['ms']:.0f}" if peers else "" for m in methods[:2]]
        over = [found[m].get("over the optimum %") for m in methods[:2]]
        worst = "" if None in over else f"{max(over):.4f}"
        cells.append([f"{n:,}", str(k), *shown, " / ".join(times), worst])
    loop, memory = result["loop"][0], result["memory"][0]
    parts = [
        markdown(
            ["network", "optimizer", "step", "ms", "ratio to plain", "quartiles", "overhead relative to soft tying"],
            ratios(result["steps"], ("network", "optimizer", "variant")),
        ),
        f"`reefknot run` on LeNet-300-100 spends {100 * loop['share']:.1f} % of its time in forward, backward and "
        f"optimizer (tying included), the rest on batches, evaluation and checkpoints.",
        f"Memory: a process that trains {memory['weights']:,} weights peaks "
        f"{memory['more bytes a weight']:.2f} bytes per weight higher with tying, refits included.",
        "One refit, centers and assignment, in milliseconds, the best of up to three:",
        markdown(
            ["N", "K", *methods, "times faster than the best peer, cold / warm", "over the optimum %"], cells
        ),
        "![Growth of one refit with the number of weights](growth.svg)",
    ]  # fmt: skip
    return "\n\n".join(parts)


def methods(result):
    return markdown(
        ["network", "method and phase", "ms", "ratio to plain", "quartiles", ""],
        ratios(result["steps"], ("network", "variant")),
    )


def plot(result, k=17):
    """One refit against N, both logarithmic, so that linear growth is a straight line."""
    lines = {}
    for row in result["refits"]:
        if row["K"] == k and "ms" in row:
            lines.setdefault(row["method"], []).append((row["N"], row["ms"]))
    left, top, width, height = 70, 20, 420, 300

    def x(n):
        return left + width * (math.log10(n) - 5) / 3

    def y(ms):
        return top + height * (5.3 - math.log10(ms)) / 5.3

    colours = ["#0b6e4f", "#7fb69e", "#b5651d", "#a23b72", "#3b5ba2", "#666"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 190} {top + height + 50}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{left + width + 190}" height="{top + height + 50}" fill="white"/>',
    ]
    for power in range(5, 9):
        at = x(10**power)
        parts.append(f'<line x1="{at}" y1="{top}" x2="{at}" y2="{top + height}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{at}" y="{top + height + 18}" text-anchor="middle">10^{power}</text>'
        )
    for power in range(6):
        at = y(10**power)
        parts.append(f'<line x1="{left}" y1="{at}" x2="{left + width}" y2="{at}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{at + 4}" text-anchor="end">{10**power:,}</text>')
    parts.append(
        f'<text x="{left + width / 2}" y="{top + height + 40}" text-anchor="middle">weights</text>'
    )
    parts.append(f'<text x="8" y="{top - 6}">ms, K = {k}</text>')
    ends = sorted(lines, key=lambda name: lines[name][-1][1], reverse=True)
    for name, colour in zip(lines, colours, strict=False):
        points = " ".join(f"{x(n):.1f},{y(ms):.1f}" for n, ms in lines[name])
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        for n, ms in lines[name]:
            parts.append(f'<circle cx="{x(n):.1f}" cy="{y(ms):.1f}" r="3" fill="{colour}"/>')
        place = top + 16 + 18 * ends.index(name)
        parts.append(f'<text x="{left + width + 14}" y="{place}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def packing(rows):
    cells = [
        [row["network"], f"`{row['options of pack']}`", f"{row['bytes']:,}", f"{row['times less']:.1f}",
         f"{row['relative error']:.3f}", f"{row['cosine of outputs']:.3f}"]
        for row in rows
    ]  # fmt: skip
    columns = [
        "network",
        "options of `pack`",
        "bytes",
        "times smaller",
        "relative error",
        "cosine of outputs",
    ]
    return markdown(columns, cells)


def packing_vgg(result):
    """Our mean over draws, and the others, sorted by bytes; differences are to the parent."""
    parent, cells = result["parent's error %"], []
    kinds = dict.fromkeys((row["price"], row["draw"] is None) for row in result["rows"])
    for price, random in kinds:
        same = [
            row for row in result["rows"] if (row["price"], row["draw"] is None) == (price, random)
        ]
        size, bits, wrong = (
            sum(row[key] for row in same) / len(same)
            for key in ("bytes", "bits a weight", "error %")
        )
        of = f", mean of {len(same)} draws" if len(same) > 1 else ""
        what = "random inputs" if random else "inputs"
        cells.append([f"one pass with {what}, for inference{of}", size, bits, wrong])
    others = RESULTS / "packing_peers.json"
    for row in json.loads(others.read_text()) if others.exists() else []:
        cells.append([row["way"], row["bytes"], row["bits a weight"], row["error %"]])
    cells.sort(key=lambda cell: cell[1])
    return markdown(
        ["way", "bytes", "bits per weight", "test error %", "above the parent"],
        [[name, f"{size:,.0f}", f"{bits:.3f}", f"{wrong:.2f}", f"{wrong - parent:+.2f}"]
         for name, size, bits, wrong in cells],
    )  # fmt: skip


def packing_shipped(rows):
    """At the change of outputs of the others, the bytes of a budget: interpolated on logarithmic axes."""
    cells = []
    for network in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == network]
        curves = [
            sorted((row["change"], row["bytes"]) for row in own if row["way"].startswith(kind))
            for kind in ("random", "inputs")
        ]
        for row in own:
            if row["way"].startswith(("--clusters", "int8")):
                found = [_bytes_at(curve, row["change"]) for curve in curves]
                name = row["way"] if row["way"].startswith("int8") else f"`{row['way']}`"
                limit = f"limit of {row['way'].rpartition(' ')[2]} values"
                limits = [f"{other['ratio']:.2f}" for other in own if other["way"] == limit]
                cells.append([
                    network, name, f"{row['change']:.4f}", f"{row['bytes']:,}", *(limits or [""]),
                    *("" if size is None else f"{size:,.0f} ({size / row['bytes']:.2f})" for size in found),
                ])  # fmt: skip
    titles = ["network", "way", "change of outputs", "bytes", "same error of each tensor"]
    titles += ["random inputs", "inputs"]
    gains = [row["dB"] for row in rows if row["way"] == "a step for each column"]
    least, most = min(gains), max(gains)
    return (
        markdown(titles, cells)
        + f"\n\nA step for each column instead of one per matrix would gain {least:.1f} to {most:.1f} dB with inputs, "
        f"which is {least / DB_PER_BIT:.2f} to {most / DB_PER_BIT:.2f} bits per weight, and cost the bytes of its scales."
    )


def packing_data_free(rows):
    """Beside integers of each width, what `pack` does in at most their bytes; then bounds for every row."""
    cells, bounds = [], []
    for network in dict.fromkeys(row["network"] for row in rows):
        own = {row["way"]: row for row in rows if row["network"] == network}
        for way in ("int8", "int6", "int4"):
            theirs, ours = own[way], own[f"size of {way}"]
            cells.append([
                network, way, *(f"{row['bytes']:,}" for row in (theirs, ours)),
                *(f"{row['change']:.4f}" for row in (theirs, ours)), f"{ours['change'] / theirs['change']:.2f}",
                *(f"{100 * row['worst row']:.1f}" for row in (theirs, ours)),
            ])  # fmt: skip
        found = [row for way, row in own.items() if way.startswith("--error")]
        original = 4 * found[0]["weights"]
        bounds.append([network, *(
            f"{row['change']:.3f}, {row['cosine']:.4f}, {original / row['bytes']:.1f}x" for row in found
        )])  # fmt: skip
    titles = [
        "network",
        "integers",
        "their bytes",
        "ours",
        "change of outputs, theirs",
        "ours",
        "ours / theirs",
    ]
    titles += ["worst row, %, theirs", "ours"]
    ways = [f"`{way}`" for way in own if way.startswith("--error")]
    return markdown(titles, cells) + "\n\n" + markdown(["network", *ways], bounds)


DB_PER_BIT = 20 * math.log10(2)


def _bytes_at(curve, change):
    """Between the two nearest points (change, bytes) that are the smallest with at most their change."""
    best = [(c, size) for c, size in curve if size == min(s for d, s in curve if d <= c)]
    for (c, size), (d, more) in zip(best[1:], best):
        if d <= change <= c:
            share = math.log(change / d) / math.log(c / d)
            return more * (size / more) ** share
    return None


def packing_rows(rows):
    """Bytes of one step for all rows at the same change, too: interpolated as above."""
    cells = []
    for row in rows:
        steps = "by how often they are read" if row["own steps"] else "one for all"
        changes = [f"{row[text]:.4f}" for text in ("documentation", "licences")]
        ratios = ["", ""]
        if row["own steps"]:
            others = [
                _bytes_at(
                    sorted((r[text], r["bytes"]) for r in rows if not r["own steps"]), row[text]
                )
                for text in ("documentation", "licences")
            ]
            ratios = ["" if size is None else f"{row['bytes'] / size:.2f}" for size in others]
        cells.append([steps, f"{row['bytes']:,}", changes[0], ratios[0], changes[1], ratios[1]])
    of_one = "bytes, of one for all"
    return markdown(
        ["steps of rows", "bytes", "change, documentation", of_one, "change, licences", of_one],
        cells,
    )


def shrink(result):
    cells = []
    for row in result["rows"]:
        sizes = [f"{a:,} → {b:,}" for a, b in (row["parameters"], row["MACs"])]
        spread = f"{row['25 %']:.1f} to {row['75 %']:.1f}"
        times = [
            f"{row['dense ms']:.3f}",
            f"{row['shrunk ms']:.3f}",
            f"{row['times quicker']:.1f}",
            spread,
        ]
        cells.append(
            [
                row["network"],
                f"{row['bytes']:,}",
                f"{row['rate']:.0f}",
                *sizes,
                str(row["batch"]),
                *times,
            ]
        )
    return markdown(
        [
            "network",
            "bytes",
            "rate",
            "parameters",
            "MACs",
            "batch",
            "dense ms",
            "shrunk ms",
            "speed-up",
            "quartiles",
        ],
        cells,
    )


def low_bit(rows):
    cells = [
        [row["checkpoint"], *(f"{row[c]:,}" for c in ("their file", "xz -9e", ".reef")),
         f"{row['.reef / xz']:.3f}", str(row["version"])]
        for row in rows
    ]  # fmt: skip
    titles = ["checkpoint", "their file", "the same, xz -9e", ".reef", ".reef / xz", "version"]
    return markdown(titles, cells)


def scaling(result):
    wire, simulation = result["wire"], result["simulation"]
    rows = [
        [kind, f"{count:,}", f"{wire['most'][kind]:,}"] for kind, count in wire["usual"].items()
    ]
    away = simulation["shards alone, most away"]
    return "\n\n".join([
        f"{wire['weights']:,} weights, K = {wire['K']}, Adam, {wire['processes']} processes; bytes of all collectives of a step:",
        markdown(["step", "usually", "at most"], rows),
        f"{simulation['ranks']} ranks with {simulation['weights']:,} weights together: one histogram of "
        f"{simulation['histogram bytes']:,} bytes, of which a rank sends {simulation['sent by a rank in a ring']:,} in a ring. "
        f"The same weights on {simulation['other ranks']} ranks, divided differently, have the same centers, bit for bit. "
        f"If each rank fitted its weights alone, there would be {simulation['shards alone, distinct']} different sets of "
        f"centers, off by up to {100 * away:.2f} % of the largest center.",
    ])  # fmt: skip


def ddp(result):
    rows = [
        [row["step"], f"{row['ms']:.2f}", f"{row['ratio']:.3f}", f"{row['ratio 25 %']:.3f} to {row['ratio 75 %']:.3f}"]
        for row in result["rows"]
    ]  # fmt: skip
    sent = [[row["what"], f"{row['bytes']:,}", f"{row['figure']:,}"] for row in result["wire"]]
    return "\n\n".join([
        markdown(["step", "ms", "ratio to plain", "quartiles"], rows),
        markdown(["on the wire, K = 17, SGD", "bytes measured", "bytes by the table above"], sent),
    ])  # fmt: skip


def strangers(result):
    """Means over seeds; what a rival has at the same bytes stands beside it."""
    points = {}
    for row in result["rows"]:
        if row["schedule"] == "own" and "rival" in row:
            points.setdefault(
                (row["start"], row["network"], row["ratio"], row["steps"]), []
            ).append(row)
    titles = [
        "start",
        "network",
        "times smaller",
        "seeds",
        "dense",
        "ours",
        "rival",
        "ours − rival",
        "file bytes",
    ]
    titles += ["of the target", "rival's bytes", "rival", "said before"]
    return markdown(titles, [_stranger(points[key]) for key in sorted(points, key=_point_order)])


def _point_order(key):
    start, network, ratio, steps = key
    return start, network, steps, ratio


def _stranger(rows):
    def mean(key):
        found = [row[key] for row in rows if row.get(key) is not None]
        return sum(found) / len(found) if len(found) == len(rows) else None

    first, size, own = rows[0], mean("bytes"), mean("ours")
    accuracies = [mean("dense"), own, mean("rival"), own and own - mean("rival")]
    return [
        first["start"], first["network"], str(first["ratio"]), str(len(rows)),
        *("refused" if value is None else f"{value:.2f}" for value in accuracies),
        f"{size:,.0f}" if size else "", f"{100 * size / mean('target'):.0f} %" if size else "",
        f"{mean('rival bytes'):,.0f}", "int{}, {}".format(*first["rival kind"]),
        "yes" if all(row["announced"] for row in rows) else "",
    ]  # fmt: skip


def large(result):
    return markdown(
        [f"VGG-16, 15 million weights, threads: {result['threads']}", "seconds"],
        [[what, f"{seconds:.2f}"] for what, seconds in result["seconds"].items()],
    )


def main():
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text()))


def filled(text):
    """A document with the current results between its marks."""
    for name, make in (
        ("codec", codec),
        ("tying", tying),
        ("methods", methods),
        ("packing", packing),
        ("shrink", shrink),
        ("packing_vgg", packing_vgg),
        ("packing_shipped", packing_shipped),
        ("packing_rows", packing_rows),
        ("packing_data_free", packing_data_free),
        ("low_bit", low_bit),
        ("scaling", scaling),
        ("ddp", ddp),
        ("large", large),
        ("strangers", strangers),
    ):
        path = RESULTS / f"{name}.json"
        if not path.exists() or f"<!-- {name} -->" not in text:
            continue
        result = json.loads(path.read_text())
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        _, _, after = rest.partition(f"<!-- /{name} -->")
        text = f"{before}<!-- {name} -->\n{make(result)}\n<!-- /{name} -->{after}"
        if name == "tying":
            PLOT.write_text(plot(result))
    return text


if __name__ == "__main__":
    main()
