"""Automatic parameter tying, phase by phase: sparsify, recover, commit, frozen."""

from reefknot.methods.apt.method import APT, RandomTying, SparseAPT

__all__ = ["APT", "RandomTying", "SparseAPT"]
