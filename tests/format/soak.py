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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from reef_examples import random_file

from format.mutate import Mutants
from format.reference import TAGS, reference
from reefknot.errors import FormatError
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


def by_the_library(data: bytes) -> Tensors:
    state = decode(data, max_bytes=LIMIT)
    return [(name, dtype.tag, v.shape, v.tobytes()) for name, dtype, v in state.arrays()]


def by_the_reference(data: bytes) -> Tensors:
    return [(name, *row) for name, row in reference.read(data, LIMIT).items()]


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


def here(read: Callable[[bytes], Tensors], refusal: type[Exception]) -> Callable[[bytes], Told]:
    """A decoder of this process."""

    def tell(data: bytes) -> Told:
        start = time.process_time()
        try:
            tensors = read(data)
        except refusal:
            return Told(False, microseconds=1e6 * (time.process_time() - start))
        except Exception as error:
            return Told(False, foreign=repr(error))
        seconds = time.process_time() - start
        return Told(True, *digest(tensors)[:1], 1e6 * seconds, digest(tensors)[1])

    return tell


class Other:
    """A decoder in a process of its own, which goes on from batch to batch."""

    def __init__(self, *command: str | Path) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def ask(self, path: Path) -> None:
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()

    def told(self, path: Path) -> list[Told]:
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


def others(folder: Path, source: Path, decoder: Path) -> dict[str, Other]:
    """The decoders in C and JavaScript that can run here."""
    found = {}
    for number, (name, flags) in enumerate(BUILDS.items()):
        program = folder / f"read{number}"
        command = [
            "gcc",
            "-std=c99",
            *flags,
            f"-I{source.parent}",
            HERE / "digests.c",
            "-o",
            program,
        ]
        if shutil.which("gcc") and not subprocess.run(command, capture_output=True).returncode:
            found[name] = Other(program, str(LIMIT))
    if shutil.which("node"):
        found[decoder.name] = Other("node", HERE / "digests.mjs", decoder, str(LIMIT))
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

    def text(self) -> str:
        lines = [
            f"{self.files:,} files in {self.seconds:,.0f} s of one core "
            f"({self.files / self.seconds:,.0f} a second)",
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
    drawn = (random_file(rng, version) for version in (1, 2) for _ in range(400))
    return [data for data in (*golden, *drawn) if len(data) < 160]


def batches(mutants: Mutants, stop: float) -> Iterator[list[bytes]]:
    while time.monotonic() < stop:
        yield [mutants.draw() for _ in range(BATCH)]


def soak(
    seconds: float, seed: int, *, each: Callable[[Report], None] = lambda report: None,
    source: Path = EXPORT / "reef.c", decoder: Path = EXPORT / "web" / "reef.min.js",
) -> Report:  # fmt: skip
    """Read mutants for so long."""
    rng, report = random.Random(seed), Report()
    mutants = Mutants(corpus(rng), rng)
    inside = {
        "library": here(by_the_library, FormatError),
        "reference": here(by_the_reference, reference.RefusedError),
    }
    for data in corpus(random.Random(seed))[:200]:  # compiles, and fills caches
        [tell(data) for tell in inside.values()]
    start, stop = time.process_time(), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        outside = others(Path(folder), source, decoder)
        for files in batches(mutants, stop):
            path = Path(folder) / "batch"
            path.write_bytes(b"".join(len(data).to_bytes(4, "little") + data for data in files))
            told = {}
            for number, (name, other) in enumerate(outside.items()):
                if name not in SLOW or report.files // BATCH % SELDOM == number:
                    other.ask(path)
                    told[name] = other.told(path)
            for name, tell in inside.items():
                told[name] = [tell(data) for data in files]
            for number, data in enumerate(files):
                says = {name: rows[number] for name, rows in told.items()}
                report.add(data, says)
                if says["library"].accepted:
                    mutants.keep(data)
            report.seconds = (
                time.process_time() - start + sum(o.seconds() for o in outside.values())
            )
            each(report)
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
    options = parser.parse_args()
    shown = time.monotonic()

    def each(report: Report) -> None:
        nonlocal shown
        if time.monotonic() - shown > 60 or report.disagreements or report.foreign:
            shown = time.monotonic()
            print(report.text(), flush=True)

    report = soak(60 * options.minutes, options.seed, each=each)
    print(report.text())
    return 1 if report.disagreements or report.foreign else 0


if __name__ == "__main__":
    sys.exit(main())
