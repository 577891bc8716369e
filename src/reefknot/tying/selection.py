"""Which parameters are tied, and which of them share a codebook.

Takes     a model, name patterns and a scope.
Gives     groups of named parameters, and a reason for each one left out.
Paper     one codebook for the whole network (section 4.3); per tensor as in Deep Compression.
Unaware   of centers and assignments.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parallel import DataParallel, DistributedDataParallel

from reefknot.errors import ConfigError, TyingError, did_you_mean
from reefknot.tying.collectives import copies_of, local
from reefknot.tying.ops import fills_its_memory

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Scope = str | Mapping[str, Sequence[str] | str]
NETWORK = "network"
TENSOR = "tensor"
NORMS = "norms"  # the group of the norm layers
FOLDED = "a BatchNorm, written in its form for inference"

Norms = Literal["separate", "tied", "exact", "folded"]
NORM_LAYERS: tuple[type[nn.Module], ...] = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class Named(NamedTuple):
    """A parameter under the name it has in the original state dict."""

    name: str
    parameter: nn.Parameter


@dataclass(frozen=True)
class Selection:
    """Groups of parameters that share a codebook, and why the others are not tied."""

    groups: Mapping[str, tuple[Named, ...]]
    skipped: Mapping[str, str]
    dense: frozenset[str] = frozenset()  # groups whose weights are not to become zero


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile` and data-parallel wrappers."""
    while model is not (inner := _inner(model)):
        model = inner
    return model


def _inner(model: nn.Module) -> nn.Module:
    """What a wrapper holds; a model that is none itself."""
    if isinstance(model, DataParallel | DistributedDataParallel):
        return model.module
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


def replicas_of(model: nn.Module) -> tuple["ProcessGroup", ...]:
    """The groups of processes that hold a copy each: those of a data-parallel wrapper."""
    groups: dict[ProcessGroup, None] = {}
    while model is not (inner := _inner(model)):
        if isinstance(model, DistributedDataParallel) and model.process_group.size() > 1:
            groups[model.process_group] = None
        model = inner
    return (*groups, *copies_of(model.named_parameters()))


def original_name(name: str) -> str:
    """A name without the `_orig_mod` that a compiled submodule puts into it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def select(
    model: nn.Module,
    *,
    include: Iterable[str],
    exclude: Iterable[str],
    scope: Scope,
    norms: Norms = "tied",
) -> Selection:
    """Choose what to tie; a shared parameter counts once, under the first of its names.

    Norm layers are recognised by their type. Depending on `norms` they share a codebook of their
    own, whatever the scope, are tied with everything else, or are left out ("folded": BatchNorm).
    """
    include, exclude = list(include), list(exclude)
    named = [
        Named(original_name(name), parameter)
        for name, parameter in unwrapped(model).named_parameters()
    ]
    names = [name for name, _ in named]
    _check_shared(unwrapped(model), scope)
    _check_patterns(names, [*include, *exclude, *(p for _, ps in _rules(scope) for p in ps)])

    groups: dict[tuple[str, torch.dtype], list[Named]] = {}
    skipped: dict[str, str] = {}
    of_norms = _of_norms(model, NORM_LAYERS) if norms != "tied" else set()
    kept = of_norms if norms == "exact" else set()
    if norms == "folded":
        kept = _of_norms(model, (_BatchNorm,))
    for name, parameter in named:
        reason = _reason_to_skip(name, parameter, include, exclude)
        key = _group_of(name, scope)
        if reason is None and key is None:
            reason = "in no group of the scope"
        if reason is None and parameter in kept:
            reason = FOLDED if norms == "folded" else "of a norm layer, which are kept"
        if parameter in of_norms:
            key = NORMS
        elif reason is None and key == NORMS and norms in ("separate", "folded"):
            raise ConfigError(
                f"{name!r} is in a group {NORMS!r}, which is the norm layers' own; give the group "
                'another name, or set norms = "tied"'
            )
        if reason is not None:
            skipped[name] = reason
            continue
        if not fills_its_memory(local(parameter)):
            raise TyingError(
                f"{name!r} does not fill its memory (strides {tuple(parameter.stride())}), so it "
                "cannot be tied in place; make it contiguous, or exclude it"
            )
        assert key is not None
        groups.setdefault((key, parameter.dtype), []).append(Named(name, parameter))
    if not groups:
        raise TyingError(
            "there is nothing to tie: the model has no trainable floating-point parameter that "
            f"the patterns leave ({len(skipped)} skipped)"
        )
    titles = {key: _title(key, list(groups)) for key in groups}
    dense = {title for (name, _), title in titles.items() if name == NORMS and norms != "tied"}
    return Selection({titles[k]: tuple(v) for k, v in groups.items()}, skipped, frozenset(dense))


def _check_shared(model: nn.Module, scope: Scope) -> None:
    """A tensor that has two names is in one group."""
    if isinstance(scope, str):
        return
    first: dict[nn.Parameter, str] = {}
    for key, parameter in model.named_parameters(remove_duplicate=False):
        name = original_name(key)
        other = first.setdefault(parameter, name)
        groups = _group_of(other, scope), _group_of(name, scope)
        if None not in groups and groups[0] != groups[1]:
            raise ConfigError(
                f"{other!r} and {name!r} are one tensor, but the scope puts the first into group "
                f"{groups[0]!r} and the second into {groups[1]!r}; a tensor is in one group"
            )


def _of_norms(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> set[nn.Parameter]:
    """The scales and shifts of norm layers."""
    norms = (module for module in model.modules() if isinstance(module, kinds))
    return {parameter for norm in norms for parameter in norm.parameters(recurse=False)}


def is_trainable(dtype: torch.dtype) -> bool:
    """Whether weights of this type can be tied while they train."""
    return dtype.is_floating_point and dtype.itemsize >= 2


def _reason_to_skip(
    name: str, parameter: nn.Parameter, include: list[str], exclude: list[str]
) -> str | None:
    if not any(fnmatchcase(name, pattern) for pattern in include):
        return "not included"
    if any(fnmatchcase(name, pattern) for pattern in exclude):
        return "excluded"
    if not parameter.requires_grad:
        return "frozen: it does not require a gradient"
    if not is_trainable(parameter.dtype):
        why = (
            "too narrow to train" if parameter.is_floating_point() else "not a floating-point type"
        )
        return f"{parameter.dtype} is {why}"
    if parameter.numel() == 0:
        return "it has no elements"
    return None


def _rules(scope: Scope) -> Iterator[tuple[str, list[str]]]:
    """The named groups of a scope with their patterns."""
    if not isinstance(scope, str):
        for group, patterns in scope.items():
            yield group, [patterns] if isinstance(patterns, str) else list(patterns)


def _group_of(name: str, scope: Scope) -> str | None:
    if isinstance(scope, str):
        return name if scope == TENSOR else NETWORK
    for group, patterns in _rules(scope):
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return group
    return None


def _title(key: tuple[str, torch.dtype], keys: list[tuple[str, torch.dtype]]) -> str:
    """The group's name, with the dtype if one name covers several (a codebook has one dtype)."""
    name, dtype = key
    shared = sum(other == name for other, _ in keys) > 1
    return f"{name} ({str(dtype).removeprefix('torch.')})" if shared else name


def _check_patterns(names: list[str], patterns: list[str]) -> None:
    """Refuse patterns that match nothing: such a typo would otherwise show only in the file."""
    mistakes = []
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            hint = did_you_mean(pattern, names) or f"names are like {names[:3]}"
            mistakes.append(f"the pattern {pattern!r} matches no parameter; {hint}")
    if mistakes:
        raise ConfigError(*mistakes)
