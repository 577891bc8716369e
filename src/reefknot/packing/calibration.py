"""What a network computes with each of its weights, seen from outside.

Takes     a torch module, and batches of inputs.
Gives     in which order its weights are used, and the inputs that each of them meets.
Unaware   of quantisation.

Products are watched where torch carries them out (`aten::mm`, `addmm`, `convolution`), not by the
kind of module: projections of attention, the steps of recurrent layers and functions that people
write themselves are all seen, and a weight is known by where it lies in memory.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from reefknot.errors import UserCodeError

_aten = torch.ops.aten


@dataclass(frozen=True)
class Site:
    """A place of a network where a weight, or some of its rows, meets inputs."""

    name: str
    first_row: int = 0
    rows: int = 0
    groups: int = 1
    norm: _BatchNorm | None = None  # instead of a weight
    after: str = ""  # of a norm: the weight whose products it gets as they are


class Moments:
    """Sums over inputs in the packed network, and over the same inputs in the original one.

    One matrix for each group of a convolution; all are means once `finish` was called.
    """

    def __init__(self, groups: int, width: int) -> None:
        self.second = torch.zeros(groups, width, width)  # packed with packed
        self.cross = torch.zeros(groups, width, width)  # original with packed
        self.first, self.original_first = torch.zeros(2, groups, width)
        self.count = 0

    def add(self, inputs: Tensor, originals: Tensor) -> None:
        """Count inputs of the shape (n, groups, in)."""
        packed, original = (x.transpose(0, 1).float() for x in (inputs, originals))
        torch.baddbmm(self.second, packed.mT, packed, out=self.second)
        torch.baddbmm(self.cross, original.mT, packed, out=self.cross)
        self.first += packed.sum(1)
        self.original_first += original.sum(1)
        self.count += packed.shape[1]

    def finish(self) -> None:
        """Make means of the sums."""
        for total in (self.second, self.cross, self.first, self.original_first):
            total /= max(self.count, 1)


class _StopError(Exception):
    """All that was wanted of this batch has been seen."""


class Watch(TorchDispatchMode):
    """Hears of every product with a weight, in the order in which they are carried out."""

    def __init__(
        self, weights: dict[str, Tensor], heard: Callable[[Site, Callable[[], Tensor]], None]
    ) -> None:
        super().__init__()
        self._places = {w.untyped_storage().data_ptr(): (n, w) for n, w in weights.items()}
        self._heard = heard
        self._last: tuple[str, Tensor] | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kind = func.overloadpacket
        if kind in (_aten.mm, _aten.addmm):
            inputs, matrix = args[-2:] if kind is _aten.mm else args[1:3]
            self._product(inputs, matrix)
        elif kind is _aten.convolution and not args[6]:  # transposed ones are not looked at
            self._convolution(args[0], args[1], args[3], args[4], args[5], args[8])
        result = func(*args, **(kwargs or {}))
        if kind in (_aten.mm, _aten.addmm, _aten.convolution):
            found = self._find(args[2] if kind is _aten.addmm else args[1])
            self._last = (found[0], result) if found else None
        return result

    def whose_products(self, tensor: Tensor) -> str:
        """The weight that this tensor is the product with, if nothing was done to it since."""
        if self._last is None:
            return ""
        name, result = self._last
        same = result.data_ptr() == tensor.data_ptr() and result.numel() == tensor.numel()
        return name if same and tensor._version == 0 else ""

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
            self._heard(Site(name, first, matrix.shape[1]), lambda: inputs[:, None])

    def _convolution(
        self, inputs: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> None:
        found = self._find(weight)
        if found is not None and weight.shape == found[1].shape:
            site = Site(found[0], 0, len(weight), groups)
            kernel = tuple(weight.shape[2:])
            self._heard(site, lambda: patches(inputs, kernel, stride, padding, dilation, groups))


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


@dataclass
class Network:
    """A model with its inputs: runs up to a site, and remembers how far all has been packed.

    Children of an `nn.Sequential` are run once: what a child gives is kept for those behind it.
    Otherwise every site costs a run from the beginning to it.
    """

    model: nn.Module
    batches: list[Any]
    generator: torch.Generator = field(default_factory=torch.Generator)
    _at: int = 0  # children that lie behind us
    _children: list[nn.Module] = field(default_factory=list)
    _again: set[tuple[str, int]] = field(default_factory=set)  # sites that a run meets often

    def __post_init__(self) -> None:
        self.batches = list(self.batches)
        self._children = _chain(self.model)

    def weights(self) -> dict[str, Tensor]:
        """Tensors of two or more dimensions, by the name of their first owner."""
        return {n: p.detach() for n, p in self.model.named_parameters() if p.dim() > 1}

    def sites(self) -> list[Site]:
        """All sites, in the order in which the first batch meets them."""
        found: dict[tuple[str, int], Site] = {}

        def hear(site: Site, _: Callable[[], Tensor]) -> None:
            if found.setdefault(_key(site), site) is not site:
                self._again.add(_key(site))

        with self._watched(hear):
            self._call(self.model, self.batches[0])
        return list(found.values())

    def inputs(self, wanted: Site, known: Sequence[Site], most: int) -> Iterator[Tensor]:
        """The inputs of a site, batch by batch, as (n, groups, in); of a norm as they are."""
        before = {_key(site) for site in known[: known.index(wanted)]}
        self._advance(wanted)
        share = -(-most // len(self.batches))
        for batch in self.batches:
            heard: list[Tensor] = []

            def hear(site: Site, view: Callable[[], Tensor], heard: list[Tensor] = heard) -> None:
                if _key(site) == _key(wanted):
                    found = view()
                    heard.append(found if wanted.norm else sampled(found, share, self.generator))
                    if _key(site) not in self._again:
                        raise _StopError
                elif _key(site) not in before:
                    raise _StopError

            with self._watched(hear):
                self._run_child(batch)
            if len(heard) > 1:  # one weight, many steps: no more than of others
                heard = [sampled(torch.cat(heard), share, self.generator)]
            yield from heard

    def _advance(self, wanted: Site) -> None:
        """Leave behind all children before the one that holds the site."""
        owner = wanted.norm or self.model.get_parameter(wanted.name)
        while self._at < len(self._children) and not _holds(self._children[self._at], owner):
            child = self._children[self._at]
            for number, batch in enumerate(self.batches):
                self.batches[number] = (self._call(child, batch),)
            self._at += 1

    def _run_child(self, batch: Any) -> None:
        child = self._children[self._at] if self._at < len(self._children) else self.model
        with contextlib.suppress(_StopError):
            self._call(child, batch)

    def _watched(self, hear: Callable[[Site, Callable[[], Tensor]], None]) -> Any:
        return _Watched(self.model, Watch(self.weights(), hear), hear)

    def _call(self, module: nn.Module, batch: Any) -> Any:
        return call(module, batch)


@torch.no_grad()
def call(model: nn.Module, batch: Any) -> Any:
    """A model's output for a batch: a tensor, a tuple of arguments, or arguments by name."""
    try:
        if isinstance(batch, dict):
            return model(**batch)
        return model(*batch) if isinstance(batch, tuple | list) else model(batch)
    except (_StopError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise UserCodeError(
            f"the model failed on the inputs it was given: {type(error).__name__}: {error}"
        ) from error


class _Watched:
    """The mode, and hooks in front of BatchNorm layers, which are no products."""

    def __init__(self, model: nn.Module, watch: Watch, hear: Any) -> None:
        self._modules = list(model.modules())
        self._norms = [(n, m) for n, m in model.named_modules() if isinstance(m, _BatchNorm)]
        self._watch, self._hear, self._handles = watch, hear, list[Any]()

    def __enter__(self) -> None:
        def before(name: str) -> Any:
            def hear(module: Any, given: Any) -> None:
                after = self._watch.whose_products(given[0])
                self._hear(Site(name, norm=module, after=after), lambda: given[0])

            return hear

        self._recurrent = contextlib.ExitStack()
        if any(isinstance(module, nn.RNNBase) for module in self._modules):
            # The steps of a recurrent layer would be one operation, too.
            (enabled, *_) = torch.backends.mkldnn.set_flags(False)
            self._recurrent.callback(torch.backends.mkldnn.set_flags, enabled)
        self._fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # it would be one product of many weights
        self._handles = [m.register_forward_pre_hook(before(n)) for n, m in self._norms]
        self._watch.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._watch.__exit__(*error)
        for handle in self._handles:
            handle.remove()
        torch.backends.mha.set_fastpath_enabled(self._fast)
        self._recurrent.close()


def _key(site: Site) -> tuple[str, int]:
    return site.name, site.first_row


def _chain(model: nn.Module) -> list[nn.Module]:
    """The children that are run one after the other; none if nobody knows."""
    if type(model) is not nn.Sequential:
        return []
    return [inner for child in model for inner in (_chain(child) or [child])]


def _holds(module: nn.Module, owner: nn.Module | Tensor) -> bool:
    inside = [*module.modules(), *module.parameters()]
    return any(thing is owner for thing in inside)
