"""From a checkpoint to a `.reef` file and back, without training.

Takes     a checkpoint of any size: it is read tensor by tensor, twice.
Gives     a file, and what was done to each tensor. Memory is needed for the largest tensor only.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from reefknot.errors import ReefknotError
from reefknot.files import check_target, writing_atomically
from reefknot.format import MAX_BYTES, encode, open_state
from reefknot.format.write import SOLID_ELEMENTS, Effort, IndexedWriter
from reefknot.packing.clustering import (
    Change,
    Plan,
    Settings,
    check_patterns,
    network_error,
    warnings_about,
)
from reefknot.state import TiedState, TiedTensor
from reefknot.tensorfile import (
    FoundTensor,
    files_of,
    metadata_of,
    open_tensors,
    write_safetensors,
)

# What `unpack` writes is none of these.
_OTHER_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".reef", ".npz", ".onnx", ".h5", ".gguf")


@dataclass(frozen=True)
class Packed:
    """What `pack` did."""

    changes: tuple[Change, ...]
    original_bytes: int
    file_bytes: int
    metadata_left_out: tuple[str, ...] = ()  # keys: version 1 of the format has no place for it

    @property
    def rate_file(self) -> float:
        """How many times smaller the file is than the elements."""
        return self.original_bytes / self.file_bytes

    @property
    def relative_error(self) -> float:
        """The L2 norm of all changes over that of all tensors that were not kept."""
        return network_error(self.changes)

    @property
    def warnings(self) -> list[str]:
        """What people should know before they use the file: a sentence each."""
        return warnings_about(self.changes)


def pack(
    source: Path | str,
    target: Path | str,
    settings: Settings | None = None,
    *,
    effort: Effort = "auto",
    force: bool = False,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> Packed:
    """Write a checkpoint as a `.reef` file; `on_bytes` hears how many bytes are done."""
    settings = settings or Settings()
    refuse_to_replace(target, force, files_of(source))
    found = open_tensors(source)
    check_patterns(settings.keep, [tensor.name for tensor in found])
    own = [tensor for tensor in found if not tensor.same_as]
    aliases = {tensor.name: tensor.same_as for tensor in found if tensor.same_as}
    plan = Plan.of(settings, [(tensor.name, tensor.dtype, tensor.read) for tensor in own])
    total = sum(tensor.num_bytes for tensor in own)
    small = sum(tensor.num_bytes // tensor.dtype.item_bytes for tensor in own) <= SOLID_ELEMENTS
    changes: list[Change] = []
    with writing_atomically(target) as file:
        if small and effort != "fast":
            tensors = []
            for tensor in own:
                tied, change = plan.tie(tensor.name, tensor.dtype, tensor.read())
                tensors.append(tied)
                changes.append(change)
            data = encode(TiedState(tuple(plan.codebooks), tuple(tensors), aliases), effort)
            file_bytes = file.write(data)
            on_bytes(total, total)
        else:
            file_bytes = _stream(IndexedWriter(file, effort), own, plan, aliases, changes, on_bytes)
    return Packed(tuple(changes), total, file_bytes, metadata_of(source))


def _stream(
    writer: IndexedWriter, found: list[FoundTensor], plan: Plan, aliases: dict[str, str],
    changes: list[Change], on_bytes: Callable[[int, int], None],
) -> int:  # fmt: skip
    total, done, announced = sum(tensor.num_bytes for tensor in found), 0, 0
    for tensor in found:
        tied, change = plan.tie(tensor.name, tensor.dtype, tensor.read())
        while announced < len(plan.codebooks):
            writer.add_codebook(plan.codebooks[announced])
            announced += 1
        if isinstance(tied, TiedTensor):
            # Checked as a state would check it, without holding the others.
            TiedState((*plan.codebooks[: tied.codebook + 1],), (tied,))
        writer.add(tied)
        changes.append(change)
        done += tensor.num_bytes
        on_bytes(done, total)
    writer.finish(aliases)
    return writer.bytes_written


def unpack(
    source: Path | str, target: Path | str, *, force: bool = False, max_bytes: int = MAX_BYTES
) -> int:
    """Write a `.reef` file as a safetensors file; gives its size in bytes."""
    refuse_to_replace(target, force, [Path(source)])
    if Path(target).suffix.lower() in _OTHER_ENDINGS:
        raise ReefknotError(
            f"{target}: unpack writes safetensors; name a file that ends in .safetensors"
        )
    write_safetensors(open_state(source, max_bytes=max_bytes), target)
    return Path(target).stat().st_size


def refuse_to_replace(path: Path | str, force: bool, sources: Iterable[Path]) -> None:
    """Stop before work is done for a file that must not be replaced; a source never is."""
    exists = check_target(path)
    for source in sources:
        with contextlib.suppress(OSError):  # one of them is not there
            if source.samefile(path):
                raise ReefknotError(f"{path} is a file of the source; name another file to write")
    if exists and not force:
        raise ReefknotError(f"{path} exists; use --force to replace it")
