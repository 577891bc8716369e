"""Neural networks in kilobytes: weights tied to a few values, in files that read back exactly.

    tie = reefknot.SparseAPT(model, target_bytes=3_300, steps=60_000)
    tie.attach(optimizer)            # runs all phases, in the loop you already have
    ...                              # train
    reefknot.save(tie.finish(), "model.reef")      # at most 3,300 bytes
    model.load_state_dict(reefknot.load("model.reef"))

Names are loaded when they are first used, so that importing reefknot does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reefknot import export
    from reefknot.batchnorm import update_batchnorm
    from reefknot.errors import (
        ConfigError,
        DataError,
        DivergedError,
        FormatError,
        ReefknotError,
        TyingError,
    )
    from reefknot.format import save
    from reefknot.inspection import inspect, verify
    from reefknot.kernels.kmeans1d import kmeans1d
    from reefknot.loading import load
    from reefknot.methods import (
        APT,
        L2,
        METHODS,
        BayesianCompression,
        DeepCompression,
        L1Threshold,
        MagnitudeKmeans,
        Method,
        RandomTying,
        SoftWeightSharing,
        SparseAPT,
        SparseVD,
    )
    from reefknot.packing.clustering import cluster
    from reefknot.packing.models import pack
    from reefknot.shrinking.folding import fold_batchnorm
    from reefknot.shrinking.network import Shrunk, shrink
    from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor

__version__ = "0.2.0"

_HOME = {
    "reefknot.batchnorm": ("update_batchnorm",),
    "reefknot.packing.clustering": ("cluster",),
    "reefknot.packing.models": ("pack",),
    "reefknot.errors": (
        "ConfigError",
        "DataError",
        "DivergedError",
        "FormatError",
        "ReefknotError",
        "TyingError",
    ),
    "reefknot.format": ("save",),
    "reefknot.inspection": ("inspect", "verify"),
    "reefknot.kernels.kmeans1d": ("kmeans1d",),
    "reefknot.loading": ("load",),
    "reefknot.public": (
        "APT",
        "L2",
        "METHODS",
        "BayesianCompression",
        "DeepCompression",
        "L1Threshold",
        "MagnitudeKmeans",
        "RandomTying",
        "SoftWeightSharing",
        "SparseAPT",
        "SparseVD",
    ),
    "reefknot.methods": ("Method",),
    "reefknot.shrinking.folding": ("fold_batchnorm",),
    "reefknot.shrinking.network": ("Shrunk", "shrink"),
    "reefknot.state": ("Codebook", "KeptTensor", "TiedState", "TiedTensor"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "APT",
    "L2",
    "METHODS",
    "BayesianCompression",
    "Codebook",
    "ConfigError",
    "DataError",
    "DeepCompression",
    "DivergedError",
    "FormatError",
    "KeptTensor",
    "L1Threshold",
    "MagnitudeKmeans",
    "Method",
    "RandomTying",
    "ReefknotError",
    "Shrunk",
    "SoftWeightSharing",
    "SparseAPT",
    "SparseVD",
    "TiedState",
    "TiedTensor",
    "TyingError",
    "cluster",
    "export",
    "fold_batchnorm",
    "inspect",
    "kmeans1d",
    "load",
    "pack",
    "save",
    "shrink",
    "update_batchnorm",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "export":  # a package of functions, one for each target
        return importlib.import_module("reefknot.export")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'reefknot' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
