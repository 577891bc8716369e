"""DeepCABAC on index arrays, for `codec.py`: run by the Python of an environment that has `nncodec`.

    python -m venv nnc && nnc/bin/pip install "numpy<2" && nnc/bin/pip install --no-deps nncodec

Reads .npz files of indices relative to zero (int32), prints one line of JSON for each: the bytes of the
best setting per tensor (scan order, unary length, parameter optimisation, profile, row skipping; only
settings that decode to the same indices count), and the seconds of the whole search and of decoding.
"""

import itertools
import json
import sys
import time

import nncodec.extensions.deepCABAC as cabac
import numpy as np

NO_HDSP = (cabac.HdspMode(0), np.zeros(0, np.int8))


def encode(indices, scan, unary, optimise, profile, skip, size, zero):
    encoder = cabac.Encoder()
    encoder.initCtxModels(unary, optimise)
    dead = np.zeros(indices.shape[0], np.int32)
    if profile and indices.ndim > 1:
        dead = (~indices.reshape(len(indices), -1).any(1)).astype(np.int32)
    book = (size, zero) if profile else (0, 0)
    encoder.encodeLayer(indices, 0, scan, profile, 0, skip, dead, *NO_HDSP, *book)
    return encoder.finish().tobytes()


def decode(data, shape, scan, unary, profile, size, zero):
    decoder = cabac.Decoder()
    decoder.setStream(np.frombuffer(data, np.uint8).copy())
    decoder.initCtxModels(unary)
    result = np.zeros(shape, np.int32)
    book = (size, zero) if profile else (0, 0)
    decoder.decodeLayer(result, 0, scan, profile, 0, *NO_HDSP, *book)
    return result


def best(indices, size, zero):
    scans = (0, 1) if indices.ndim > 1 else (0,)
    settings = itertools.product(scans, (1, 2, 4, 8, 12, 16), (0, 1), ((0, 0), (1, 0), (1, 1)))
    found = None
    for scan, unary, optimise, (profile, skip) in settings:
        data = encode(indices, scan, unary, optimise, profile, skip, size, zero)
        if found is None or len(data) < len(found[0]):
            how = (scan, unary, profile, size, zero)
            if np.array_equal(decode(data, indices.shape, *how), indices):
                found = (data, how)
    return found


def measure(path):
    with np.load(path) as file:
        size, zero = int(file["size"]), int(file["zero"])
        arrays = [np.atleast_1d(file[name]) for name in file.files if name not in ("size", "zero")]
    start = time.perf_counter()
    found = [best(np.ascontiguousarray(array), size, zero) for array in arrays]
    encode_seconds = time.perf_counter() - start
    decode_seconds = []
    for _ in range(5):
        start = time.perf_counter()
        for array, (data, how) in zip(arrays, found):
            decode(data, array.shape, *how)
        decode_seconds.append(time.perf_counter() - start)
    return {
        "payload_bytes": sum(len(data) for data, _ in found),
        "encode_seconds": encode_seconds,
        "decode_seconds": min(decode_seconds),
    }


for name in sys.argv[1:]:
    print(json.dumps(measure(name)), flush=True)
