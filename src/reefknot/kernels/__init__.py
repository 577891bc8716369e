"""The few compiled loops, and 1-D k-means. numpy and numba only, so that both sides may use it."""
