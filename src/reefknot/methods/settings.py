"""Sentences about settings that cannot be used; each method puts its checks together of these."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from reefknot.state import MAX_CODEBOOK
from reefknot.tying.selection import NETWORK, TENSOR, Norms

Settings = Mapping[str, Any]


def clusters_mistakes(settings: Settings, *, least: int) -> Iterator[str]:
    """`num_clusters` is a whole number, or a table from group names to whole numbers."""
    clusters = settings.get("num_clusters", least)
    for k in clusters.values() if isinstance(clusters, Mapping) else [clusters]:
        if not isinstance(k, int) or isinstance(k, bool) or not least <= k <= MAX_CODEBOOK:
            yield (
                f"num_clusters must be a whole number from {least} to {MAX_CODEBOOK:,}, found {k!r}"
            )


def number_mistakes(settings: Settings, *keys: str, least: float = 0.0) -> Iterator[str]:
    """These are finite numbers of at least `least`."""
    for key in keys:
        value = settings.get(key, least)
        whole_or_real = isinstance(value, int | float) and not isinstance(value, bool)
        if not whole_or_real or not least <= value < math.inf:
            yield f"{key} must be a number of at least {least:g}, found {value!r}"


def count_mistakes(
    settings: Settings,
    *keys: str,
    least: int = 0,
    most: float = math.inf,
    meaning: str = "a whole number",
) -> Iterator[str]:
    """These are whole numbers from `least` to `most`; `meaning` says of what."""
    for key in keys:
        value = settings.get(key, least)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            yield f"{key} must be {meaning}, found {value!r}"


def choice_mistakes(settings: Settings, choices: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Each of these is one of a few words."""
    for key, allowed in choices.items():
        if settings.get(key, allowed[0]) not in allowed:
            yield f"{key} must be one of {', '.join(allowed)}, found {settings[key]!r}"


def selection_mistakes(settings: Settings) -> Iterator[str]:
    """`scope`, `include`, `exclude`, `norms`: which parameters, and which share a codebook."""
    yield from choice_mistakes(settings, {"norms": get_args(Norms)})
    scope = settings.get("scope", NETWORK)
    if not isinstance(scope, Mapping) and scope not in (NETWORK, TENSOR):
        yield (
            f"scope must be {NETWORK!r}, {TENSOR!r} or a table from group names to name patterns, "
            f"found {scope!r}"
        )
    groups = scope if isinstance(scope, Mapping) else {}
    patterns = {f"scope.{group}": found for group, found in groups.items()}
    patterns |= {key: settings.get(key, ()) for key in ("include", "exclude")}
    for key, found in patterns.items():
        if isinstance(found, str):
            continue
        if not isinstance(found, Sequence) or not all(isinstance(p, str) for p in found):
            yield f"{key} must be a name pattern or a list of them, found {found!r}"


def real_mistakes(settings: Settings, *keys: str) -> Iterator[str]:
    """These are numbers, of either sign; infinity is one."""
    for key in keys:
        if not is_real(settings.get(key, 0.0)):
            yield f"{key} must be a number, found {settings[key]!r}"


def is_real(value: Any) -> bool:
    """Whether this is a number that can be compared with others."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
