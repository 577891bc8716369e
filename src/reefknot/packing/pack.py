"""From a checkpoint to a `.reef` file and back, without training.

Takes     a checkpoint of any size: it is read tensor by tensor, twice.
Gives     a file, and what was done to each tensor. Memory is needed for the largest tensor only.
"""

import contextlib
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np

from reefknot.dtypes import DType
from reefknot.errors import ConfigError, ReefknotError
from reefknot.files import check_place, check_target, writing_atomically
from reefknot.format import MAX_BYTES, encode, open_state
from reefknot.format.write import SOLID_ELEMENTS, Effort, IndexedWriter
from reefknot.packing.budget import EVERYTHING, Budget, BudgetPlan
from reefknot.packing.changes import Change, energy_lost, network_error, not_finite, unseen
from reefknot.packing.clustering import Plan, Settings, Tensor, check_patterns
from reefknot.progress import doing, each
from reefknot.state import Codebook, TiedState, TiedTensor
from reefknot.tensorfile import (
    FoundTensor,
    files_of,
    metadata_of,
    open_tensors,
    write_safetensors,
)

if TYPE_CHECKING:
    from reefknot.packing.outputs import OutputChange

# Endings of other formats, which `unpack` does not write.
_OTHER_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".reef", ".npz", ".onnx", ".h5", ".gguf")

IN_A_FOLDER = "model.safetensors"
CLOSE = 0.985  # a file that fills this much of the budget is good enough
ATTEMPTS = 6
MARGIN = 0.002  # of the budget, more with each attempt
ALMOST_ALL = 0.5  # of the original bytes: with so much allowed, a lossless file may fit


@dataclass(frozen=True)
class Packed:
    """What `pack` did."""

    changes: tuple[Change, ...]
    original_bytes: int
    file_bytes: int
    elements: int
    metadata_left_out: tuple[str, ...] = ()  # keys: a `.reef` file has no place for metadata
    outputs: "OutputChange | None" = None  # where there were inputs

    @property
    def rate_file(self) -> float:
        """How many times smaller the file is than the elements."""
        return self.original_bytes / self.file_bytes

    @property
    def bits(self) -> float:
        """Bits of the file for each element."""
        return 8 * self.file_bytes / max(self.elements, 1)

    @property
    def lossless(self) -> bool:
        """Whether every tensor reads back as it was."""
        return not any(change.largest_error for change in self.changes)

    @property
    def relative_error(self) -> float:
        """The L2 norm of all changes over that of all tensors that were not kept."""
        return network_error(self.changes)

    @property
    def worst_row(self) -> float:
        """The relative error of the row, in any tensor, that has the largest."""
        return max((change.worst_row for change in self.changes), default=0.0)

    @property
    def warnings(self) -> list[str]:
        """Warnings about the file, a sentence each."""
        if self.outputs is None:
            return energy_lost(self.changes) + not_finite(self.changes)
        # With inputs, errors of weights compensate each other: only those of the outputs count.
        return [*self.outputs.warnings, *unseen(self.changes), *not_finite(self.changes)]


class Ties(Protocol):
    """What a file is written from: a plan of `clustering`, or of `budget`."""

    codebooks: list[Codebook]

    def tie(self, name: str, dtype: DType, values: np.ndarray) -> tuple[Tensor, Change]:
        """One tensor as it is to be stored."""


@doing("packing")
def pack(
    source: Path | str,
    target: Path | str,
    settings: Settings | None = None,
    *,
    budget: Budget | None = None,
    effort: Effort = "auto",
    force: bool = False,
    key: str | None = None,
) -> Packed:
    """Write a checkpoint as a `.reef` file; `key` names the state dict in a torch file."""
    refuse_to_replace(target, force, files_of(source))
    found = open_tensors(source, key)
    packed = pack_tensors(found, target, settings or Settings(), budget, effort)
    return replace(packed, metadata_left_out=metadata_of(source))


def pack_tensors(
    found: Sequence[FoundTensor], target: Path | str, settings: Settings, budget: Budget | None,
    effort: Effort,
) -> Packed:  # fmt: skip
    """Write tensors that are read one by one: losslessly, clustered, or within a budget."""
    check_patterns(settings.keep, [tensor.name for tensor in found])
    if budget is not None and not settings.lossless:
        raise ConfigError("give a budget (--size, --bits, --error), or --clusters and --density")
    writer = Writer(found, effort)
    with writing_atomically(target) as file:
        if budget is None:
            changes, file_bytes = writer.write(file, Plan.of(settings, writer.own))
        else:
            changes, file_bytes = within_budget(writer, file, settings, budget)
    return writer.packed(changes, file_bytes)


