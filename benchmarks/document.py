"""Puts the results of the benchmarks into docs/performance.md, between its marks.

    python benchmarks/document.py

Takes     benchmarks/results/codec.json, as `make bench` writes it.
"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "codec.json"
DOCUMENT = ROOT / "docs" / "performance.md"
BYTES = ["gzip -9", "xz -9e", "zstd -19", "CSR+Huffman", "DeepCABAC", ".reef"]


def markdown(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def tables(result):
    nets = result["nets"]
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
        markdown(["net", "decode ms", "DeepCABAC's", "encode ms, whole search", "DeepCABAC's"], times),
        f"`fast`, a dense tensor of 16 million weights with 16 values: {fast['decoded M/s']:.0f} million weights a "
        f"second decoded, {fast['encoded M/s']:.0f} encoded; {fast['bytes']:,} bytes, entropy "
        f"{fast['entropy bytes']:,}.",
        "`pack` of a 500 MB checkpoint: "
        + "; ".join(f"{p['clusters']}: peak {p['peak MB']:.0f} MB of {p['allowed MB']:.0f} allowed" for p in packs)
        + ".",
        f"First use compiles the loops in {result['compiling the loops, seconds']:.1f} s; after that they "
        f"are loaded from the cache in {result['loading them from the cache, seconds']:.2f} s.",
    ]  # fmt: skip
    return "\n\n".join(parts)


def main():
    text = DOCUMENT.read_text()
    before, _, rest = text.partition("<!-- codec -->\n")
    _, _, after = rest.partition("<!-- /codec -->")
    filled = tables(json.loads(RESULTS.read_text()))
    DOCUMENT.write_text(f"{before}<!-- codec -->\n{filled}\n<!-- /codec -->{after}")


if __name__ == "__main__":
    main()
