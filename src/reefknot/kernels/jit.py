"""How loops are compiled: when they are first needed, for explicit types, without the GIL.

The machine code is cached on disk. Importing a module of loops compiles nothing and does not import
numba; and a loop that can tell how much it has to do does a little in plain Python (`plain.py`).
"""

import sys
from collections.abc import Callable
from functools import cache, cached_property, update_wrapper
from threading import RLock
from types import FunctionType
from typing import Any

from reefknot.kernels import plain

PLAIN_STEPS = 256_000  # of a loop, in a process: they take about as long as numba needs to begin

_parts: dict[FunctionType, dict[str, Any]] = {}  # to the options with which each is compiled
_compiling = RLock()


def inlined(function: Any) -> Any:
    """A function that allocates nothing, to be inlined into the loops that call it by its name."""
    _parts[function] = _PART | {"_nrt": False}
    return function


def inlined_with_arrays(function: Any) -> Any:
    """A function to be inlined that returns an array, which needs reference counting."""
    _parts[function] = _PART
    return function


_PART = {"nogil": True, "forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(
    signature: str | Callable[[], Any],
    *,
    allocates: bool = True,
    steps: Callable[..., int] | None = None,
) -> Callable[[Any], "Loop"]:
    """Compile a function for one numba signature, so that no input triggers compilation.

    A loop that allocates no arrays may say so, to do without numba's reference counting, which
    costs more than the arithmetic of a small loop. `steps` says how many steps of some three
    microseconds the loop takes at most in plain Python; one that has it must be all integers.
    """
    return lambda function: Loop(function, signature, allocates, steps)


class Loop:
    """A function that is machine code once it has more than a little to do."""

    def __init__(
        self,
        function: FunctionType,
        signature: str | Callable[[], Any],
        allocates: bool,
        steps: Callable[..., int] | None,
    ) -> None:
        update_wrapper(self, function)
        self.function, self.signature = function, signature
        self.options: dict[str, Any] = {"nogil": True, "_nrt": allocates, "no_cfunc_wrapper": True}
        self.steps, self._steps_left = steps, PLAIN_STEPS
        self._machine_code: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the loop."""
        if self._machine_code is None and self._has_little_to_do(arguments):
            return plain.run(self.function, arguments)
        return self.machine_code(*arguments)

    @property
    def machine_code(self) -> Any:
        """The compiled loop: from memory, from disk, or made now."""
        if self._machine_code is None:
            with _compiling:
                if self._machine_code is None:
                    self._machine_code = self._compiled()
        return self._machine_code

    def _compiled(self) -> Any:
        dispatcher = self._dispatcher
        dispatcher.compile(self._types)
        dispatcher.disable_compile()
        return dispatcher

    @cached_property
    def _dispatcher(self) -> Any:
        import numba

        from reefknot.kernels.disk import keep_on_disk

        function = with_compiled_parts(self.function)
        dispatcher = numba.njit(**self.options)(function)
        keep_on_disk(dispatcher, function)
        return dispatcher

    @property
    def _types(self) -> Any:
        return self.signature if isinstance(self.signature, str) else self.signature()

    @cached_property
    def _is_kept(self) -> bool:
        from reefknot.kernels.disk import is_kept

        return is_kept(self._dispatcher, self._types)

    def _has_little_to_do(self, arguments: tuple[Any, ...]) -> bool:
        if self.steps is None:
            return False
        needed = self.steps(*arguments)
        if needed > self._steps_left or ("numba" in sys.modules and self._is_kept):
            return False
        self._steps_left -= needed
        return True


def with_compiled_parts(function: FunctionType) -> FunctionType:
    """The function as numba compiles it, for which parts are what numba made of them."""
    names = plain.names_of(function).items()
    parts = {n: _part(v) for n, v in names if isinstance(v, FunctionType) and v in _parts}
    return plain.with_globals(function, parts)


@cache
def _part(function: FunctionType) -> Any:
    import numba

    return numba.njit(**_parts[function])(with_compiled_parts(function))
