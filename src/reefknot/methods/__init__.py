"""One file a method; METHODS names them all."""

from reefknot.methods.apt import APT, SparseAPT
from reefknot.methods.bayesian_compression import BayesianCompression
from reefknot.methods.dense import Dense
from reefknot.methods.method import Method
from reefknot.methods.sparse_vd import SparseVD

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Dense, APT, SparseAPT, SparseVD, BayesianCompression)
}

__all__ = ["APT", "METHODS", "BayesianCompression", "Dense", "Method", "SparseAPT", "SparseVD"]
