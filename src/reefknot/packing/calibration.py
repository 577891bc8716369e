"""Calibration: the inputs that each weight of a network is multiplied by.

Takes     a torch module, and batches of calibration inputs.
Gives     in which order its weights are used, and the inputs of each of them.
Unaware   of quantization.

Products are intercepted where torch dispatches them (`aten::mm`, `addmm`, `convolution`), not by
the kind of module: projections of attention, the steps of recurrent layers and functions that
people write themselves are all seen. A weight is recognised by its address in memory.
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
    """A product in a network: a weight, or some of its rows, times inputs; or a BatchNorm."""

    name: str
    first_row: int = 0
    rows: int = 0
    groups: int = 1
    transposed: bool = False  # the weight is (in, out), all of it
    norm: _BatchNorm | None = None  # instead of a weight
    after: str = ""  # of a norm: the weight whose products are directly its inputs

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


class _StopError(Exception):
    """All that was wanted of this batch has been seen."""


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


@dataclass
class Network:
    """A model with its inputs, which can be run up to any site.

    Children of an `nn.Sequential` are run once: the output of a child is kept as the input of the
    next one. Any other model is run from its beginning for every site.
    """

    model: nn.Module
    batches: list[Any]
    generator: torch.Generator = field(default_factory=torch.Generator)
    _at: int = 0  # the child whose inputs `batches` are
    _children: list[nn.Module] = field(default_factory=list)
    _again: set[tuple[str, int]] = field(default_factory=set)  # sites that a run reaches repeatedly

    def __post_init__(self) -> None:
        self.batches = list(self.batches)
        self._children = _chain(self.model)

    def weights(self) -> dict[str, Tensor]:
        """Tensors of two or more dimensions, by the name of their first owner."""
        return {n: p.detach() for n, p in self.model.named_parameters() if p.dim() > 1}

    def sites(self) -> list[Site]:
        """All sites, in the order in which the first batch reaches them."""
        found: dict[tuple[str, int], Site] = {}

        def on_site(site: Site, _: Callable[[], Tensor]) -> None:
            if found.setdefault(_key(site), site) is not site:
                self._again.add(_key(site))

        with self._watched(on_site):
            self._call(self.model, self.batches[0])
        return list(found.values())

    def inputs(self, wanted: Site, known: Sequence[Site], most: int) -> Iterator[Tensor]:
        """The inputs of a site, batch by batch, as (n, groups, in); of a norm as they are."""
        before = {_key(site) for site in known[: known.index(wanted)]}
        # Between two uses of a weight come others that are packed later.
        repeated = _key(wanted) in self._again
        self._advance(wanted)
        share = -(-most // len(self.batches))
        for batch in self.batches:
            seen: list[Tensor] = []

            def on_site(site: Site, view: Callable[[], Tensor], seen: list[Tensor] = seen) -> None:
                if _key(site) == _key(wanted):
                    found = view()
                    seen.append(found if wanted.norm else sampled(found, share, self.generator))
                    if _key(site) not in self._again:
                        raise _StopError
                elif _key(site) not in before and not repeated:
                    raise _StopError

            with self._watched(on_site):
                self._run_child(batch)
            if len(seen) > 1:  # a weight that is used repeatedly gets no more inputs than others
                seen = [sampled(torch.cat(seen), share, self.generator)]
            yield from seen

    def _advance(self, wanted: Site) -> None:
        """Run all children before the one that holds the site, and keep their outputs."""
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

    def _watched(self, on_site: Callable[[Site, Callable[[], Tensor]], None]) -> Any:
        return _Watched(self.model, Watch(self.weights(), on_site), on_site)

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
    """The dispatch mode, and hooks before BatchNorm layers, which are not products."""

    def __init__(self, model: nn.Module, watch: Watch, on_site: Any) -> None:
        self._modules = list(model.modules())
        self._norms = [(n, m) for n, m in model.named_modules() if isinstance(m, _BatchNorm)]
        self._watch, self._on_site, self._handles = watch, on_site, list[Any]()

    def __enter__(self) -> None:
        def before(name: str) -> Any:
            def hook(module: Any, given: Any) -> None:
                after = self._watch.whose_products(given[0])
                self._on_site(Site(name, norm=module, after=after), lambda: given[0])

            return hook

        self._recurrent = contextlib.ExitStack()
        if any(isinstance(module, nn.RNNBase) for module in self._modules):
            # With it, all steps of a recurrent layer are a single operation.
            (enabled, *_) = torch.backends.mkldnn.set_flags(False)
            self._recurrent.callback(torch.backends.mkldnn.set_flags, enabled)
        self._fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # it is a single operation, too
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
    """The children that are run one after the other; none if that is not known."""
    if type(model) is not nn.Sequential:
        return []
    return [inner for child in model for inner in (_chain(child) or [child])]


def _holds(module: nn.Module, owner: nn.Module | Tensor) -> bool:
    inside = [*module.modules(), *module.parameters()]
    return any(thing is owner for thing in inside)
