"""The methods of this package: plain, random and sparse APT, and the contract of all methods."""

from reefknot.methods.apt import APT, RandomTying, SparseAPT
from reefknot.methods.method import Method, TyingMethod

METHODS: dict[str, type[TyingMethod]] = {kind.name: kind for kind in (APT, SparseAPT, RandomTying)}

__all__ = ["APT", "METHODS", "Method", "RandomTying", "SparseAPT", "TyingMethod"]
