"""Settings of methods: each is declared once, as a field of the method's class.

Takes     a default, a line of documentation, and a check.
Gives     the signature, the checks, and the text of `help()` and `reefknot methods`.
Unaware   of what a setting does.

    class L2(TyingMethod):
        l2_strength: float = setting(default=1e-4, doc="weight of the penalty", check=is_number())
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from reefknot.state import MAX_CODEBOOK
from reefknot.tying.selection import NETWORK, TENSOR

Check = Callable[[str, Any], Iterable[str]]  # from name and value to the mistakes in it


def setting(
    *,
    default: Any = dataclasses.MISSING,
    doc: str,
    check: Check | None = None,
    kw_only: bool = True,
) -> Any:
    """Declare a setting, as a field of a dataclass."""
    metadata = {"doc": doc, "check": check}
    return dataclasses.field(default=default, kw_only=kw_only, metadata=metadata)


def settings_of(method: type) -> list[dataclasses.Field[Any]]:
    """The settings of a method, in the order of its signature."""
    known = [f for f in dataclasses.fields(method) if "doc" in f.metadata]
    return sorted(known, key=lambda f: bool(f.kw_only))


def mistakes_in(method: type, settings: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with each setting on its own, and which are missing."""
    for field in settings_of(method):
        if field.name in settings:
            if field.metadata["check"] is not None and settings[field.name] is not field.default:
                yield from field.metadata["check"](field.name, settings[field.name])
        elif field.default is dataclasses.MISSING:
            yield f"{field.name} is missing: {field.metadata['doc']}"


def described(method: type) -> str:
    """The section of a docstring that lists the settings."""
    lines = ["Settings:"]
    for field in settings_of(method):
        default = "" if field.default is dataclasses.MISSING else f" [{field.default!r}]"
        lines.append(f"    {field.name}: {field.metadata['doc']}{default}")
    return "\n".join(lines)


# -- checks ---------------------------------------------------------------------------------


def is_number(*, least: float = 0.0, most: float = math.inf, optional: bool = False) -> Check:
    """A finite number in this range."""
    bound = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"

    def check(name: str, value: Any) -> Iterator[str]:
        if optional and value is None:
            return
        if not _is_real(value) or math.isinf(value) or not least <= value <= most:
            yield f"{name} must be a number {bound}, found {value!r}"

    return check


def is_any_number(name: str, value: Any) -> Iterator[str]:
    """Any number but NaN; infinity is allowed."""
    if not _is_real(value):
        yield f"{name} must be a number, found {value!r}"


def is_count(
    meaning: str, *, least: int = 0, most: float = math.inf, optional: bool = False
) -> Check:
    """A whole number in this range; `meaning` describes it in the message."""

    def check(name: str, value: Any) -> Iterator[str]:
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            yield f"{name} must be {meaning}, found {value!r}"

    return check


def is_choice(*words: str | None, renamed: Mapping[str, str] | None = None) -> Check:
    """One of a few words; `renamed` has new words for old ones."""

    def check(name: str, value: Any) -> Iterator[str]:
        if isinstance(value, str) and value in (renamed or {}):
            yield f"{name} = {value!r} is called {(renamed or {})[value]!r} now"
        elif value not in words:
            yield f"{name} must be one of {', '.join(filter(None, words))}, found {value!r}"

    return check


def are_clusters(least: int, *, auto: bool = False) -> Check:
    """A whole number, or a table from group names to whole numbers."""

    def check(name: str, value: Any) -> Iterator[str]:
        if auto and value in ("auto", None):
            return
        for k in value.values() if isinstance(value, Mapping) else [value]:
            if not isinstance(k, int) or isinstance(k, bool) or not least <= k <= MAX_CODEBOOK:
                known = ' or "auto"' if auto else ""
                bound = f"a whole number from {least} to {MAX_CODEBOOK:,}{known}"
                yield f"{name} must be {bound}, found {k!r}"

    return check


def are_patterns(name: str, value: Any) -> Iterator[str]:
    """A name pattern, or several."""
    several = isinstance(value, Sequence) and all(isinstance(p, str) for p in value)
    if not isinstance(value, str) and not several:
        yield f"{name} must be a name pattern or a list of them, found {value!r}"


def is_scope(name: str, value: Any) -> Iterator[str]:
    """Which parameters share a codebook."""
    if isinstance(value, Mapping):
        for group, found in value.items():
            yield from are_patterns(f"{name}.{group}", found)
    elif value not in (NETWORK, TENSOR):
        yield (
            f"{name} must be {NETWORK!r}, {TENSOR!r} or a table from group names to name patterns, "
            f"found {value!r}"
        )


def _is_real(value: Any) -> bool:
    """Whether this is a number that can be compared with others."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
