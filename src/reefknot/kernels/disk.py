"""Machine code on disk: what a loop was compiled to, until one of its sources changes.

Takes     a loop of numba's, and the function that it is made from.
Gives     the same loop, which looks there first, and stores there what it had to compile.
Unaware   of what loops do.
"""

import hashlib
import inspect
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

log = logging.getLogger("reefknot")


def keep_on_disk(loop: Any, function: Callable[..., Any]) -> None:
    """Let numba load a loop's machine code from disk, or store it there once compiled."""
    try:
        loop._cache = _Cache(function)
    except RuntimeError as error:
        if "cache" not in str(error):
            raise
        _say_that_nothing_is_kept()


def is_kept(loop: Any, signature: Any) -> bool:
    """Whether the machine code of a loop is on disk, for these types."""
    return isinstance(loop._cache, _Cache) and loop._cache.has(signature, loop.targetctx)


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

    def has(self, sig: Any, target_context: Any) -> bool:
        """Whether there is machine code for this signature."""
        files: Any = self._cache_file
        return bool(files.has(self._index_key(sig, target_context.codegen())))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code, if it is there; if not, the loop is about to be compiled."""
        found = super().load_overload(sig, target_context)
        if found is None:
            _say_where_loops_are_kept(self._cache_path)
        return found

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

    def has(self, key: Any) -> bool:
        """Whether anything is kept under a key."""
        return Path(self._of(key)._index_path).exists()

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


_said = False  # at most one line a process


def _say_where_loops_are_kept(folder: str) -> None:
    global _said
    if not _said:
        _said = True
        log.warning("reefknot: compiling loops for this machine, once; they are kept in %s", folder)


def _say_that_nothing_is_kept() -> None:
    global _said
    if _said:
        return
    _said = True
    log.warning(
        "reefknot: compiling its loops, which takes up to a minute, and again in each process: "
        "there is no folder to keep them in; set NUMBA_CACHE_DIR to one that can be written"
    )
