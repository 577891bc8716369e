"""A setting that is one number for all, or a table from name patterns to numbers.

Takes     such a setting, and the names that need a number.
Gives     its check, and the number of each name.
Unaware   of what is named and what the numbers are for.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from reefknot.errors import ConfigError
from reefknot.methods.settings import Check

Numbers = float | Mapping[str, float]


def are_numbers(check: Check) -> Check:
    """The number, or each number of the table, passes this check."""

    def checked(name: str, value: Any) -> Iterator[str]:
        table = value.items() if isinstance(value, Mapping) else ()
        for pattern, number in table:
            yield from check(f"{name}.{pattern}", number)
        if not isinstance(value, Mapping):
            yield from check(name, value)

    return checked


def by_name(setting: str, value: Numbers, names: Sequence[str]) -> dict[str, float]:
    """The number of each name, the first match; every name and every pattern must have one."""
    table = value if isinstance(value, Mapping) else {"*": value}
    matching = {n: [float(x) for p, x in table.items() if fnmatchcase(n, p)] for n in names}
    unused = [p for p in table if not any(fnmatchcase(name, p) for name in names)]
    mistakes = [f"{setting} names {p!r}, which matches none of {', '.join(names)}" for p in unused]
    mistakes += [
        f"{setting} has no entry for {name!r}; give one, or exclude this parameter"
        for name, found in matching.items()
        if not found
    ]
    if mistakes:
        raise ConfigError(*mistakes)
    return {name: found[0] for name, found in matching.items()}
