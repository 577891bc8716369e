"""Methods that sparse APT is compared with; METHODS has them beside our own.

dense.py                 no compression              noisy.py    what both variational ones share
deep_compression.py      pruning, then k-means       pruned.py   what all that prune share
soft_weight_sharing.py   a mixture of Gaussians      mixture.py  its mathematics
sparse_vd.py             variational dropout         by_name.py  settings that are tables
bayesian_compression.py  a prior on whole units      simple.py   L1, L2, magnitude; then k-means
"""

from reefknot.lab.baselines.bayesian_compression import BayesianCompression
from reefknot.lab.baselines.deep_compression import DeepCompression
from reefknot.lab.baselines.dense import Dense
from reefknot.lab.baselines.simple import L2, L1Threshold, MagnitudeKmeans
from reefknot.lab.baselines.soft_weight_sharing import SoftWeightSharing
from reefknot.lab.baselines.sparse_vd import SparseVD
from reefknot.methods import APT, Method, RandomTying, SparseAPT

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        *(Dense, APT, SparseAPT, DeepCompression, SoftWeightSharing, SparseVD, BayesianCompression),
        *(L1Threshold, L2, MagnitudeKmeans, RandomTying),
    )
}

BASELINE = Dense.name  # what the others are compared with

__all__ = [
    "BASELINE",
    "L2",
    "METHODS",
    "BayesianCompression",
    "DeepCompression",
    "Dense",
    "L1Threshold",
    "MagnitudeKmeans",
    "SoftWeightSharing",
    "SparseVD",
]
