"""Loops in plain Python: the same functions, run by the interpreter, for very little work.

Takes     a function that numba could compile, and its arguments.
Gives     what the machine code would give, bit for bit, with integers that never overflow.
Unaware   of numba, which takes longer to import than a small file to read.

A function sees its arrays as memory views and the constant ones as lists, whose elements are
Python's integers; so its own conversions, `np.int64(...)`, change nothing. An array refuses a value
that it cannot hold. Only loops that are all integers, and that compute nothing beyond 64 bits
except where they keep the low bits of a product, run this way.
"""

from collections.abc import Callable
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

_NUMPY = SimpleNamespace(int64=int, uint64=int)


def run(function: FunctionType, arguments: tuple[Any, ...]) -> Any:
    """Call a function and all parts of it in plain Python; arrays change in place."""
    return _plain(function)(*map(_seen, arguments))


def with_globals(function: FunctionType, changed: dict[str, Any]) -> FunctionType:
    """A copy of a function, for which some global names stand for something else."""
    code, known = function.__code__, function.__globals__ | changed
    twin = FunctionType(code, known, function.__name__, function.__defaults__, function.__closure__)
    twin.__qualname__, twin.__module__ = function.__qualname__, function.__module__
    return twin


def names_of(function: FunctionType) -> dict[str, Any]:
    """What the global names in a function stand for."""
    known = function.__globals__
    return {name: known[name] for name in function.__code__.co_names if name in known}


@cache
def _plain(function: FunctionType) -> Callable[..., Any]:
    return with_globals(function, {n: _constant(v) for n, v in names_of(function).items()})


def _constant(value: Any) -> Any:
    if value is np:
        return _NUMPY
    if isinstance(value, np.ndarray):
        return value.tolist()
    return _plain(value) if isinstance(value, FunctionType) else value


def _seen(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.data
    if isinstance(value, tuple):
        return type(value)(*map(_seen, value))
    return int(value)
