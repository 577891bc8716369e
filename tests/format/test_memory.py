"""What a few bytes may cost: memory and time, measured in a process of its own."""

import os
import subprocess
import sys

import pytest

# A file of few bytes whose tensor decodes to just under 64 MB, in the shape that costs most.
CODE = """
import json, resource, sys, time
import numpy as np
from reefknot.dtypes import DTYPES
from reefknot.format import decode, encode
from reefknot.state import Codebook, TiedState, TiedTensor
shape, tag = json.loads(sys.argv[1]), sys.argv[2]
small = TiedState((), ())
decode(encode(small), max_bytes=100)
dtype = DTYPES[tag]
book = Codebook(dtype, np.array([0, 1], dtype.storage))
import reefknot.format.write as write
write.SOLID_ELEMENTS = 1 << 40
data = encode(TiedState((book,), (TiedTensor("w", 0, np.zeros(shape, np.uint8)),)))
del small
pid = __import__("os").fork()
if pid == 0:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    now = int(open("/proc/self/statm").read().split()[1]) * 4
    start = time.perf_counter()
    decode(data, max_bytes=64 << 20)
    seconds = time.perf_counter() - start
    peak = int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
    print(len(data), peak - now, seconds, flush=True)
    __import__("os")._exit(0)
__import__("os").waitpid(pid, 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("shape", "tag"),
    [("[16000000]", "F32"), ("[60000000]", "U8"), ("[2, 30000000]", "U8"), ("[30000000, 2]", "U8"),
     ("[4000, 4000]", "F32"), ("[2, 30, 1000, 1000]", "U8")],
)  # fmt: skip
def test_a_small_file_cannot_ask_for_much(shape, tag):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", CODE, shape, tag],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    size, kilobytes, seconds = result.stdout.split()
    print(shape, tag, size, "bytes", kilobytes, "KB", seconds, "s")
    assert int(kilobytes) < 200_000
