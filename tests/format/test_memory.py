"""What a few bytes may cost: memory and time, measured in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reefknot.dtypes import DTYPES
from reefknot.format import save
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor

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


# ---- commands ---------------------------------------------------------------------------------

HOSTILE = Path(__file__).parent / "hostile"
MEASURED = """
import os, sys
limit = int(sys.argv[1])
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
from reefknot.cli import main
try:
    main(sys.argv[2:])
finally:
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
    print(peak, file=sys.stderr)
"""


def command(*arguments, address_space=0):
    """Exit code, what is said, and the peak of resident memory in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(address_space), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    *said, peak = done.stderr.splitlines()
    return done.returncode, said, int(peak) << 10


def check_commands(file, decoded, folder):
    """Every command that reads a file stays near what it decodes."""
    limit = ["--max-bytes", decoded]
    back = folder / "back.safetensors"
    for words in (
        ["verify", file], ["inspect", file], ["unpack", "-f", file, back],
        ["verify", file, "--against", back],
    ):  # fmt: skip
        code, said, peak = command(*words, *limit)
        print(*words[:1], Path(file).name, f"{decoded:,} bytes decoded, peak {peak:,}")
        assert code == 0, said
        assert peak <= 1.5 * decoded + 300_000_000, words
    back.unlink()


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.slow
@needs_proc
def test_memory_of_inspect_stays_near_what_it_decodes():
    code, said, peak = command("inspect", HOSTILE / "sevens-64mib-tied.reef")
    assert code == 0, said
    assert peak <= 1.5 * (64 << 20) + 300_000_000


@needs_proc
def test_inspecting_a_small_network_does_not_take_a_gigabyte(tmp_path):
    ramp = np.arange(2_500_000, dtype="<u4") // 5000
    kept = KeptTensor("w", DTYPES["F32"], ramp.view("<f4"))
    save(TiedState((), (kept,)), tmp_path / "a.reef", effort="fast")
    code, said, peak = command("inspect", tmp_path / "a.reef")
    assert code == 0, said
    assert peak <= 1.5 * 10_000_000 + 300_000_000


@needs_proc
def test_running_out_of_memory_is_one_sentence():
    file = HOSTILE / "zeros-1gib-kept-fast.reef"
    code, said, _ = command("verify", file, address_space=1 << 30)
    assert code == 2
    assert len(said) == 1
    assert said[0].startswith("reefknot: there is not enough memory")


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "decoded"),
    [("sevens-64mib-tied", 64 << 20), ("sevens-1gib-tied", 1 << 30),
     ("zeros-1gib-kept-fast", 1 << 30)],
)  # fmt: skip
def test_memory_of_every_command_stays_near_what_it_decodes(tmp_path, name, decoded):
    check_commands(HOSTILE / f"{name}.reef", decoded, tmp_path)


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("tag", "kind", "effort"),
    [("F32", "kept", "fast"), ("U8", "kept", "fast"), ("F16", "kept", "tight"),
     ("F32", "tied", "fast"), ("U8", "tied", "fast"), ("F32", "tied", "tight")],
)  # fmt: skip
def test_memory_of_commands_on_large_networks(tmp_path, tag, kind, effort):
    # Elements that no coder makes smaller: the file is as large as what it decodes to.
    dtype, rng = DTYPES[tag], np.random.default_rng(0)
    decoded = (64 if effort == "tight" else 256) << 20
    shape = (decoded // 4096, 4096 // dtype.item_bytes)
    if kind == "kept":
        data = np.frombuffer(rng.bytes(decoded), dtype.storage).reshape(shape)
        state = TiedState((), (KeptTensor("w", dtype, data),))
    else:
        book = Codebook(dtype, np.arange(200).astype(dtype.storage))
        indices = rng.integers(0, 200, shape, np.uint8)
        state = TiedState((book,), (TiedTensor("w", 0, indices),))
    save(state, tmp_path / "a.reef", effort=effort)
    check_commands(tmp_path / "a.reef", decoded, tmp_path)
