"""The methods of this package: plain, random and sparse APT, and the contract of all methods.

A new method is a `TyingMethod` (or, if it ties nothing, a `Method`) with its settings as fields,
declared by what `reefknot.methods.settings` has, and a list of phases.
"""

from reefknot.methods.apt import APT, RandomTying, SparseAPT
from reefknot.methods.method import Method, TyingMethod, WithoutZeroCluster

METHODS: dict[str, type[TyingMethod]] = {kind.name: kind for kind in (APT, SparseAPT, RandomTying)}

__all__ = [
    "APT",
    "METHODS",
    "Method",
    "RandomTying",
    "SparseAPT",
    "TyingMethod",
    "WithoutZeroCluster",
]
