"""One file per method; METHODS maps names to classes."""

from reefknot.methods.apt import APT, RandomTying, SparseAPT
from reefknot.methods.bayesian_compression import BayesianCompression
from reefknot.methods.deep_compression import DeepCompression
from reefknot.methods.dense import Dense
from reefknot.methods.l1_threshold import L1Threshold
from reefknot.methods.l2 import L2
from reefknot.methods.magnitude_kmeans import MagnitudeKmeans
from reefknot.methods.method import Method
from reefknot.methods.soft_weight_sharing import SoftWeightSharing
from reefknot.methods.sparse_vd import SparseVD

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Dense,
        APT,
        SparseAPT,
        DeepCompression,
        SoftWeightSharing,
        SparseVD,
        BayesianCompression,
        L1Threshold,
        L2,
        MagnitudeKmeans,
        RandomTying,
    )
}

BASELINE = Dense.name  # what the others are compared with

__all__ = [
    "APT",
    "BASELINE",
    "L2",
    "METHODS",
    "BayesianCompression",
    "DeepCompression",
    "Dense",
    "L1Threshold",
    "MagnitudeKmeans",
    "Method",
    "RandomTying",
    "SoftWeightSharing",
    "SparseAPT",
    "SparseVD",
]
