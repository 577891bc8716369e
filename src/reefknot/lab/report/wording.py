"""Formatting of counts, errors, rates and times in a report, and of unexpected input.

Takes     values from a record, of which any may be missing, null or of another type.
Gives     short text with its unit; a dash for a missing value.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

TIMES = "\u00d7"
MINUS = "\u2212"
DASH = "\u2013"
SPACE = "\u00a0"  # between a number and its unit: never broken over two lines

# Beyond these, ratios and powers on an axis would overflow.
_LARGEST, _SMALLEST = 1e100, 1e-100


def number(value: object) -> float | None:
    """A finite number, or None for everything else (null, NaN, text, true)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    if abs(found) < _SMALLEST:
        return 0.0
    return found if abs(found) < _LARGEST else None  # NaN is not below anything


def numbers(value: object) -> list[float | None]:
    """A list of numbers, or an empty one where a list was expected and is not there."""
    return [number(item) for item in value] if isinstance(value, list | tuple) else []


def mapping(value: object) -> Mapping[str, Any]:
    """A mapping, or an empty one where a mapping was expected and is not there."""
    return value if isinstance(value, Mapping) else {}


def plain(value: float, digits: int = 4) -> str:
    """A number with few significant digits and a true minus sign.

    >>> [plain(v) for v in (0.0, 0.123456, 1234567.0, 0.00001)]
    ['0', '0.1235', '1,234,567', '1e\u22125']
    """
    if value == int(value) and abs(value) < 1e15:
        shown = f"{int(value):,}"
    elif abs(value) >= 10**digits:
        shown = f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.{digits}g}"
    else:
        shown = f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e+")
    return shown.replace("-", MINUS)


def count(value: object) -> str:
    """A whole number with thousands separators."""
    found = number(value)
    return DASH if found is None else f"{round(found):,}".replace("-", MINUS)


def percent(value: object, decimals: int = 2) -> str:
    """A number that is percent already, as errors are."""
    found = number(value)
    return DASH if found is None else f"{found:.{decimals}f}{SPACE}%"


def share(fraction: object) -> str:
    """A fraction as percent, with enough digits for a very sparse network.

    >>> [share(f).replace(SPACE, " ") for f in (0.5, 0.0213, 0.00042, 0.0)]
    ['50.0 %', '2.13 %', '0.042 %', '0 %']
    """
    found = number(fraction)
    if found is None:
        return DASH
    shown = 100 * found
    if shown == 0:
        return f"0{SPACE}%"
    decimals = 1 if abs(shown) >= 10 else 2 if abs(shown) >= 0.1 else 3
    return f"{shown:.{decimals}f}{SPACE}%"


def rate(value: object) -> str:
    """A compression rate as a factor.

    >>> [rate(r) for r in (126.93, 31.24, 7.8)]
    ['127\u00d7', '31.2\u00d7', '7.80\u00d7']
    """
    found = number(value)
    if found is None:
        return DASH
    decimals = 0 if found >= 100 else 1 if found >= 10 else 2
    return f"{found:,.{decimals}f}{TIMES}"


def duration(seconds: object) -> str:
    """A time in hours, minutes and seconds.

    >>> [duration(s) for s in (4.21, 754, 7260)]
    ['0:00:04', '0:12:34', '2:01:00']
    """
    found = number(seconds)
    return DASH if found is None else str(timedelta(seconds=round(min(abs(found), 1e9))))
