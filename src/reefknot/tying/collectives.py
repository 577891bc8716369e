"""Where processes talk to each other: the one place where tying goes over the wire.

Takes     parameters, which may be shards (`DTensor`) of tensors that nobody holds as a whole.
Gives     the part of a tensor that is here; sums over all parts, the same on every process; a
          tensor as a whole, one at a time, where it cannot be avoided.
Unaware   of clusters, phases and methods.

Sums go over those dimensions of a device mesh along which a tensor is divided, never over those
along which it is repeated. They are whole numbers, so that the result does not depend on how many
processes there are. Every process must make the same calls: so what decides about a call is itself
a sum, or something that all have alike.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from reefknot.errors import ReefknotError, TyingError
from reefknot.kernels.reducer import SingleProcess

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

MOST_GATHERED = 1 << 24  # distinct values that may go to all processes


def is_dtensor(tensor: Tensor) -> TypeGuard[Any]:
    """Whether a tensor is a `DTensor`; its module is slow to import, and often not needed."""
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that is here: all of it unless it is divided."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def full_tensor(part: Tensor, parameter: Tensor) -> Tensor:
    """A tensor of which each process has that part which it has of the parameter, whole on all."""
    divided = as_dtensor(part, parameter)
    return divided.full_tensor() if is_dtensor(divided) else divided


def as_dtensor(part: Tensor, parameter: Tensor) -> Tensor:
    """A local part as a `DTensor` like the parameter, without communication; else the part."""
    if not is_dtensor(parameter):
        return part
    return type(parameter).from_local(
        part.contiguous(),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=torch.empty(parameter.shape, device="meta").stride(),
    )


def local_shard(tensor: Tensor, parameter: Tensor) -> Tensor:
    """What belongs here of a tensor of the parameter's shape, be it a `DTensor` or whole."""
    if not is_dtensor(parameter):
        return full_tensor(local(tensor), tensor)
    mesh, divided = parameter.device_mesh, tensor
    if not is_dtensor(divided):
        from torch.distributed.tensor import Replicate

        everywhere = [Replicate()] * mesh.ndim
        divided = type(parameter).from_local(tensor, mesh, everywhere, run_check=False)
    return local(divided.redistribute(mesh, parameter.placements))


def places(parameter: Tensor) -> list[NDArray[np.int64]]:
    """Of each dimension, which of the whole parameter's indices are here."""
    part, begins = local(parameter), [0] * parameter.ndim
    if is_dtensor(parameter):
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        _, offsets = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements
        )
        begins = list(offsets)
    return [np.arange(b, b + n) for b, n in zip(begins, part.shape, strict=True)]


