"""How loops are compiled: when they are first needed, for explicit types, without the GIL.

numba keeps the machine code on disk. Importing a module of loops compiles nothing and does not
import numba; and a loop that can tell how much it has to do does a little in plain Python
(`plain.py`).
"""

import hashlib
import inspect
import logging
import sys
from collections.abc import Callable
from functools import cache, cached_property, update_wrapper
from pathlib import Path
from threading import RLock
from types import FunctionType
from typing import Any

import numpy as np

from reefknot.kernels import plain

PLAIN_STEPS = 256_000  # of a loop, in a process: they take about as long as numba needs to begin

log = logging.getLogger("reefknot")
_parts: set[FunctionType] = set()  # what is inlined
_compiling = RLock()


def inlined(function: Any) -> Any:
    """A function that allocates nothing, to be inlined into the loops that call it by its name."""
    _parts.add(function)
    return function


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


def compiled_for_each(signature: str) -> Callable[[Any], Callable[..., "Loop"]]:
    """A loop for each type of weights and of indices, made when it is first asked for.

    In the signature `{real}` stands for the type of the weights, `{whole}` for the integers of the
    same size, `{index}` for the type of the indices.
    """

    def family(function: FunctionType) -> Callable[..., Loop]:
        @cache
        def of(real: Any, index: Any = np.uint8) -> Loop:
            names = {"real": np.dtype(real).name, "index": np.dtype(index).name}
            names["whole"] = f"int{8 * np.dtype(real).itemsize}"
            return Loop(function, signature.format_map(names), allocates=True, steps=None)

        return of

    return family


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
        machine_code = self._machine_code
        if machine_code is None:
            if self._has_little_to_do(arguments):
                return plain.run(self.function, arguments)
            machine_code = self.machine_code
        return machine_code(*arguments)

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
        if not self._is_kept and (folder := dispatcher.stats.cache_path) is not None:
            _say(f"compiling loops for this machine, once; they are kept in {folder}")
        try:
            dispatcher.compile(self._types)
        except OSError:  # it is compiled, but the disk is full
            _say(_NOT_KEPT)
        dispatcher.disable_compile()
        return dispatcher

    @cached_property
    def _dispatcher(self) -> Any:
        import numba

        function = with_compiled_parts(self.function)
        function.__qualname__ = self._name
        try:
            return numba.njit(cache=True, **self.options)(function)
        except RuntimeError as error:
            if "cache" not in str(error):
                raise
            _say(_NOT_KEPT)
            return numba.njit(**self.options)(function)

    @property
    def _types(self) -> Any:
        return self.signature if isinstance(self.signature, str) else self.signature()

    @cached_property
    def _name(self) -> str:
        """A name that tells this machine code from any other; numba names its files after it.

        numba itself looks only at the file of the function, but inlined parts and constants come
        from other files of its folder and of this one. And it numbers the machine code of one
        function for several types, which goes wrong if two processes compile at the same time.
        """
        sources = _digest(Path(inspect.getfile(self.function)).parent)
        types = hashlib.sha256(str(self._types).encode()).hexdigest()
        return f"{self.function.__name__}_{sources[:16]}_{types[:16]}"

    @cached_property
    def _is_kept(self) -> bool:
        folder = self._dispatcher.stats.cache_path
        return folder is not None and any(Path(folder).glob(f"*{self._name}*.nbi"))

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

    options: dict[str, Any] = {"nogil": True, "_nrt": False, "forceinline": True}
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(**options)(with_compiled_parts(function))


@cache
def _digest(folder: Path) -> str:
    """A hash of all source files that the loops of a folder may use."""
    digest = hashlib.sha256()
    for source in sorted({*folder.glob("*.py"), *Path(__file__).parent.glob("*.py")}):
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()


_NOT_KEPT = (
    "compiling its loops, which takes up to a minute, and again in each process: there is no "
    "folder to keep them in; set NUMBA_CACHE_DIR to one that can be written"
)
_said: list[str] = []  # at most one line a process


def _say(what: str) -> None:
    if not _said:
        _said.append(what)
        log.warning("reefknot: %s", what)
