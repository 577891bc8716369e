"""Suspended forward passes: a network is run once, and waits at each weight until it is packed.

Takes     a torch module, and batches of calibration inputs.
Gives     in which order its weights are used, and the inputs of each of them.
Unaware   of quantization.

Each batch has a thread of its own, which waits before the product with a weight. Only one of them
runs at a time. So a weight that is changed while the threads wait is used as it is from then on,
and nothing is computed twice, whatever the model is made of. But all batches are inside the model
at the same time, which not every model allows: it may hold a lock, or keep something of a batch in
itself. `can_suspend` tries it. Where it fails, where the batches would take too much memory, and
for a weight that is used repeatedly, such as that of a recurrent layer, the model is run from its
beginning instead, up to that weight.
"""

import contextlib
import contextvars
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map

from reefknot.errors import UserCodeError
from reefknot.packing.calibration import Site, SiteKey, Watch, sampled

# A batch that waits holds some tensors of the size of the largest input of a weight.
HELD_TENSORS = 4
MEMORY_SHARE = 1 / 8  # that the batches of one network may hold
USUAL_MEMORY = 2**34  # where the system does not say how much it has
MOST_THREADS = 1024  # of one network: torch gives each thread some of its own
TRIED = 3  # batches that are inside the model together on trial
ROUNDING = 1e-4  # relative L2 norm
PATIENCE = 10.0  # seconds, and times what a batch takes alone: then it is stuck

View = Callable[[], Tensor]


class _StopError(BaseException):
    """All that was wanted of this batch has been seen; models are not to catch it."""


class _StuckError(Exception):
    """A batch neither comes to the next weight nor to an end."""


def can_suspend(model: nn.Module, batches: Sequence[Any]) -> bool:
    """Whether batches may be inside a model at the same time, as far as a trial shows.

    They must have the outputs that each has alone, and leave nothing changed that models share.
    """
    few = [batches[n % len(batches)] for n in range(TRIED)]
    with warnings.catch_warnings(), _kept_settings(), step_by_step(model):
        began = time.monotonic()
        alone = [call(model, batch) for batch in few]
        patience = PATIENCE * (1 + time.monotonic() - began)
        try:
            with Network(model, few, suspends=True, patience=patience) as network:
                if not network.suspends:
                    return False
                before = _settings()  # now that what is imported when it is first used is there
                together = network.outputs()
        except (_StuckError, UserCodeError):
            return False
        return before == _settings() and _alike(_tensors(alone), _tensors(together))


