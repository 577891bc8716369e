"""The tensors of a group: where they lie in memory, and whether they still do.

Takes     named parameters, which may be shards of tensors that nobody holds as a whole.
Gives     the parameters by name; the part of each that is here; their weights as numpy vectors.
Paper     –
Unaware   of centers and assignments.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from reefknot.errors import DivergedError, TyingError
from reefknot.tying import ops
from reefknot.tying.collectives import local, processes_of
from reefknot.tying.selection import Named, is_trainable

PIECE = 1 << 20


class Members(Mapping[str, Tensor]):
    """Parameters of one dtype by name, all of them divided over the same `processes`."""

    def __init__(self, named: Iterable[Named]) -> None:
        self._named: dict[str, Tensor] = dict(named)
        self.processes = processes_of(self._named.items())
        self._shapes = {name: self.here(name).shape for name in self}
        self._layouts: dict[str, ops.Layout] = {}  # as last seen; see `moved`

    def __getitem__(self, name: str) -> Tensor:
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def here(self, name: str) -> Tensor:
        """A member, or that part of it which this process has."""
        return local(self._named[name])

    @property
    def num_weights(self) -> int:
        """The number of elements of all members, in all processes."""
        return sum(parameter.numel() for parameter in self.values())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all members."""
        return next(iter(self.values())).dtype

    def moved(self, *names: str) -> Iterator[str]:
        """Members (of all, or of these) with another memory layout than when this was last asked.

        A member may be moved, converted together with all others, or given other strides. What is
        not supported is refused.
        """
        for name in names or self:
            layout = ops.layout(self.here(name))
            if layout != self._layouts.get(name):
                self._check()
                self._layouts[name] = layout
                yield name

    def _check(self) -> None:
        """Check that members keep their shapes, are dense in memory, and have one dtype."""
        for name, shape in self._shapes.items():
            parameter = self.here(name)
            if parameter.shape != shape or not ops.fills_its_memory(parameter):
                raise TyingError(
                    f"{name!r} of shape {tuple(shape)} now has shape {tuple(parameter.shape)} and "
                    f"strides {tuple(parameter.stride())}; a tied parameter keeps its shape and "
                    "fills its memory: make the method after the last change of the model"
                )
            if parameter.dtype != self.dtype or not is_trainable(parameter.dtype):
                first = next(iter(self))
                raise TyingError(
                    f"{name!r} is now {parameter.dtype}, and {first!r}, which shares its values, "
                    f"{self.dtype}; convert the whole model, to a floating-point type of at least "
                    "16 bits, or before it is given to the method"
                )

    def pieces(self, *names: str) -> Iterator[tuple[str, slice, np.ndarray]]:
        """Weights of all or some members as float32 or float64, a million at a time.

        With the member's name and the place in its memory. All processes must begin this together:
        a weight that is not finite is an error in all.
        """
        self._require_finite(names or tuple(self))
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        for name in names or self:
            weights = ops.flat(self.here(name))
            for begin in range(0, weights.numel(), PIECE):
                part = slice(begin, begin + PIECE)
                yield name, part, weights[part].to(wide).cpu().numpy()

    def weights(self) -> np.ndarray:
        """A copy of all weights here as one vector, member after member in memory order."""
        wide = np.float64 if self.dtype == torch.float64 else np.float32
        return np.concatenate([np.zeros(0, wide), *(piece for _, _, piece in self.pieces())])

    def _require_finite(self, names: Sequence[str]) -> None:
        """Raise in all processes if a weight of these members is not finite in any."""
        extents = np.array([ops.largest([self.here(name)]) for name in names])
        bad = self.processes.total((~np.isfinite(extents)).astype(np.int64))
        for name, count in zip(names, bad, strict=True):
            if count:
                raise DivergedError(
                    f"weights of {name!r} are not finite, so they cannot be clustered; lower "
                    "the learning rate or the strengths, or start from a sound checkpoint"
                )

    def rounded(self, centers: np.ndarray) -> np.ndarray:
        """Centers rounded to the weights' dtype, so that a cluster at rest does not drift."""
        if self.dtype == torch.float32:  # numpy is quicker than torch for so few numbers
            found = centers.astype(np.float32).astype(np.float64)
        else:
            found = torch.from_numpy(centers).to(self.dtype).double().numpy()
        return found + 0.0  # -0.0 becomes +0.0
