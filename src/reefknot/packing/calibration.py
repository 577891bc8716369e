"""Calibration: which products with weights a network computes, and the moments of their inputs.

Takes     a torch module's tensors, and what torch computes with them.
Gives     `Watch`, which finds every product as it is computed; `Moments` of the inputs of one.
Unaware   of quantization, and of how a network is run.

Products are intercepted where torch dispatches them (`aten::mm`, `addmm`, `convolution`), not by
the kind of module: projections of attention, the steps of recurrent layers and functions that
people write themselves are all seen. A weight is recognised by its address in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
SiteKey = tuple[str, int, bool]


@dataclass(frozen=True)
class Site:
    """A product in a network: a weight, or some of its rows, times inputs; or a BatchNorm."""

    name: str
    first_row: int = 0
    rows: int = 0
    groups: int = 1
    transposed: bool = False  # the weight is (in, out), all of it
    norm: _BatchNorm | None = None  # instead of a weight
    after: str = ""  # of a norm: the weight whose products are directly its inputs

    @property
    def key(self) -> SiteKey:
        """What tells it from all other sites of the network."""
        return self.name, self.first_row, self.transposed

    def rows_of(self, weight: Tensor) -> Tensor:
        """The part of the weight that is multiplied, (out, ...): a view."""
        return weight.T if self.transposed else weight[self.first_row :][: self.rows]


class Moments:
    """Sums over inputs in the packed network, and over the same inputs in the original one.

    One matrix for each group of a convolution; `finish` turns the sums into means.
    """

    def __init__(self, weights: Tensor) -> None:
        """Of the inputs of original weights (groups, out, in)."""
        groups, _, width = weights.shape
        self._weights = weights
        self.second = torch.zeros(groups, width, width)  # packed inputs with packed inputs
        self.cross = torch.zeros_like(weights)  # original outputs with packed inputs
        self.first, self.original_first = torch.zeros(2, groups, width)
        self._fourth = torch.zeros(groups)  # of the length of packed inputs
        self.output_square = torch.zeros(())  # of original outputs, summed over all of them
        self.count = 0

    def add(self, inputs: Tensor, originals: Tensor) -> None:
        """Add inputs of the shape (n, groups, in)."""
        packed, original = (x.transpose(0, 1).float() for x in (inputs, originals))
        torch.baddbmm(self.second, packed.mT, packed, out=self.second)
        outputs = torch.bmm(self._weights, original.mT)
        torch.baddbmm(self.cross, outputs, packed, out=self.cross)
        self.output_square += outputs.square().sum()
        self.first += packed.sum(1)
        self.original_first += original.sum(1)
        self._fourth += packed.square().sum(2).square().sum(1)
        self.count += packed.shape[1]

    def finish(self) -> None:
        """Turn the sums into means."""
        totals = (self.second, self.cross, self.first, self.original_first, self._fourth)
        for total in (*totals, self.output_square):
            total /= max(self.count, 1)

    def damping(self) -> Tensor:
        """What the diagonal of `second` lacks for so few inputs, relative to its mean; (groups,).

        The second moments are shrunk towards a multiple of the identity, as far as the expected
        squared error of their elements is least (Ledoit and Wolf 2004).
        """
        square = self.second.square().sum((1, 2))
        mean = self.second.diagonal(dim1=1, dim2=2).mean(1)
        width = self.second.shape[-1]
        noise = (self._fourth - square).clamp(min=0) / max(self.count, 1)
        signal = (square - width * mean.square() - noise).clamp(min=1e-3 * square)
        return noise / signal.clamp(min=1e-30)


class Watch(TorchDispatchMode):
    """Calls `on_site` for every product with a weight, in the order in which they are computed."""

    def __init__(
        self, weights: dict[str, Tensor], on_site: Callable[[Site, Callable[[], Tensor]], None]
    ) -> None:
        super().__init__()
        self._places = {w.untyped_storage().data_ptr(): (n, w) for n, w in weights.items()}
        self._on_site = on_site
        self._last: tuple[str, Tensor] | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kind = func.overloadpacket
        if kind in (_aten.mm, _aten.addmm):
            inputs, matrix = args[-2:] if kind is _aten.mm else args[1:3]
            self._product(inputs, matrix)
        elif kind is _aten.convolution and not args[6]:  # not a transposed one
            self._convolution(args[0], args[1], args[3], args[4], args[5], args[8])
        elif torch.is_inference_mode_enabled():  # then torch leaves it to us to take it apart
            with self:
                result = func.decompose(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        result = func(*args, **(kwargs or {}))
        if kind in (_aten.mm, _aten.addmm, _aten.convolution):
            found = self._find(args[2] if kind is _aten.addmm else args[1])
            self._last = (found[0], result) if found else None
        return result

    def whose_products(self, tensor: Tensor) -> str:
        """The name of the weight whose product this tensor is, unless it was changed since."""
        if self._last is None:
            return ""
        name, result = self._last
        same = result.data_ptr() == tensor.data_ptr() and result.numel() == tensor.numel()
        return name if same and not tensor.is_inference() and tensor._version == 0 else ""

    def _find(self, tensor: Tensor) -> tuple[str, Tensor] | None:
        return self._places.get(tensor.untyped_storage().data_ptr())

    def _product(self, inputs: Tensor, matrix: Tensor) -> None:
        found = self._find(matrix)
        if found is None:
            return
        name, weight = found
        width = weight.shape[-1]
        if weight.dim() == 2 and matrix.shape[0] == width and matrix.stride() == (1, width):
            first = (matrix.storage_offset() - weight.storage_offset()) // width
            self._on_site(Site(name, first, matrix.shape[1]), lambda: inputs[:, None])
        elif matrix.shape == weight.shape and matrix.stride() == (width, 1):
            self._on_site(Site(name, 0, width, transposed=True), lambda: inputs[:, None])

    def _convolution(
        self, inputs: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> None:
        found = self._find(weight)
        if found is not None and weight.shape == found[1].shape:
            site = Site(found[0], 0, len(weight), groups)
            kernel = tuple(weight.shape[2:])
            self._on_site(site, lambda: patches(inputs, kernel, stride, padding, dilation, groups))


def patches(
    inputs: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """What a convolution of any dimension multiplies: a view (n, *positions, groups, in, *kernel).

    Nothing is copied but the padding.
    """
    margins = [m for p in reversed(padding) for m in (p, p)]
    view = nn.functional.pad(inputs, margins)
    for at, (size, step, apart) in enumerate(zip(kernel, stride, dilation, strict=True)):
        view = view.unfold(2 + at, (size - 1) * apart + 1, step)[..., ::apart]
    dims = len(kernel)
    view = view.movedim(1, 1 + dims)  # (n, *positions, channels, *kernel)
    return view.unflatten(1 + dims, (groups, -1))


def sampled(view: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """At most so many of the inputs of a site, as (n, groups, in)."""
    groups_at = (view.dim() - 1) // 2
    lead = view.shape[:groups_at]
    total = lead.numel()
    if total > most:
        where = torch.randperm(total, generator=generator)[:most].sort().values
        view = view[torch.unravel_index(where, lead)]
        groups_at = 1
    return view.flatten(0, groups_at - 1).flatten(2)
