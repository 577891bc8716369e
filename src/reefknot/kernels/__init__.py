"""The compiled loops, and 1-D k-means: numpy and numba only, so that all parts may use them."""

import numpy as np


def assignment_dtype(num_clusters: int) -> np.dtype:
    """The dtype of assignments to this many clusters: one byte up to 256."""
    return np.dtype(np.uint8 if num_clusters <= 256 else np.int32)
