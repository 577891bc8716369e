"""What a call that takes long is doing, told to whoever listens.

Takes     names of stages (`doing`), and items as they are worked on (`each`).
Gives     a `Moment` to a `Listener` from time to time: the logger "reefknot" at INFO, or another.
Unaware   of what is done. If nobody listens nothing is measured and no thread is started.

A thread of its own tells, so that a tensor that takes minutes is no silence, and an error of a
listener does not end the work: Python prints it on standard error, and nothing more is told.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")
SILENCE = 3.0  # seconds; a call that ends before says nothing
APART = 5.0  # seconds between two lines, and MORE_APART times what the call has taken so far
MORE_APART = 0.1
KNOWN = 1.0  # seconds that items have taken before the time of the others is estimated from them

log = logging.getLogger("reefknot")


@dataclass(eq=False)
class Stage:
    """What is being done; with `count`, to one item after the other."""

    what: str
    count: int = 0
    sizes: Sequence[int] = ()  # bytes of the items, if their time is proportional to them
    before: Sequence[float] = ()  # when each item was begun the last time, and when all were done
    item: str = ""
    begun: list[float] = field(default_factory=list)  # seconds, of each item so far

    def __str__(self) -> str:
        if not self.count:
            return self.what
        number = len(self.begun)
        told = f"{self.what} {self.item}, {number:,} of {self.count:,}"
        if self.sizes:
            told += f", {sum(self.sizes[:number]):,} of {sum(self.sizes):,} bytes"
        return told

    @property
    def seconds_left(self) -> float | None:
        """What is left of the time of all items, where that can be known."""
        done, left = len(self.begun) - 1, None
        if done >= 0 and len(self.before) == self.count + 1:
            left = self.before[-1] - self.before[done]
        elif done > 0 and self.begun[-1] - self.begun[0] >= KNOWN and any(self.sizes[:done]):
            pace = (self.begun[-1] - self.begun[0]) / sum(self.sizes[:done])
            left = pace * sum(self.sizes[done:])
        return None if left is None else max(left - (time.monotonic() - self.begun[-1]), 0.0)


@dataclass(frozen=True)
class Moment:
    """Where a call is."""

    stages: tuple[Stage, ...]  # the call itself, and what it is doing for it
    seconds: float  # since it began

    @property
    def items(self) -> Stage:
        """The innermost stage that has items, if there is one."""
        return next((stage for stage in reversed(self.stages) if stage.count), self.stages[0])

    @property
    def left(self) -> str:
        """How long the items take that are left, in words, where that can be known."""
        seconds = self.items.seconds_left
        return "" if seconds is None else f"about {seconds:,.0f} s for the rest"

    def __str__(self) -> str:
        call = f"{self.stages[0].what}, {self.seconds:,.0f} s"
        told = ": ".join([call, *map(str, self.stages[1:])])
        return ", ".join(filter(None, (told, self.left)))


# Called with None before and after a call; gives the seconds until it is to be called again.
Listener = Callable[[Moment | None], float]


def until_next(moment: Moment | None) -> float:
    """Seconds until the next line of text."""
    return SILENCE if moment is None else max(APART, MORE_APART * moment.seconds)


def _to_log(moment: Moment | None) -> float:
    if moment is not None:
        log.info("reefknot: %s", moment)
    return until_next(moment)


class _Call(threading.local):
    def __init__(self) -> None:
        self.stages: list[Stage] = []


_listener: Listener | None = _to_log
_call = _Call()  # that this thread is in


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Tell calls to another listener, or to nobody."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


@contextmanager
def doing(what: str) -> Iterator[None]:
    """A call, or a stage of the call that this thread is in."""
    unheard = _listener is _to_log and not log.isEnabledFor(logging.INFO)
    if _call.stages:
        with _entered(Stage(what)):
            yield
    elif _listener is None or unheard:
        yield
    else:
        with _entered(Stage(what)), _telling(_listener):
            yield


def each(
    what: str,
    items: Sequence[T],
    *,
    name: Callable[[T], Any] = attrgetter("name"),
    size: Callable[[T], int] | None = None,
    before: list[float] | None = None,
) -> Iterator[T]:
    """Items as they are worked on, as a stage of the call that this thread is in.

    Args:
        what: what is done to them.
        items: in order.
        name: of an item.
        size: its bytes, if it takes as long as they are many.
        before: what the same items took the last time, and at the end what they took now.
    """
    if not _call.stages:  # nobody listens
        yield from items
        return
    sizes = () if size is None else tuple(map(size, items))
    stage = Stage(what, len(items), sizes, tuple(before or ()))
    with _entered(stage):
        for item in items:
            stage.item = str(name(item))
            stage.begun.append(time.monotonic())
            yield item
    if before is not None:
        before[:] = *stage.begun, time.monotonic()


@contextmanager
def _entered(stage: Stage) -> Iterator[None]:
    stages = _call.stages
    stages.append(stage)
    try:
        yield
    finally:
        if stage in stages:  # else one around it has ended before
            del stages[stages.index(stage) :]


@contextmanager
def _telling(listener: Listener) -> Iterator[None]:
    began, over, stages = time.monotonic(), threading.Event(), _call.stages

    def tell() -> None:
        wait = listener(None)
        try:
            while not over.wait(wait):
                wait = listener(Moment(tuple(stages), time.monotonic() - began))
        finally:
            listener(None)

    thread = threading.Thread(target=tell, name="reefknot-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
