"""Methods that sparse APT is compared with, one file each; METHODS has them beside our own.

dense.py                 no compression              noisy.py    what both variational ones share
deep_compression.py      pruning, then k-means       pruned.py   what all that prune share
soft_weight_sharing.py   a mixture of Gaussians      mixture.py  its mathematics
sparse_vd.py             variational dropout         l2.py       weight decay, then k-means
bayesian_compression.py  a prior on whole units      l1_threshold.py, magnitude_kmeans.py
by_name.py               settings that are tables
"""

from reefknot.lab.baselines.bayesian_compression import BayesianCompression
from reefknot.lab.baselines.deep_compression import DeepCompression
from reefknot.lab.baselines.dense import Dense
from reefknot.lab.baselines.l1_threshold import L1Threshold
from reefknot.lab.baselines.l2 import L2
from reefknot.lab.baselines.magnitude_kmeans import MagnitudeKmeans
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