def within_budget(
    writer: "Writer", file: BinaryIO, settings: Settings, budget: Budget
) -> tuple[list[Change], int]:
    """Write until the file fits; each attempt corrects the estimate by the size of the last one."""
    plan = BudgetPlan.of(settings, writer.each("measuring"))
    limit = budget.bytes_for(writer.elements)
    if limit is None:
        plan.at_error(budget.error or 0.0)
        return writer.write(file, plan)
    if limit >= ALMOST_ALL * writer.total or not plan.tied:
        lossless = writer.write(file, Plan.of(settings, writer.own))
        if lossless[1] <= limit:
            return lossless
    overhead = float(sum(t.num_bytes for t in writer.own if t.name not in plan.tied))
    best: tuple[int, float] = (-1, EVERYTHING)
    last = None
    for attempt in range(ATTEMPTS):
        # A little less with each attempt, so that the last ones fit.
        goal = limit * (1 - MARGIN * attempt) - overhead
        plan.at_error(plan.error_for_bytes(goal) if goal > 0 else EVERYTHING)
        with doing(pass_of(attempt, ATTEMPTS, last)):
            changes, size = writer.write(file, plan)
        last = size, size / limit
        if CLOSE * limit <= size <= limit:
            return changes, size
        if best[0] < size <= limit:
            best = (size, plan.error)
        if size > limit and plan.error == EVERYTHING:
            raise _too_few(limit, size)
        overhead = size - plan.estimate(plan.error)  # what is kept, and what the coder saves
    plan.at_error(best[1])
    with doing("the best pass again"):
        return writer.write(file, plan)


def pass_of(number: int, most: int, last: tuple[int, float] | None) -> str:
    """A pass in words; of the last one, its bytes and its share of the budget."""
    told = "" if last is None else f", the last one: {last[0]:,} bytes, {last[1]:.1%} of the budget"
    return f"pass {number + 1} of at most {most}{told}"


def require_enough(
    found: Sequence[FoundTensor], settings: Settings, budget: Budget, effort: Effort
) -> None:
    """Stop before work is done for a size that cannot be reached by tying weights."""
    writer = Writer(found, effort)
    limit = budget.bytes_for(writer.elements)
    if limit is None:
        return
    plan = BudgetPlan.of(settings, writer.each("measuring"))
    plan.at_error(EVERYTHING)
    _, size = writer.write(io.BytesIO(), plan)
    if size > limit:
        raise _too_few(limit, size)


def _too_few(limit: int, size: int) -> ConfigError:
    return ConfigError(
        f"{limit:,} bytes are too few: with every tied weight at zero the file has {size:,}, for "
        "biases, norms and other tensors that are kept exactly: allow more, or tie them too "
        "(min_size=0, --min-size 0)"
    )


class Writer:
    """Writes the tensors of a checkpoint, as often as it is asked to, from its start."""

    def __init__(self, found: Sequence[FoundTensor], effort: Effort) -> None:
        self.own = [tensor for tensor in found if not tensor.same_as]
        self._aliases = {tensor.name: tensor.same_as for tensor in found if tensor.same_as}
        self.total = sum(tensor.num_bytes for tensor in self.own)
        self.elements = sum(math.prod(tensor.shape) for tensor in self.own)
        self._effort = effort
        self._seconds: dict[str, list[float]] = {}  # see `each`

    def each(self, what: str) -> Iterator[FoundTensor]:
        """All tensors in order, while something is done to them."""
        before = self._seconds.setdefault(what, [])
        return each(what, self.own, size=lambda tensor: tensor.num_bytes, before=before)

    def write(self, file: BinaryIO, plan: Ties) -> tuple[list[Change], int]:
        """Write all tensors; gives what was done to each, and the size of the file."""
        file.seek(0)
        file.truncate()
        changes: list[Change] = []
        if self.elements <= SOLID_ELEMENTS and self._effort != "fast":
            tensors = []
            for tensor in self.each("reading"):
                tied, change = plan.tie(tensor.name, tensor.dtype, tensor.read())
                tensors.append(tied)
                changes.append(change)
            state = TiedState(tuple(plan.codebooks), tuple(tensors), self._aliases)
            file_bytes = file.write(encode(state, self._effort))
            return changes, file_bytes
        return changes, self._stream(file, plan, changes)

    def write_exactly(self, file: BinaryIO) -> tuple[list[Change], int]:
        """Write all tensors as they are, those with few values with a codebook."""
        return self.write(file, Plan.of(Settings(), self.own))

    def packed(
        self, changes: Sequence[Change], file_bytes: int, outputs: "OutputChange | None" = None
    ) -> Packed:
        """What was done, in all."""
        return Packed(tuple(changes), self.total, file_bytes, self.elements, outputs=outputs)

    def _stream(self, file: BinaryIO, plan: Ties, changes: list[Change]) -> int:
        writer, announced = IndexedWriter(file, self._effort), 0
        for tensor in self.each("writing"):
            tied, change = plan.tie(tensor.name, tensor.dtype, tensor.read())
            while announced < len(plan.codebooks):
                writer.add_codebook(plan.codebooks[announced])
                announced += 1
            if isinstance(tied, TiedTensor):
                # Checked as a state would check it, without holding the others.
                TiedState((*plan.codebooks[: tied.codebook + 1],), (tied,))
            writer.add(tied)
            changes.append(change)
        writer.finish(self._aliases)
        return writer.bytes_written


@doing("unpacking")
def unpack(
    source: Path | str, target: Path | str, *, force: bool = False, max_bytes: int = MAX_BYTES
) -> int:
    """Write a `.reef` file as a safetensors file; gives its size in bytes.

    In an existing folder it is named `model.safetensors`, as on model hubs.
    """
    if Path(target).is_dir():
        target = Path(target) / IN_A_FOLDER
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
    check_place(path)
    for source in sources:
        with contextlib.suppress(OSError):  # one of them is not there
            if source.samefile(path):
                raise ReefknotError(f"{path} is a file of the source; name another file to write")
    if exists and not force:
        raise ReefknotError(f"{path} exists; use --force to replace it")
