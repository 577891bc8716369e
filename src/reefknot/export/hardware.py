"""What a network takes on a chip: the compiler's sizes, and a simulator's time.

Takes     a folder with net.c and net.h, and a chip of `CHIPS`.
Gives     `Figures`: flash, RAM and time; and the outputs that the simulated chip gives for inputs.
Unaware   of networks: it compiles what is there.

Flash is everything: tables, code, the compiler's floating-point routines, the startup code. RAM is
all variables, input and output buffers included, and the deepest stack of a run.
"""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from reefknot.errors import ReefknotError
from reefknot.progress import doing

_FLAGS = (
    *("-std=c99", "-Os", "-Wall", "-Wextra", "-Werror"),
    *("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections"),
)
# The linker must not stop at the chip's limits: the message says by how much they are exceeded.
_ROOM = "-Wl,--defsym=__DATA_REGION_LENGTH__=0xff00,--defsym=__TEXT_REGION_LENGTH__=0x100000"
_SECONDS = 120  # the time limit of a simulation


@dataclass(frozen=True)
class Chip:
    """A chip with its compiler and a simulator of it."""

    name: str
    prefix: str  # of the compiler's tools
    flags: tuple[str, ...]
    simulator: tuple[str, ...]
    tick: int  # cycles or instructions for a tick of the timer
    time: str  # what is counted
    flash_bytes: int
    ram_bytes: int

    @property
    def compiler(self) -> str:
        """The program that compiles for it."""
        return f"{self.prefix}gcc"

    def missing(self) -> str:
        """The first program that is not installed; empty if all are there."""
        tools = (self.compiler, f"{self.prefix}size", self.simulator[0])
        return next((tool for tool in tools if shutil.which(tool) is None), "")


CHIPS = {
    "atmega328p": Chip(
        "ATmega328P", "avr-", ("-mmcu=atmega328p", "-mrelax"),
        ("simavr", "-m", "atmega328p", "-f", "16000000"),
        1_024, "cycles", 32_768, 2_048,
    ),
    # qemu counts no cycles: with icount an instruction takes 1 ns, and the timer runs at 25 MHz.
    "cortex-m3": Chip(
        "Cortex-M3", "arm-none-eabi-",
        ("-mcpu=cortex-m3", "-mthumb", "-nostartfiles", "--specs=nano.specs"),
        ("qemu-system-arm", "-M", "mps2-an385", "-nographic", "-monitor", "none", "-serial",
         "none", "-icount", "shift=0", "-semihosting-config", "enable=on,target=native", "-kernel"),
        40, "instructions", 262_144, 65_536,
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Figures:
    """What one network takes on one chip, and its outputs there."""

    chip: Chip
    flash_bytes: int
    ram_bytes: int
    time: int  # the longest run, in the chip's unit
    outputs: np.ndarray  # (inputs, outputs)

    def __str__(self) -> str:
        return (
            f"{self.chip.name}: flash {self.flash_bytes:,} bytes, RAM {self.ram_bytes:,} bytes, "
            f"{self.time:,} {self.chip.time}"
        )


@doing("simulating a chip")
def measure(folder: Path | str, chip: Chip, inputs: np.ndarray | None = None) -> Figures:
    """Compile net.c of a folder for a chip, and run it there; on zeros, if no inputs are given."""
    if tool := chip.missing():
        raise ReefknotError(f"{tool} is not installed, which measuring on the {chip.name} needs")
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        flash, variables = _sizes(chip, _built(Path(folder), chip, work / "bare", "-DBARE", _ROOM))
        if flash > chip.flash_bytes or variables > chip.ram_bytes:
            raise ReefknotError(
                f"the network does not fit on the {chip.name}: it takes {flash:,} of "
                f"{chip.flash_bytes:,} bytes of flash and more than {variables:,} of "
                f"{chip.ram_bytes:,} bytes of RAM"
            )
        options = []
        if inputs is not None:
            (work / "images.h").write_text(_images(inputs))
            options = [f"-DIMAGES={len(inputs)}", f"-I{work}"]
        lines = _simulated(chip, _built(Path(folder), chip, work / "told", *options))
    *runs, stack = lines
    if any(len(run) < 2 for run in runs) or len(stack) != 1:
        raise ReefknotError(f"the simulated {chip.name} printed something other than outputs")
    outputs = np.array([run[1:] for run in runs], np.uint32).view(np.float32)
    time = max(run[0] for run in runs) * chip.tick
    return Figures(chip, flash, variables + stack[0], time, outputs)


def _built(folder: Path, chip: Chip, target: Path, *options: str) -> Path:
    with resources.as_file(resources.files("reefknot.export").joinpath("firmware")) as firmware:
        script = ("-T", str(firmware / "cortex-m.ld")) if "-nostartfiles" in chip.flags else ()
        sources = (str(firmware / "main.c"), str(folder / "net.c"))
        command = [
            *(chip.compiler, *chip.flags, *_FLAGS, *script, f"-I{folder}", *options),
            *(*sources, "-o", str(target), "-lm"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "region" in done.stderr and done.returncode:
        raise ReefknotError(f"the network is far too large for the {chip.name}")
    if done.returncode:
        raise ReefknotError(
            f"{chip.compiler} refuses {folder / 'net.c'}: {' '.join(done.stderr.split())[:500]}"
        )
    return target


def _sizes(chip: Chip, program: Path) -> tuple[int, int]:
    """Flash, and RAM for variables."""
    done = subprocess.run(
        [f"{chip.prefix}size", str(program)], capture_output=True, text=True, check=True
    )
    text, data, bss = map(int, done.stdout.splitlines()[1].split()[:3])
    return text + data, data + bss


def _images(inputs: np.ndarray) -> str:
    """Inputs as rows of a C table."""
    flat = inputs.reshape(len(inputs), -1)
    if flat.dtype == np.uint8:
        rows = ([str(value) for value in row] for row in flat.tolist())
    else:
        rows = ([float(value).hex() + "f" for value in row] for row in flat.astype(np.float32))
    return "".join(f"{{ {', '.join(row)} }},\n" for row in rows)


def _simulated(chip: Chip, program: Path) -> list[list[int]]:
    """The lines that the firmware prints, as numbers."""
    try:
        done = subprocess.run(
            [*chip.simulator, str(program)],
            capture_output=True, stdin=subprocess.DEVNULL, timeout=_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ReefknotError(
            f"the simulated {chip.name} did not finish within {_SECONDS} s"
        ) from error
    told = (done.stdout + b"\n" + done.stderr).decode(errors="replace")
    lines = []
    for line in told.splitlines():
        # simavr colours the output of a chip, and prints a dot for the end of a line.
        words = line.replace("\x1b[32m", "").replace("\x1b[0m", "").rstrip(".").split()
        if words and all(len(w) == 8 and set(w) <= set("0123456789abcdef") for w in words):
            lines.append([int(word, 16) for word in words])
    if not lines:
        raise ReefknotError(f"{chip.simulator[0]} gave no lines: {' '.join(told.split())[-300:]}")
    return lines
