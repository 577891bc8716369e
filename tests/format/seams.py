"""The four decoders with limits that are far lower, so that small files reach them.

Takes     a folder.
Gives     copies of the package, of the decoders and of these tests in it, to run soak.py from.

A limit that is written as a number in four places is replaced in each; one that cannot be found is
an error. Buffers of the library are smaller, too.
"""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
SEAMS = {  # file: what stands there, and what stands there instead
    "src/reefknot/format/layout.py": {
        "MAX_NAME_BYTES: Final = 65_536": "MAX_NAME_BYTES: Final = 40",
        "MAX_DIMENSIONS: Final = 64": "MAX_DIMENSIONS: Final = 3",
        "MAX_ELEMENTS: Final = 1 << 46": "MAX_ELEMENTS: Final = 1 << 7",
        "MAX_CODEBOOK: Final = 65_536": "MAX_CODEBOOK: Final = 40",
        "SOLID_BUDGET: Final = 1 << 21": "SOLID_BUDGET: Final = 30",
        "STREAM_BUDGET: Final = 256": "STREAM_BUDGET: Final = 8",
        "BUDGET_PER_BYTE: Final = 16": "BUDGET_PER_BYTE: Final = 1",
        "PARTS_PER_BYTE = 64, 2": "PARTS_PER_BYTE = 4, 0",
        "VALUES_PER_BYTE = MAX_CODEBOOK, 8": "VALUES_PER_BYTE = MAX_CODEBOOK, 0",
        "CHARACTERS_PER_BYTE = 1 << 20, 64": "CHARACTERS_PER_BYTE = 24, 0",
    },
    "src/reefknot/format/read.py": {
        "PARALLEL_ELEMENTS = 1 << 20": "PARALLEL_ELEMENTS = 20",
        "CHUNK = 1 << 20": "CHUNK = 3",
    },
    "src/reefknot/codec/static.py": {"CHUNK = 1 << 20": "CHUNK = 8"},
    "src/reefknot/codec/coder.py": {"SOME_TEXT = 32": "SOME_TEXT = 2"},
    "src/reefknot/codec/tied.py": {"MAX_UNITS = 1 << 20": "MAX_UNITS = 4"},
    "src/reefknot/codec/kernels/tied_model.py": {"LINE_MASK = (1 << 20) - 1": "LINE_MASK = 3"},
    "src/reefknot/codec/kernels/tied_elements.py": {
        "SHARED_LIMIT = 32": "SHARED_LIMIT = 4",
        "ROOM_CHECK = 1023": "ROOM_CHECK = 1",
    },
    "docs/reference_decoder.py": {
        "len(name) <= 65_536": "len(name) <= 40",
        "rank <= 64": "rank <= 3",
        "<= 1 << 46": "<= 1 << 7",
        "65_536 + 8 * file_bytes - num_values": "40 - num_values",
        "min(65_536, most_values)": "min(40, most_values)",
        "(1 << 21) + 16 * (len(data) - 8)": "30 + len(data) - 8",
        "256 + 16 * len(stream)": "8 + len(stream)",
        "64 + 2 * file_bytes": "4",
        "(1 << 20) + 64 * file_bytes": "24",
        "rows <= 1 << 20": "rows <= 4",
        "4416, (1 << 20) - 1, -1": "4416, 3, -1",
        "while seen >= 32": "while seen >= 4",
    },
    "src/reefknot/export/reef.c": {
        "++taken <= 65536": "++taken <= 40",
        "rank <= 64": "rank <= 3",
        "(uint64_t)1 << 46": "(uint64_t)1 << 7",
        "65536 + 8 * file_bytes - num_values": "40 - num_values",
        "n <= 65536 &&": "n <= 40 &&",
        "(1u << 21) + 16 * ((uint64_t)size - 8)": "30 + (uint64_t)size - 8",
        "256 + 16 * entry->bytes": "8 + entry->bytes",
        "64 + 2 * file_bytes": "4",
        "(1u << 20) + 64 * file_bytes": "24",
        "#define MAX_UNITS (1u << 20)": "#define MAX_UNITS 4u",
        "own.seen >= 32": "own.seen >= 4",
    },
    "src/reefknot/export/web/reef.js": {
        "name.length <= ONE": "name.length <= 40",
        "rank <= 64": "rank <= 3",
        "most <= 2 ** 46": "most <= 2 ** 7",
        "ONE + 8 * length,": "40,",
        "type < 19 && length <= ONE": "type < 19 && length <= 40",
        "2 ** 21 + 16 * length - 128": "30 + length - 8",
        "256 + 16 * data.length": "8 + data.length",
        "64 + 2 * length": "4",
        "2 ** 20 + 64 * length": "24",
        "SHARED = 2 ** 20": "SHARED = 4",
        "aged(context, 32 << 10)": "aged(context, 4 << 10)",
    },
}


def make(folder: Path) -> None:
    """Copy all that a soak needs, with the lower limits."""
    for part in (
        "src/reefknot",
        "tests/format",
        "docs/reference_decoder.py",
        "tests/reef_examples.py",
    ):
        target = folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    for name, changes in SEAMS.items():
        path = folder / name
        text = path.read_text()
        for old, new in changes.items():
            if text.count(old) != 1:
                raise LookupError(f"{name} has {old!r} {text.count(old)} times, not once")
            text = text.replace(old, new)
        path.write_text(text)
