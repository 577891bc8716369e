"""How loops are compiled: ahead of use, for named types, kept on disk, without the GIL."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(signatures: str | Sequence[str]) -> Callable[[F], F]:
    """Compile a function for these numba signatures only, so that no input triggers compilation.

    The machine code is cached on disk; where no folder can be written (a read-only install, no
    home) it is compiled again in each process instead of failing.
    """
    wanted = [signatures] if isinstance(signatures, str) else list(signatures)

    def decorate(function: F) -> F:
        try:
            made: Any = numba.njit(wanted, cache=True, nogil=True)(function)
        except RuntimeError as error:
            if "cache" not in str(error):
                raise
            made = numba.njit(wanted, nogil=True)(function)
        return cast(F, made)

    return decorate
