"""One file a method; METHODS names them all."""

from reefknot.methods.apt import APT, SparseAPT
from reefknot.methods.dense import Dense
from reefknot.methods.method import Method

METHODS: dict[str, type[Method]] = {method.name: method for method in (Dense, APT, SparseAPT)}

__all__ = ["APT", "METHODS", "Dense", "Method", "SparseAPT"]
