"""How loops are compiled: ahead of time, for explicit types, cached on disk, without the GIL."""

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

    The machine code is cached on disk; if no folder is writable (a read-only install, no home), it
    is compiled again in each process. A loop that allocates no arrays may say so, to do without
    numba's reference counting, which costs more than the arithmetic of a small loop.
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
    """A function that allocates nothing, to be inlined into the loops that call it."""
    options: dict[str, Any] = {"nogil": True, "_nrt": False, "forceinline": True}
    return numba.njit(**options)(function)


def inlined_with_arrays(function: F) -> Any:
    """The same for a function that returns an array, which needs reference counting."""
    return numba.njit(nogil=True, forceinline=True)(function)


def keep_on_disk(loop: Any, function: Callable[..., Any]) -> None:
    """Let numba load a loop's machine code from disk, or store it there once compiled."""
    try:
        loop._cache = _Cache(function)
    except RuntimeError as error:
        if "cache" not in str(error):
            raise
        _say_that_nothing_is_kept()


class _Cache(FunctionCache):
    """A cache whose key covers all source files that a loop may take code or constants from.

    numba's own cache looks only at the file of the function itself. Inlined functions and constants
    come from other files of its folder and of this one.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        sources = _digest(Path(inspect.getfile(function)).parent)
        self._cache_file = _Files(
            cache_path=self._cache_path,
            filename_base=f"{self._impl.filename_base}-{sources}",
            source_stamp=self._impl.locator.get_source_stamp(),
        )

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the machine code; a full disk is not an error."""
        try:
            super().save_overload(sig, data)
        except OSError:
            _say_that_nothing_is_kept()


class _Files(IndexDataCacheFile):
    """Files of a loop, named by what is in them: its types, its constants and the processor.

    numba numbers the files of loops that are made on the same line, by an index that they share.
    Two processes that compile different ones at the same time may take the same number, and a third
    then finds the machine code of the wrong loop.
    """

    def __init__(self, **where: Any) -> None:
        super().__init__(**where)
        self._where = where

    def load(self, key: Any) -> Any:
        """The machine code that is kept under a key, if any."""
        return self._of(key).load(key)

    def save(self, key: Any, data: Any) -> None:
        """Keep machine code under a key."""
        self._of(key).save(key, data)

    def _of(self, key: Any) -> IndexDataCacheFile:
        name = hashlib.sha256(repr((numba.__version__, key)).encode()).hexdigest()[:16]
        base = f"{self._where['filename_base']}-{name}"
        return IndexDataCacheFile(**self._where | {"filename_base": base})


@cache
def _digest(folder: Path) -> str:
    """A hash of all source files that the loops of a folder may use."""
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
