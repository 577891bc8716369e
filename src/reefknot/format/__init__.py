"""The `.reef` file: the only code that knows where bytes lie."""

from collections.abc import Collection
from pathlib import Path

from reefknot.errors import ReefknotError
from reefknot.files import write_atomically
from reefknot.format.read import about, decode, read_header, read_state
from reefknot.format.write import Effort, encode
from reefknot.state import TiedState

MAX_BYTES = 4 << 30

__all__ = ["MAX_BYTES", "decode", "encode", "open_state", "save", "tensor_names"]


def save(state: TiedState, path: Path | str, *, effort: Effort = "auto") -> int:
    """Write a state to a `.reef` file, whole or not at all; gives the file's size in bytes."""
    if not isinstance(state, TiedState):
        raise ReefknotError(
            f"save writes a TiedState, found a {type(state).__name__}; it comes from "
            "tie.finish(), or from reefknot.cluster(model.state_dict())"
        )
    data = encode(state, effort)
    write_atomically(path, data)
    return len(data)


def open_state(
    path: Path | str, *, names: Collection[str] | None = None, max_bytes: int = MAX_BYTES
) -> TiedState:
    """Read a `.reef` file, or only the tensors in `names`.

    `max_bytes` limits what the tensors may take up once decoded.
    """
    try:
        with Path(path).open("rb") as file:
            return read_state(file, source=str(path), max_bytes=max_bytes, names=names)
    except OSError as error:
        raise ReefknotError(f"{path} could not be read: {error.strerror or error}") from error


def tensor_names(path: Path | str) -> list[str]:
    """The names in a `.reef` file, aliases last; no tensor is decoded."""
    try:
        with Path(path).open("rb") as file:
            header, _ = read_header(file)
    except OSError as error:
        raise ReefknotError(f"{path} could not be read: {error.strerror or error}") from error
    except ReefknotError as error:
        raise about(str(path), error) from error
    return [entry.name for entry in header.entries] + [name for name, _ in header.aliases]