class Processes(SingleProcess):
    """The processes that have the other parts; none, unless tensors are divided."""

    def __init__(self, groups: Iterable["ProcessGroup"] = (), device: str = "cpu") -> None:
        self.groups = tuple(groups)
        self.is_distributed = bool(self.groups)
        self._device = device

    def total(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum over all processes, element by element."""
        return self._reduced(counts, dist.ReduceOp.SUM) if self.is_distributed else counts

    def all_reduce_max(self, numbers: NDArray) -> NDArray:
        """The highest that a process has, element by element."""
        return self._reduced(numbers, dist.ReduceOp.MAX) if self.is_distributed else numbers

    def largest(self, magnitude: float) -> float:
        """The largest of all processes' magnitudes; NaN if one is, whose bits are the highest."""
        if not self.is_distributed:
            return magnitude
        bits = np.array([abs(magnitude)]).view(np.int64)
        return float(self.all_reduce_max(bits).view(np.float64)[0])

    def sum_of(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of what each process has summed up, none negative: for logs, to 40 bits."""
        if not self.is_distributed:
            return numbers
        most = float(self.all_reduce_max(np.array([numbers.max(initial=0.0)]))[0])
        scale = np.ldexp(1.0, 44 - int(np.frexp(most)[1]))
        return self.total(np.round(numbers * scale).astype(np.int64)) / scale

    def merged(
        self, points: NDArray[np.float64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Distinct ascending points of all processes, and how often each occurs."""
        for group in self.groups:
            most = int(self.all_reduce_max(np.array([len(points)]))[0])
            if most > MOST_GATHERED:
                raise TyingError(
                    f"one process holds {most:,} distinct values of sharded weights, more than the "
                    f"{MOST_GATHERED:,} that are gathered, so they are not tied yet; pack the "
                    'network first, give num_clusters, or begin with "trained"'
                )
            rows = np.stack([points.view(np.int64), counts])
            found = list(self._gathered(rows, most, group))
            points = np.concatenate([row[0] for row in found]).view(np.float64)
            points, where = np.unique(points, return_inverse=True)
            together = np.zeros(len(points), np.int64)
            np.add.at(together, where, np.concatenate([row[1] for row in found]))
            counts = together
        return points, counts

    def gather_texts(self, text: str) -> list[str]:
        """What each process says."""
        texts = [text]
        for group in self.groups:
            data = np.frombuffer(json.dumps(texts).encode(), np.uint8).astype(np.int64)[None]
            most = int(self.all_reduce_max(np.array([data.size]))[0])
            found = self._gathered(data, most, group)
            texts = [t for row in found for t in json.loads(row.astype(np.uint8).tobytes())]
        return texts

    @property
    def is_rank0(self) -> bool:
        """Whether this is the one among them that does what one must do."""
        return all(dist.get_rank(group) == 0 for group in self.groups)

    def broadcast_from_rank0(self, number: Callable[[], int]) -> int:
        """A number, none negative, that the first one finds out for all of them."""
        if not self.is_distributed:
            return number()
        found, error = 0, None
        if self.is_rank0:
            try:
                found = number()
            except ReefknotError as mistake:
                found, error = -1, mistake
        found = int(self.total(np.array([found]))[0])
        if found < 0:
            raise error or TyingError("another process has failed, and says why")
        return found

    def _reduced(self, numbers: NDArray, how: Any) -> NDArray:
        tensor = torch.from_numpy(np.array(numbers)).to(self._device)
        for group in self.groups:
            dist.all_reduce(tensor, how, group=group)
        return tensor.cpu().numpy()

    def _gathered(
        self, rows: NDArray[np.int64], most: int, group: "ProcessGroup"
    ) -> Iterator[NDArray[np.int64]]:
        """The rows of each process, of at most `most` columns."""
        padded = np.zeros((len(rows), most + 1), np.int64)
        padded[:, 0], padded[:, 1 : rows.shape[1] + 1] = rows.shape[1], rows
        mine = torch.from_numpy(padded).to(self._device)
        all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(all_of_them, mine, group=group)
        for found in all_of_them:
            yield found[:, 1 : int(found[0, 0]) + 1].contiguous().cpu().numpy()


ONE_PROCESS = Processes()


def rank() -> int:
    """The number of this process among all."""
    return dist.get_rank() if dist.is_initialized() else 0


def nonzeros(tensor: Tensor) -> int:
    """How many elements of a tensor are not zero, wherever they are."""
    count = torch.count_nonzero(local(tensor).detach()).cpu().numpy().reshape(1)
    return int(processes_of([("", tensor)]).total(count)[0])


def reshard(model: torch.nn.Module) -> None:
    """FSDP leaves whole parameters in a model after a forward pass; put the shards back."""
    module = sys.modules.get("torch.distributed.fsdp")
    for part in model.modules() if module is not None else ():
        if isinstance(part, module.FSDPModule):  # type: ignore[union-attr]
            part.reshard()


def processes_of(named: Iterable[tuple[str, Tensor]]) -> Processes:
    """Those who hold the other parts of these tensors, which must all be divided alike.

    Meshes of the same processes are the same, although each has groups of its own.
    """
    found: dict[tuple[_Ranks, ...], tuple[str, Processes]] = {}
    for name, tensor in named:
        groups = tuple(_groups(tensor, name))
        processes = Processes(groups, str(local(tensor).device)) if groups else ONE_PROCESS
        found.setdefault(tuple(map(_ranks, groups)), (name, processes))
    if len(found) > 1:
        one, other = [name for name, _ in found.values()][:2]
        raise TyingError(
            f"{one!r} and {other!r} share their values, but are not sharded over the same "
            "processes; shard all of the model alike, or give them groups of their own (scope)"
        )
    return next((processes for _, processes in found.values()), ONE_PROCESS)


def copies_of(named: Iterable[tuple[str, Tensor]]) -> tuple["ProcessGroup", ...]:
    """The groups of processes, one for each such dimension, that repeat what is here."""
    found: dict[_Ranks, ProcessGroup] = {}
    for name, tensor in named:
        for group in _groups(tensor, name, repeated=True):
            found.setdefault(_ranks(group), group)
    return tuple(found.values())


def all_processes(tensors: Iterable[Tensor]) -> tuple["ProcessGroup", ...]:
    """The group of all processes, if there are several and none of these tensors is divided.

    A trainer has all of them train one model, and may hide the wrapper that would tell so.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return ()
    everyone = dist.group.WORLD
    assert everyone is not None
    return () if any(map(is_dtensor, tensors)) else (everyone,)


def as_in_first(tensors: Iterable[Tensor], groups: Iterable["ProcessGroup"]) -> None:
    """Give these tensors the values that they have in the first process of each group."""
    tensors = list(tensors)
    for group in groups:
        for tensor in tensors:
            dist.broadcast(local(tensor.detach()), group=group, group_src=0)


_Ranks = tuple[int, ...]


def _ranks(group: "ProcessGroup") -> _Ranks:
    return tuple(dist.get_process_group_ranks(group))


def _groups(tensor: Tensor, name: str, *, repeated: bool = False) -> Iterator["ProcessGroup"]:
    """Of each dimension of the mesh along which a tensor is divided, or repeated, the group."""
    if not is_dtensor(tensor):
        return
    mesh = tensor.device_mesh
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_partial():
            raise TyingError(
                f"{name!r} is a sum that is not computed yet ({placement}), and cannot be tied; "
                "redistribute it first"
            )
        if type(placement).__name__ == "_StridedShard":
            raise TyingError(
                f"{name!r} is sharded twice along one dimension ({placement}), as tensor "
                "parallelism under FSDP does, and cannot be tied; shard it once"
            )
        if placement.is_replicate() == repeated and mesh.size(dimension) > 1:
            yield mesh.get_group(dimension)