class Network:
    """A model with its inputs, which gives the inputs of one site after the other.

    A context: at its end, batches that still wait are abandoned.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Any],
        *,
        suspends: bool,
        patience: float | None = None,
    ) -> None:
        """Prepare; with `suspends` all batches are inside the model together, if they fit."""
        self.model = model
        self.generator = torch.Generator()
        self._batches = list(batches)
        self._again: set[SiteKey] = set()  # sites that a run reaches repeatedly
        self._waiting: set[SiteKey] = set()  # sites where passes are suspended
        largest = 0
        found: dict[SiteKey, Site] = {}

        def on_site(site: Site, view: View) -> None:
            nonlocal largest
            largest = max(largest, view().untyped_storage().nbytes())
            if found.setdefault(site.key, site) is not site:
                self._again.add(site.key)

        self._run(self._batches[0], on_site)
        turned = {site.name for site in found.values() if site.transposed}
        upright = {site.name for site in found.values() if not site.transposed}
        # In the order in which the first batch reaches them. A weight that is also used transposed
        # is left out: what its errors do to one product says nothing about the other.
        self.sites = [site for site in found.values() if site.name not in turned & upright]
        held = HELD_TENSORS * largest * len(self._batches)
        threads = len(self._batches) * torch.get_num_threads()
        self._passes: list[_SuspendedPass] = []
        if suspends and held <= MEMORY_SHARE * _memory() and threads <= MOST_THREADS:
            self._passes = [_SuspendedPass(self, batch, patience) for batch in self._batches]

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *error: object) -> None:
        for one in self._passes:
            one.abandon()
        for one in self._passes:
            if one.ident is not None:
                one.join()
        self._passes = []

    @property
    def suspends(self) -> bool:
        """Whether the batches are inside the model at the same time."""
        return bool(self._passes)

    def inputs(self, wanted: Site, most: int) -> Iterator[Tensor | None]:
        """The inputs of a site for each batch, as (n, groups, in); of a norm as they are.

        None for a batch that does not come there. Sites have to be wanted in their order.
        """
        places = [site.key for site in self.sites]
        self._waiting = set(places[places.index(wanted.key) :])
        share = -(-most // len(self._batches))
        # Between two uses of a weight come others that are packed later.
        if self.suspends and wanted.key not in self._again:
            views = (one.go_to(wanted) for one in self._passes)
        else:
            views = (self._run_to(wanted, batch, share) for batch in self._batches)
        for view in views:
            if view is None:
                yield None
            else:
                yield view() if wanted.norm else sampled(view(), share, self.generator)

    def outputs(self) -> list[Any]:
        """What the model gives for each batch; all of them wait at each site on their way."""
        for site in self.sites:
            for _ in self.inputs(site, 1):
                pass
        self._waiting = set()
        return [one.go_to_end() for one in self._passes]

    def waits_at(self, site: Site) -> bool:
        """Whether a batch that reaches a site has to wait there."""
        return site.key in self._waiting

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
            if not repeated and self.waits_at(site):
                raise _StopError

        self._run(batch, on_site)
        if len(seen) > 1:  # a weight that is used repeatedly gets no more inputs than others
            seen = [torch.cat(seen)]
        return (lambda: seen[0]) if seen else None

    def _run(self, batch: Any, on_site: Callable[[Site, View], None]) -> None:
        steps, watch = step_by_step(self.model), watched(self.model, on_site)
        with steps, watch, contextlib.suppress(_StopError):
            call(self.model, batch)


class _SuspendedPass(threading.Thread):
    """A forward pass of one batch in its own thread, suspended at sites where it has to wait."""

    def __init__(self, network: Network, batch: Any, patience: float | None) -> None:
        super().__init__(daemon=True)
        self._network, self._batch, self._patience = network, batch, patience
        self._context = contextvars.copy_context()
        self._here: tuple[Site, View] | None = None  # where it waits
        self._output: Any = None
        self._error: BaseException | None = None
        self._abandoned = False
        self._may_go, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)

    def go_to(self, wanted: Site) -> View | None:
        """Go on to a site; what it has there, or None if it does not come by.

        It stops at any other site where it has to wait, too.
        """
        while self._here is None or not self._network.waits_at(self._here[0]):
            if not self._move():
                return None
        site, view = self._here
        return view if site.key == wanted.key else None

    def go_to_end(self) -> Any:
        """Go on without waiting; the model's output."""
        while self._move():
            pass
        return self._output

    def abandon(self) -> None:
        """Let it end at the next site, or where it waits."""
        self._abandoned = True
        self._may_go.release()

    def _move(self) -> bool:
        """Let it run until it is suspended or at its end; whether it is suspended."""
        if self.ident is not None and not self.is_alive():
            return False
        with step_by_step(self._network.model):
            if self.ident is None:
                self.start()
            else:
                self._may_go.release()
            if not self._has_stopped.acquire(timeout=self._patience):
                raise _StuckError
        if self._here is None:
            self.join()
        if self._error is not None:
            raise self._error
        return self._here is not None

    def run(self) -> None:
        """The thread: the forward pass of the batch."""
        self._context.run(self._forward)

    def _forward(self) -> None:
        try:
            with watched(self._network.model, self._wait), contextlib.suppress(_StopError):
                self._output = call(self._network.model, self._batch)
        except BaseException as error:
            self._error = error
        self._here = None
        self._has_stopped.release()

    def _wait(self, site: Site, view: View) -> None:
        if self._network.waits_at(site) and not self._abandoned:
            self._here = site, view
            self._has_stopped.release()
            self._may_go.acquire()
        if self._abandoned:
            raise _StopError


def no_autocast() -> torch.autocast:
    """Around computations with weights that change: autocast would keep copies of them."""
    return torch.autocast("cpu", enabled=False, cache_enabled=False)


@torch.no_grad()
def call(model: nn.Module, batch: Any) -> Any:
    """A model's output for a batch: a tensor, a tuple of arguments, or arguments by name.

    The model gets copies of the tensors: it may change its inputs in place.
    """
    batch = tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, batch)
    try:
        with no_autocast():
            if isinstance(batch, dict):
                return model(**batch)
            return model(*batch) if isinstance(batch, tuple | list) else model(batch)
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
def step_by_step(model: nn.Module) -> Iterator[None]:
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


# What all models of a process share, and code in a model may change for a while.
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_rng_state, torch.set_rng_state),
)


def _settings() -> list[Any]:
    """In a form that can be compared."""
    values = [get() for get, _ in _SETTINGS]
    plain = [v.tolist() if isinstance(v, Tensor) else v for v in values]
    return [*plain, list(warnings.filters)]


@contextlib.contextmanager
def _kept_settings() -> Iterator[None]:
    """Put settings back at the end; `warnings.catch_warnings` does it for those of warnings."""
    before = [get() for get, _ in _SETTINGS]
    try:
        yield
    finally:
        for value, (_, put) in zip(before, _SETTINGS, strict=True):
            put(value)


def _tensors(output: Any) -> list[Tensor]:
    return [leaf.double() for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


def _alike(some: list[Tensor], others: list[Tensor]) -> bool:
    """Whether these differ by rounding alone."""
    return len(some) == len(others) and all(
        one.shape == other.shape and bool((one - other).norm() <= ROUNDING * one.norm())
        for one, other in zip(some, others, strict=True)
    )


def _memory() -> int:
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return USUAL_MEMORY
