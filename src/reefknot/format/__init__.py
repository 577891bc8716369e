"""The `.reef` file: the only code that knows where bytes lie."""

from pathlib import Path

from reefknot.files import read_bytes, write_atomically
from reefknot.format.version0 import decode, encode
from reefknot.state import TiedState

MAX_BYTES = 4 << 30

__all__ = ["MAX_BYTES", "decode", "encode", "open_state", "save"]


def save(state: TiedState, path: Path | str) -> int:
    """Write a state to a `.reef` file, whole or not at all; gives the file's size in bytes."""
    data = encode(state)
    write_atomically(path, data)
    return len(data)


def open_state(path: Path | str, *, max_bytes: int = MAX_BYTES) -> TiedState:
    """Read a `.reef` file; `max_bytes` limits what its tensors may take up once decoded."""
    return decode(read_bytes(path), source=str(path), max_bytes=max_bytes)
