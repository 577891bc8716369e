"""How loops are compiled: ahead of use, for named types, kept on disk, without the GIL."""

import hashlib
import inspect
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("reefknot")


def compiled(*signatures: Any, allocates: bool = True) -> Callable[[F], Any]:
    """Compile a function for these numba signatures only, so that no input triggers compilation.

    The machine code is cached on disk; where no folder can be written (a read-only install, no
    home) it is compiled again in each process instead of failing. A loop that makes no arrays
    may say so: then numba's reference counting, which costs more than the arithmetic of a small
    loop, is left out.
    """
    options: dict[str, Any] = {"nogil": True, "_nrt": allocates}

    def decorate(function: F) -> Any:
        dispatcher = numba.njit(**options)(function)
        keep_on_disk(dispatcher, function)
        for signature in signatures:
            dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    return decorate


def inlined(function: F) -> Any:
    """A part of a loop that allocates nothing; it is compiled into each place that uses it."""
    options: dict[str, Any] = {"nogil": True, "_nrt": False, "forceinline": True}
    return numba.njit(**options)(function)


def inlined_with_arrays(function: F) -> Any:
    """The same for a part that gives an array: numba must count who holds it."""
    return numba.njit(nogil=True, forceinline=True)(function)


def keep_on_disk(loop: Any, function: Callable[..., Any]) -> None:
    """Have numba look for a loop's machine code on disk before it compiles, and leave it there."""
    try:
        loop._cache = _Cache(function)
    except RuntimeError as error:
        if "cache" not in str(error):
            raise
        _say_that_nothing_is_kept()


class _Cache(FunctionCache):
    """numba's own cache looks at a function's file only, but a loop holds parts of others.

    Constants and inlined functions come from the other files of its folder and of this one, so
    the name of what is on disk tells what was in all of them.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        sources = _digest(Path(inspect.getfile(function)).parent)
        self._cache_file = IndexDataCacheFile(
            cache_path=self._cache_path,
            filename_base=f"{self._impl.filename_base}-{sources}",
            source_stamp=self._impl.locator.get_source_stamp(),
        )

    def save_overload(self, sig: Any, data: Any) -> None:
        """A disk that is full is no reason to stop."""
        try:
            super().save_overload(sig, data)
        except OSError:
            _say_that_nothing_is_kept()


@cache
def _digest(folder: Path) -> str:
    """Stands for all source files that loops of a folder may take something from."""
    digest = hashlib.sha256()
    for source in sorted({*folder.glob("*.py"), *Path(__file__).parent.glob("*.py")}):
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()[:16]


@cache
def _say_that_nothing_is_kept() -> None:
    log.warning(
        "reefknot: compiling its loops, which takes up to a minute, and again in each process: "
        "there is no folder to keep them in; set NUMBA_CACHE_DIR to one that can be written"
    )
