"""Mutated files through all four decoders, for as long as is wanted; they must agree on each.

    PYTHONPATH=src:tests python tests/format/soak.py --minutes 30 [--seed 1] [--seams]

Takes     small valid files, the golden ones among them, and damages them where it matters: in their
          streams, which are cut to what their decoder uses; in fields of the header, which is
          coded again; in any bytes. Checksums are made to match. What is accepted is damaged again.
Gives     how many there were, how many were valid, files on which the decoders disagree and what
          else they raise, the slowest time for a byte, and how much memory each has used.

The library and the reference decoder run here, the others in processes that stay. All read the same
batches and give a digest for each file. With `--seams`, limits of the format are far lower in all
decoders (`seams.py`), so that small files reach them.
"""

import argparse
import contextlib
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from reef_examples import random_file

from format import seams
from format.mutate import Mutants
from format.reference import TAGS, reference
from format.test_hostile import compile_readers
from reefknot.errors import FormatError, ReefknotError
from reefknot.format import decode

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXPORT = ROOT / "src" / "reefknot" / "export"
LIMIT = 2048  # bytes of tensors: the reference takes some 20 microseconds for an element
BATCH = 500
SELDOM = 8  # batches, of which the slower builds of reef.c read one
NO_MEMORY = 3  # what reef.c says
FOREIGN = 9
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
BUILDS = {  # of reef.c
    "reef.c": ("-O2",),
    "reef.c, sanitized": ("-O1", *SANITIZERS),
    "reef.c, 32 bits": ("-O1", "-m32", *SANITIZERS),
}
SLOW = list(BUILDS)[1:]
Tensors = list[tuple[str, str, tuple[int, ...], bytes]]


def digest(tensors: Tensors) -> tuple[int, int]:
    """The sum of the CRC-32 of each tensor, and their bytes, as digests.c and digests.mjs."""
    sums = size = 0
    for name, tag, shape, raw in tensors:
        title = name.encode("utf-8", "surrogatepass")
        head = struct.pack("<IBB", len(title), TAGS.index(tag), len(shape))
        sums += zlib.crc32(head + title + struct.pack(f"<{len(shape)}Q", *shape) + raw)
        size += len(raw) + len(title) + 8 * len(shape)
    return sums % (1 << 32), size


def by_the_library(data: bytes, limit: int = LIMIT) -> Tensors:
    state = decode(data, max_bytes=limit)
    return [(name, dtype.tag, v.shape, v.tobytes()) for name, dtype, v in state.arrays()]


def by_the_reference(data: bytes, limit: int = LIMIT) -> Tensors:
    return [(name, *row) for name, row in reference.read(data, limit).items()]


@dataclass
class Told:
    """What a decoder says about a file."""

    accepted: bool
    crc: int = 0
    microseconds: float = 0.0
    size: int = 0
    foreign: str = ""

    @property
    def content(self) -> tuple[bool, int, int]:
        return self.accepted, self.crc, self.size


def inside() -> dict[str, Callable[..., Told]]:
    """The decoders of this process."""
    return {
        "library": _teller(by_the_library, FormatError),
        "reference": _teller(by_the_reference, reference.RefusedError),
    }


def _teller(read: Callable[..., Tensors], refusal: type[Exception]) -> Callable[..., Told]:
    def tell(data: bytes, limit: int = LIMIT) -> Told:
        start = time.process_time()
        try:
            tensors = read(data, limit)
        except refusal:
            return Told(False, microseconds=1e6 * (time.process_time() - start))
        except Exception as error:
            return Told(False, foreign=repr(error))
        seconds = time.process_time() - start
        return Told(True, *digest(tensors)[:1], 1e6 * seconds, digest(tensors)[1])

    return tell


def write_batch(path: Path, files: list[bytes]) -> None:
    path.write_bytes(b"".join(len(data).to_bytes(4, "little") + data for data in files))


class Other:
    """A decoder in a process of its own, which goes on from batch to batch."""

    def __init__(self, *command: str | Path) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def told(self, path: Path) -> list[Told]:
        """What it says about each file of a batch."""
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        if self.process.stdout.readline() != "done\n":
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()} at {path}")
        out = path.with_name(path.name + ".out")
        rows = struct.iter_unpack("<4I", out.read_bytes())
        foreign = {NO_MEMORY: "there was not enough memory", FOREIGN: "an error of another kind"}
        return [
            Told(status == 0, crc, microseconds, size, foreign.get(status, ""))
            for status, crc, microseconds, size in rows
        ]

    def seconds(self) -> float:
        """The processor time that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak(self) -> int:
        """The most memory that it has used, in kilobytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if "VmHWM" in line).split()[1])

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


def others(folder: Path, decoder: Path, limit: int = LIMIT) -> dict[str, Other]:
    """The decoders in C and JavaScript that can run here."""
    found = {}
    for number, (name, flags) in enumerate(BUILDS.items()):
        program = folder / f"read{number}"
        command = [
            "gcc",
            "-std=c99",
            *flags,
            f"-I{EXPORT}",
            HERE / "digests.c",
            "-o",
            program,
        ]
        if shutil.which("gcc") and not subprocess.run(command, capture_output=True).returncode:
            found[name] = Other(program, str(limit))
    if shutil.which("node"):
        found[decoder.name] = Other("node", HERE / "digests.mjs", decoder, str(limit))
    return found


