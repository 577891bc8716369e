"""The codec against other formats for the same networks: bytes and seconds, all from one run.

    python benchmarks/codec.py NET.reef ... [--nncodec PYTHON] [--vgg] [--fast] [--pack FOLDER]
                               [--json FILE]

`make bench` calls it with all of these, and `benchmarks/document.py` puts the tables into
docs/performance.md.

Sizes are real bytes, and every `.reef` is decoded and compared. The size of DeepCABAC is its payload plus a
float32 codebook, without names and shapes; `.reef` is the whole file. Seconds are the best of five on one
thread; ours include Python and building the state, and exclude compilation, which is reported separately.
"""

import argparse
import gzip
import json
import lzma
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zstandard

from reefknot.dtypes import DTYPES
from reefknot.format import decode, encode, open_state
from reefknot.rates import rate_paper
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor

HELPER = Path(__file__).with_name("deepcabac.py")


def best_of(number, call):
    seconds = []
    for _ in range(number):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return result, min(seconds)


def deepcabac(python, state):
    """DeepCABAC's result, or None if there is no environment for it or it does not apply."""
    if python is None or len(state.codebooks) != 1 or not state.codebooks[0].zeros.any():
        return None
    values = state.codebooks[0].values
    rank = np.empty(len(values), np.int32)
    rank[np.argsort(values)] = np.arange(len(values))
    zero = int(rank[np.argmax(state.codebooks[0].zeros)])
    arrays = {
        str(i): rank[t.indices] - zero
        for i, t in enumerate(state.tensors)
        if isinstance(t, TiedTensor)
    }
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "net.npz", size=len(values), zero=zero, **arrays)
        output = subprocess.run(
            [python, HELPER, Path(folder) / "net.npz"], check=True, capture_output=True, text=True
        ).stdout
    return json.loads(output)


def measure(name, state, python, repeats=5):
    raw = b"".join(values.tobytes() for _, _, values in state.arrays())
    start = time.perf_counter()
    data = encode(state)
    encode_seconds = time.perf_counter() - start
    back, decode_seconds = best_of(repeats, lambda: decode(data, max_bytes=1 << 32))
    assert back == state
    row = {
        "net": name, "density": state.density, "raw": len(raw),
        "gzip -9": len(gzip.compress(raw, 9)), "xz -9e": len(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME)),
        "zstd -19": len(zstandard.ZstdCompressor(level=19).compress(raw)),
        "CSR+Huffman": round(state.original_bytes / rate_paper(state)),
        ".reef": len(data), "encode ms": 1e3 * encode_seconds, "decode ms": 1e3 * decode_seconds,
    }  # fmt: skip
    other = deepcabac(python, state)
    if other:
        kept = sum(t.data.nbytes for t in state.tensors if isinstance(t, KeptTensor))
        codebook = sum(book.values.nbytes - book.dtype.item_bytes for book in state.codebooks)
        row["DeepCABAC"] = other["payload_bytes"] + codebook + kept
        row[".reef / DeepCABAC"] = len(data) / row["DeepCABAC"]
        row["its encode ms"] = 1e3 * other["encode_seconds"]
        row["its decode ms"] = 1e3 * other["decode_seconds"]
    return row


def vgg(density=0.046, seed=0):
    """A synthetic state of VGG-16's shape with dead filters and channels: for speed, not for rates."""
    rng = np.random.default_rng(seed)
    values = np.sort(rng.normal(size=31)).astype("<f4")
    values[15] = 0
    book = Codebook(DTYPES["F32"], values)
    widths = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
    shapes, inputs = [], 3
    for number, width in enumerate(widths):
        shapes += [
            (f"features.{number}.weight", (width, inputs, 3, 3)),
            (f"features.{number}.bias", (width,)),
        ]
        inputs = width
    shapes += [
        ("fc1.weight", (512, 512)),
        ("fc1.bias", (512,)),
        ("fc2.weight", (10, 512)),
        ("fc2.bias", (10,)),
    ]
    tensors, alive = [], np.ones(3, bool)
    for name, shape in shapes:
        if len(shape) > 1:
            rows, before = rng.random(shape[0]) < 0.6, alive
            mask = rng.random(shape) < density / 0.36
            mask &= rows.reshape(-1, *[1] * (len(shape) - 1)) & before.reshape(
                1, -1, *[1] * (len(shape) - 2)
            )
            alive = rows
        else:
            mask = (rng.random(shape) < 0.8) & alive
        chosen = np.clip(np.round(15 + 5 * rng.standard_normal(shape)), 0, 30).astype(np.uint8)
        tensors.append(TiedTensor(name, 0, np.where(mask, chosen, 15)))
    return TiedState((book,), tuple(tensors))


