"""The `.reef` file: the only code that knows where bytes lie."""

from collections.abc import Collection
from pathlib import Path

from reefknot.errors import ReefknotError
from reefknot.files import reading, write_atomically
from reefknot.format.read import FileContent, decode, read_content, read_header, read_state
from reefknot.format.write import Effort, encode
from reefknot.progress import doing
from reefknot.state import TiedState

MAX_BYTES = 4 << 30

__all__ = ["MAX_BYTES", "decode", "encode", "open_file", "open_state", "save", "tensor_names"]


@doing("saving")
def save(state: TiedState, path: Path | str, *, effort: Effort = "auto") -> int:
    """Write a state to a `.reef` file, atomically; gives the file's size in bytes."""
    if not isinstance(state, TiedState):
        raise ReefknotError(
            f"save writes a TiedState, found a {type(state).__name__}; it comes from "
            "tie.finish(), or from reefknot.cluster(model.state_dict())"
        )
    data = encode(state, effort)
    write_atomically(path, data)
    return len(data)


@doing("reading")
def open_state(
    path: Path | str, *, names: Collection[str] | None = None, max_bytes: int = MAX_BYTES
) -> TiedState:
    """Read a `.reef` file, or only the tensors in `names`.

    `max_bytes` limits what the tensors may take up once decoded.
    """
    with reading(path) as file:
        return read_state(file, source=str(path), max_bytes=max_bytes, names=names)


@doing("reading")
def open_file(path: Path | str, *, max_bytes: int = MAX_BYTES) -> FileContent:
    """Read a `.reef` file, and find out where its bytes went."""
    with reading(path) as file:
        return read_content(file, source=str(path), max_bytes=max_bytes)


def tensor_names(path: Path | str) -> list[str]:
    """The names in a `.reef` file, aliases last; no tensor is decoded."""
    with reading(path) as file:
        header = read_header(file, source=str(path))
    return [entry.name for entry in header.entries] + [name for name, _ in header.aliases]
