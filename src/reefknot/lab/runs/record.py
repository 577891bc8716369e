"""record.json: the results of a run as one flat table.

Takes     the record as a dict.
Gives     the file, or the dict that a file holds; and the versions of the software involved.
"""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from reefknot import __version__
from reefknot.errors import FormatError
from reefknot.files import read_bytes, write_atomically

Record = dict[str, Any]


def write_record(folder: Path, record: Record) -> None:
    """Write the record atomically."""
    write_atomically(folder / "record.json", (json.dumps(record, indent=2) + "\n").encode())


def read_record(folder: Path) -> Record:
    """The record of a finished run."""
    path = folder / "record.json"
    try:
        record = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(record, dict):
        raise FormatError(f"{path} holds a {type(record).__name__}; a record was expected")
    return record


def versions() -> dict[str, str]:
    """The versions of Python, of this package, and of the libraries that results depend on."""
    others = {name: version(name) for name in ("torch", "numpy", "numba")}
    return {"python": platform.python_version(), "reefknot": __version__} | others
