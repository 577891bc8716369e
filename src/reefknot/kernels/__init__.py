"""The few compiled loops, and 1-D k-means. numpy and numba only, so that both sides may use it."""

import numpy as np


def assignment_dtype(num_clusters: int) -> np.dtype:
    """The type that assignments to this many clusters are held in: one byte up to 256."""
    return np.dtype(np.uint8 if num_clusters <= 256 else np.int32)