def fast_speed(size=16_000_000):
    """Millions of weights a second for a dense tensor of 16 values."""
    rng = np.random.default_rng(0)
    book = Codebook(DTYPES["F32"], np.linspace(-1, 1, 16).astype("<f4"))
    weights = np.clip(np.round(7.5 + 3 * rng.standard_normal(size)), 0, 15).astype(np.uint8)
    state = TiedState((book,), (TiedTensor("w", 0, weights.reshape(4000, -1)),))
    data, encode_seconds = best_of(2, lambda: encode(state, "fast"))
    back, decode_seconds = best_of(3, lambda: decode(data, max_bytes=1 << 32))
    assert back == state
    counts = np.bincount(weights)
    entropy = float(np.sum(counts * np.log2(size / counts[counts > 0]))) / 8
    return {
        "decoded M/s": size / decode_seconds / 1e6, "encoded M/s": size / encode_seconds / 1e6,
        "bytes": len(data), "entropy bytes": round(entropy),
    }  # fmt: skip


def pack_memory(folder, megabytes=500, tensors=10):
    """Peak memory of `pack` on a synthetic checkpoint, in a process of its own."""
    path, each = Path(folder) / "synthetic.safetensors", megabytes * 1_000_000 // tensors // 4
    table = {
        f"layers.{i}.weight": {
            "dtype": "F32",
            "shape": [each // 500, 500],
            "data_offsets": [4 * each * i, 4 * each * (i + 1)],
        }
        for i in range(tensors)
    }
    text = json.dumps(table).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for seed in range(tensors):
            file.write(np.random.default_rng(seed).standard_normal(each, np.float32).tobytes())
    code = (
        "import sys, time; from reefknot.packing.pack import pack; from reefknot.packing.clustering import Settings\n"
        "from reefknot.packing.budget import Budget\n"
        "start, bits = time.time(), float(sys.argv[3])\n"
        "p = pack(sys.argv[1], sys.argv[1] + '.reef', Settings(num_clusters=int(sys.argv[2]) or None), force=True, "
        "budget=Budget(bits=bits) if bits else None)\n"
        "status = open('/proc/self/status').read()\n"  # ru_maxrss would count this process too
        "peak = int(status.split('VmHWM:')[1].split()[0]) * 1024\n"
        "print(p.file_bytes, peak, time.time() - start, time.process_time())"
    )
    rows = []
    for way, clusters, bits in (
        ("lossless", 0, 0),
        ("16 clusters", 16, 0),
        ("4 bits a weight", 0, 4),
    ):
        output = subprocess.run(
            [sys.executable, "-c", code, path, str(clusters), str(bits)], check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout.split()  # fmt: skip
        peak, allowed = int(output[1]), 2.5 * 4 * each + 300e6
        rows.append({
            "clusters": way, "file bytes": int(output[0]), "peak MB": peak / 1e6,
            "allowed MB": allowed / 1e6, "seconds": float(output[2]), "CPU seconds": float(output[3]),
        })  # fmt: skip
    path.unlink()
    Path(f"{path}.reef").unlink()
    return rows


def table(rows):
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [row.get(column, "") for column in columns]
        lines.append(
            "| " + " | ".join(f"{c:,.3f}" if isinstance(c, float) else f"{c}" for c in cells) + " |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nets", nargs="*", type=Path)
    parser.add_argument("--nncodec", help="the Python of an environment with nncodec")
    parser.add_argument(
        "--vgg", action="store_true", help="also a synthetic state of VGG-16's shape"
    )
    parser.add_argument("--fast", action="store_true", help="also the speed of static tables")
    parser.add_argument(
        "--pack", metavar="FOLDER", help="also the memory of packing 500 MB, written there"
    )
    parser.add_argument("--json", type=Path, help="write everything there too")
    options = parser.parse_args()
    result = {}
    code = (
        "import time, numba, numpy; from reefknot.codec.kernels import names, numbers, planes, rans, tied; "
        "from reefknot.kernels.jit import Loop; t = time.perf_counter(); "
        "loops = [v for m in (names, numbers, planes, rans) for v in vars(m).values() if isinstance(v, Loop)]; "
        "loops += [make(numpy.dtype(index), encoding) for make in (tied.maps_loop, tied.elements_loop) "
        "for index in ('u1', 'u2') for encoding in (False, True)]; "
        "[loop.machine_code for loop in loops]; print(time.perf_counter() - t)"
    )
    for what, cache in (
        ("compiling the loops", tempfile.mkdtemp()),
        ("loading them from the cache", None),
    ):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        environment |= {"NUMBA_CACHE_DIR": cache} if cache else {}
        output = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        result[f"{what}, seconds"] = float(output.stdout)
        print(f"{what}: {float(output.stdout):.2f} s")
    print()
    rows = [measure(path.parent.name, open_state(path), options.nncodec) for path in options.nets]
    if options.vgg:
        rows.append(measure("vgg-16 (synthetic)", vgg(), options.nncodec, repeats=1))
    print(table(rows))
    ratios = [row[".reef / DeepCABAC"] for row in rows if ".reef / DeepCABAC" in row]
    if ratios:
        print(f"\n.reef / DeepCABAC: mean {np.mean(ratios):.3f}, largest {max(ratios):.3f}")
    result["nets"] = rows
    if options.fast:
        result["fast"] = [fast_speed()]
        print("\n" + table(result["fast"]))
    if options.pack:
        result["pack"] = pack_memory(options.pack)
        print("\n" + table(result["pack"]))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"\npeak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB"
    )


if __name__ == "__main__":
    main()