@dataclass
class Report:
    """What a soak has found."""

    files: int = 0
    accepted: int = 0
    disagreements: list[str] = field(default_factory=list)  # files in hexadecimal
    foreign: list[str] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)  # microseconds a byte, where above 2 ms
    peak_kilobytes: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0  # of processor time, in all processes

    def add(self, data: bytes, told: dict[str, Told]) -> None:
        self.files += 1
        first = next(iter(told.values()))
        self.accepted += first.accepted
        if any(one.content != first.content for one in told.values()):
            says = ", ".join(f"{name} {one.content}" for name, one in told.items())
            self.disagreements.append(f"{data.hex()}: {says}")
        for name, one in told.items():
            if one.foreign:
                self.foreign.append(f"{data.hex()}: {name} {one.foreign}")
            if one.microseconds > 2000:
                each = one.microseconds / (len(data) + one.size)
                self.slowest[name] = max(self.slowest.get(name, 0.0), each)

    @property
    def is_fine(self) -> bool:
        """Whether all agreed, and none raised what it should not."""
        return not (self.disagreements or self.foreign)

    def text(self) -> str:
        rate = self.files / max(self.seconds, 1e-9)
        lines = [
            f"{self.files:,} files in {self.seconds:,.0f} s of one core ({rate:,.0f} a second)",
            f"{self.accepted:,} accepted, {len(self.disagreements):,} disagreements, "
            f"{len(self.foreign):,} foreign errors",
            "slowest, microseconds a byte in and out: "
            + ", ".join(f"{name} {each:.1f}" for name, each in self.slowest.items()),
            "peak memory, MB: "
            + ", ".join(f"{name} {kb / 1024:.0f}" for name, kb in self.peak_kilobytes.items()),
        ]
        return "\n".join([*lines, *self.disagreements[:20], *self.foreign[:20]])


def corpus(rng: random.Random) -> list[bytes]:
    """Small valid files of both versions."""
    golden = [path.read_bytes() for path in sorted((HERE / "golden").glob("*.reef"))]
    drawn = []
    while len(drawn) < 800:
        with contextlib.suppress(ReefknotError):  # a limit, where limits are low
            drawn.append(random_file(rng, 1 + len(drawn) % 2))
    return [data for data in (*golden, *drawn) if len(data) < 110]


def soak(goes_on: Callable[[Report], bool], seed: int, decoder: str = "reef.min.js") -> Report:
    """Read batches of mutants as long as the report so far says that it goes on."""
    rng, report = random.Random(seed), Report()
    originals = corpus(rng)
    mutants = Mutants(originals, rng)
    own = inside()
    compile_readers()
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        outside = others(Path(folder), EXPORT / "web" / decoder)
        path = Path(folder) / "batch"
        write_batch(path, originals)  # a warm-up, which counts for nothing
        for data in originals:
            for tell in own.values():
                tell(data)
        for other in outside.values():
            other.told(path)
        while goes_on(report):
            files = [mutants.draw() for _ in range(BATCH)]
            write_batch(path, files)
            told = {name: [tell(data) for data in files] for name, tell in own.items()}
            for number, (name, other) in enumerate(outside.items()):
                if name not in SLOW or report.files // BATCH % SELDOM == number - 1:
                    told[name] = other.told(path)
            for number, data in enumerate(files):
                says = {name: rows[number] for name, rows in told.items()}
                report.add(data, says)
                if says["library"].accepted:
                    mutants.keep(data)
            spent = [other.seconds() for other in outside.values()]
            report.seconds = time.process_time() - start + sum(spent)
        usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        report.peak_kilobytes = {name: other.peak() for name, other in outside.items()}
        report.peak_kilobytes["library and reference"] = usage
        for other in outside.values():
            other.close()
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seams", action="store_true", help="with far lower limits")
    parser.add_argument("--decoder", default="reef.min.js", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.seams:
        return with_seams(options.minutes, options.seed)
    stop = time.monotonic() + 60 * options.minutes
    shown = time.monotonic()

    def goes_on(report: Report) -> bool:
        nonlocal shown
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            print(report.text(), flush=True)
        return not report.files or time.monotonic() < stop

    report = soak(goes_on, options.seed, options.decoder)
    print(report.text())
    return 0 if report.is_fine else 1


def with_seams(minutes: float, seed: int) -> int:
    """The same from a copy of everything in which limits are lower; gives its exit code."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seams.make(folder)
        command = [sys.executable, folder / "tests" / "format" / "soak.py", "--decoder", "reef.js"]
        command += ["--minutes", str(minutes), "--seed", str(seed)]
        paths = os.pathsep.join([str(folder / "src"), str(folder / "tests")])
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}).returncode


if __name__ == "__main__":
    sys.exit(main())
