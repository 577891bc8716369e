"""Walking: a network is run once, and waits at each of its weights until that weight is packed.

Takes     a torch module, and batches of calibration inputs.
Gives     in which order its weights are used, and the inputs of each of them.
Unaware   of quantization.

Each batch has a thread of its own, which waits before the product with a weight. Only one of them
runs at a time. So a weight that is changed while the threads wait is used as it is from then on,
and nothing is computed twice, whatever the model is made of. Where the values of all batches at
once would take too much memory, and for a weight that is used repeatedly, such as that of a
recurrent layer, the model is run from its beginning instead, up to that weight; the inputs are the
same.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from reefknot.errors import UserCodeError
from reefknot.packing.calibration import Site, Watch, sampled

# A batch that waits holds some tensors of the size of the largest input of a weight.
HELD_TENSORS = 4
MEMORY_SHARE = 1 / 8  # that the batches of one network may hold
USUAL_MEMORY = 2**34  # where the system does not say how much it has

View = Callable[[], Tensor]


class _StopError(Exception):
    """All that was wanted of this batch has been seen."""


class Network:
    """A model with its inputs, which gives the inputs of one site after the other.

    A context: at its end, batches that still wait are abandoned.
    """

    def __init__(self, model: nn.Module, batches: Sequence[Any]) -> None:
        self.model = model
        self.generator = torch.Generator()
        self._batches = list(batches)
        self._again: set[tuple[str, int]] = set()  # sites that a run reaches repeatedly
        self._passed: set[tuple[str, int]] = set()  # sites at which no walker waits any more
        largest = 0
        found: dict[tuple[str, int], Site] = {}

        def on_site(site: Site, view: View) -> None:
            nonlocal largest
            largest = max(largest, view().untyped_storage().nbytes())
            if found.setdefault(site.key, site) is not site:
                self._again.add(site.key)

        self._run(self._batches[0], on_site)
        self.sites = list(found.values())  # in the order in which the first batch reaches them
        held = HELD_TENSORS * largest * len(self._batches)
        self._walkers: list[_Walker] = []
        if held <= MEMORY_SHARE * _memory():
            self._walkers = [_Walker(self, batch) for batch in self._batches]

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *error: object) -> None:
        for walker in self._walkers:
            walker.abandon()
        self._walkers = []

    def inputs(self, wanted: Site, most: int) -> Iterator[Tensor]:
        """The inputs of a site, batch by batch, as (n, groups, in); of a norm as they are.

        Sites have to be wanted in their order.
        """
        places = [site.key for site in self.sites]
        self._passed = set(places[: places.index(wanted.key)])
        share = -(-most // len(self._batches))
        # Between two uses of a weight come others that are packed later.
        repeated = wanted.key in self._again
        if self._walkers and not repeated:
            views = (walker.go_to(wanted) for walker in self._walkers)
        else:
            views = (self._run_to(wanted, batch, share) for batch in self._batches)
        for view in views:
            if view is not None:
                yield view() if wanted.norm else sampled(view(), share, self.generator)

    def _run_to(self, wanted: Site, batch: Any, share: int) -> View | None:
        """Run a batch from the beginning, and give what it has at a site, if it gets there."""
        seen: list[Tensor] = []
        repeated = wanted.key in self._again

        def on_site(site: Site, view: View) -> None:
            if site.key == wanted.key:
                found = view()
                seen.append(
                    sampled(found, share, self.generator) if repeated and not site.norm else found
                )
            if not repeated and site.key not in self._passed:
                raise _StopError

        self._run(batch, on_site)
        if len(seen) > 1:  # a weight that is used repeatedly gets no more inputs than others
            seen = [torch.cat(seen)]
        return (lambda: seen[0]) if seen else None

    def _run(self, batch: Any, on_site: Callable[[Site, View], None]) -> None:
        steps, watch = whole_steps(self.model), watched(self.model, on_site)
        with steps, watch, contextlib.suppress(_StopError):
            call(self.model, batch)

    def waits_at(self, site: Site) -> bool:
        """Whether a batch that reaches a site has to wait there."""
        return site.key not in self._passed


class _Walker(threading.Thread):
    """A batch on its way through a network, in its own thread; waits where it is told to."""

    def __init__(self, network: Network, batch: Any) -> None:
        super().__init__(daemon=True)
        self._network, self._batch = network, batch
        self._here: tuple[Site, View] | None = None  # where it waits
        self._error: BaseException | None = None
        self._abandoned = False
        self._may_go, self._stands = threading.Semaphore(0), threading.Semaphore(0)

    def go_to(self, wanted: Site) -> View | None:
        """Go on to a site; what it has there, or None if it does not come by.

        It stops at any other site where it has to wait, too.
        """
        while self._here is None or not self._network.waits_at(self._here[0]):
            if self.ident is not None and not self.is_alive():
                return None
            with whole_steps(self._network.model):
                self._move()
            if self._error is not None:
                raise self._error
        site, view = self._here
        return view if site.key == wanted.key else None

    def abandon(self) -> None:
        """End it where it stands."""
        self._abandoned = True
        while self.is_alive():
            self._move()

    def _move(self) -> None:
        if self.ident is None:
            self.start()
        else:
            self._may_go.release()
        self._stands.acquire()
        if self._here is None:
            self.join()

    def run(self) -> None:
        """The thread: the forward pass of the batch."""
        try:
            with watched(self._network.model, self._wait), contextlib.suppress(_StopError):
                call(self._network.model, self._batch)
        except BaseException as error:
            self._error = error
        self._here = None
        self._stands.release()

    def _wait(self, site: Site, view: View) -> None:
        if self._network.waits_at(site) and not self._abandoned:
            self._here = site, view
            self._stands.release()
            self._may_go.acquire()
        if self._abandoned:
            raise _StopError


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


@contextlib.contextmanager
def watched(model: nn.Module, on_site: Callable[[Site, View], None]) -> Iterator[None]:
    """Tell of each product with a weight, and of each BatchNorm, that this thread comes to."""
    thread = threading.get_ident()
    weights = {n: p.detach() for n, p in model.named_parameters() if p.dim() > 1}
    watch = Watch(weights, on_site)

    def before(name: str) -> Any:
        def hook(module: Any, given: Any) -> None:
            if threading.get_ident() == thread:
                after = watch.whose_products(given[0])
                on_site(Site(name, norm=module, after=after), lambda: given[0])

        return hook

    norms = [(n, m) for n, m in model.named_modules() if isinstance(m, _BatchNorm)]
    handles = [m.register_forward_pre_hook(before(n)) for n, m in norms]
    try:
        with watch:
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def whole_steps(model: nn.Module) -> Iterator[None]:
    """Let torch compute recurrent layers and attention in steps, not in a single operation."""
    with contextlib.ExitStack() as stack:
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            (enabled, *_) = torch.backends.mkldnn.set_flags(False)
            stack.callback(torch.backends.mkldnn.set_flags, enabled)
        stack.callback(
            torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()
        )
        torch.backends.mha.set_fastpath_enabled(False)
        yield


def _memory() -> int:
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return USUAL_MEMORY
