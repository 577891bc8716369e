"""Many processes: a file from shards, and resuming with another number of processes.

Takes     a method whose weights are sharded (FSDP2), or repeated (DDP), or neither.
Gives     its `.reef` file, written by one process, tensor by tensor; its state from a checkpoint of
          `torch.distributed.checkpoint`, written by any number of processes.
Unaware   of how weights are tied.

All processes call these together. `dcp.save({"tie": tie.state_dict(), ...})` writes the checkpoint.
"""

import warnings
from pathlib import Path
from typing import Any

import torch

from reefknot.errors import ReefknotError, TyingError
from reefknot.files import write_atomically, writing_atomically
from reefknot.format import encode
from reefknot.format.write import SOLID_ELEMENTS, write_parts
from reefknot.methods.method import TyingMethod
from reefknot.tying.collectives import as_dtensor
from reefknot.tying.content import Content, entries_of


def save(tie: TyingMethod, path: Path | str) -> int:
    """Finish, and write the `.reef` file atomically; gives its size in bytes.

    The bytes are those of `reefknot.save(tie.finish(), path)`. Of a network of more than two
    million weights no process ever holds more than one whole tensor, at one byte per weight.
    """
    processes = tie.tying.everyone()
    tie.finalize()
    content = tie.content()
    elements = sum(t.numel() for t in {id(t): t for t in entries_of(tie.model).values()}.values())
    written, error = 0, None
    if processes.is_rank0:
        try:
            written = _write(content, elements, path)
        except ReefknotError as mistake:
            error = mistake
    for _ in content.tensors:  # the other processes take part in gathering each tensor
        pass
    return processes.broadcast_from_rank0(lambda: _or_raise(written, error))


def _or_raise(written: int, error: ReefknotError | None) -> int:
    if error is not None:
        raise error
    return written


def _write(content: Content, elements: int, path: Path | str) -> int:
    if elements <= SOLID_ELEMENTS:
        data = encode(content.state())
        write_atomically(path, data)
        return len(data)
    with writing_atomically(path) as file:
        return write_parts(file, *content)


def load_state(
    tie: TyingMethod, checkpoint: Path | str, key: str = "tie", process_group: Any = None
) -> None:
    """Resume from a folder that `torch.distributed.checkpoint` wrote; `key` names the state in it.

    It may have been written by any number of processes. Those of `process_group` read it.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    metadata = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    prefix = f"{key}."
    found = {
        name.removeprefix(prefix): e for name, e in metadata.items() if name.startswith(prefix)
    }
    if not found:
        known = sorted({name.partition(".")[0] for name in metadata})
        raise TyingError(f"the checkpoint {checkpoint} has no state {key!r}; it has {known}")
    state = {key: {name: _room(tie, name, entry) for name, entry in found.items()}}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process is fine
        load(state, checkpoint_id=checkpoint, process_group=process_group)
    tie.load_state_dict(state[key])


def _room(tie: TyingMethod, name: str, entry: Any) -> torch.Tensor | int:
    """What an entry of the checkpoint is loaded into, sharded like the tensor it belongs to."""
    if not hasattr(entry, "size"):
        return 0
    for group in tie.tying.groups:
        kind = name.removeprefix(f"{group.name}/")
        member = kind.partition(".")[2]
        if kind != name and member in group.members:
            parameter = group.members[member]
            if parameter.shape == entry.size:
                here = group.members.here(member)
                part = torch.zeros(here.shape, dtype=entry.properties.dtype, device=here.device)
                return as_dtensor(part, parameter)
    return torch.zeros(entry.size, dtype=entry.properties.dtype)
