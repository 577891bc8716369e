"""How loops are compiled: ahead of use, for named types, kept on disk, without the GIL."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(*signatures: str, allocates: bool = True) -> Callable[[F], Any]:
    """Compile a function for these numba signatures only, so that no input triggers compilation.

    The machine code is cached on disk; where no folder can be written (a read-only install, no
    home) it is compiled again in each process instead of failing. A loop that makes no arrays
    may say so: then numba's reference counting, which costs more than the arithmetic of a small
    loop, is left out.
    """
    options: dict[str, Any] = {"nogil": True, "_nrt": allocates}

    def decorate(function: F) -> Any:
        try:
            return numba.njit(list(signatures), cache=True, **options)(function)
        except RuntimeError as error:
            if "cache" not in str(error):
                raise
            return numba.njit(list(signatures), **options)(function)

    return decorate


def inlined(function: F) -> Any:
    """A part of a loop that allocates nothing; it is compiled into each place that uses it."""
    options: dict[str, Any] = {"nogil": True, "_nrt": False, "forceinline": True}
    return numba.njit(**options)(function)


def inlined_with_arrays(function: F) -> Any:
    """The same for a part that gives an array: numba must count who holds it."""
    return numba.njit(nogil=True, forceinline=True)(function)
