"""The loops of latent weights, which lie behind some elements of larger tensors.

Takes     latent weights, with the positions of each in the memory of its tensor.
Gives     latent weights copied there with their pull, or taken from there; a cluster for each.
Unaware   of torch; `tying.latent_ops` has the torch version of each loop.

`weights`, `grads` and `assignment` are whole tensors; all others have an element for each latent
weight.
"""

from typing import Any

import numpy as np

from reefknot.kernels.jit import compiled_for_each


@compiled_for_each(
    "void({real}[::1], {real}[::1], int64[::1], {real}[::1], {index}[::1], {real}[::1], {real})"
)
def put(
    weights: Any, grads: Any, places: Any, latent: Any, clusters: Any, centers: Any, strength: Any
) -> None:
    """Copy latent weights to their places; add strength·(w − own center) to the gradients there.

    Of an empty array of gradients, none changes.
    """
    for n in range(latent.size):
        if grads.size:
            grads[places[n]] += (latent[n] - centers[clusters[n]]) * strength
        weights[places[n]] = latent[n]


@compiled_for_each("void({real}[::1], int64[::1], {real}[::1])")
def take(weights: Any, places: Any, latent: Any) -> None:
    """Copy latent weights from their places."""
    for n in range(latent.size):
        latent[n] = weights[places[n]]


@compiled_for_each(
    "void({real}[::1], {index}[::1], {real}[::1], {real}[:, ::1], {real}, int64, int64[::1])"
)
def choose(
    latent: Any, clusters: Any, bits: Any, values: Any, price: Any, zero: int, counts: Any
) -> None:
    """Choose the cluster of each latent weight, and count the clusters.

    `values` has four rows: values, their prices, upper edges of the intervals in which each is the
    cheapest, and their clusters. `price` is that of a bit, `zero` the zero cluster (-1: none).
    """
    for n in range(latent.size):
        w = latent[n]
        low, high = np.int64(0), values.shape[1] - 1
        while low < high:
            middle = (low + high) >> 1
            if values[2, middle] < w:
                low = middle + 1
            else:
                high = middle
        away = values[0, low] - w
        cost = away * away + values[1, low] + price * bits[n]
        is_zero = zero >= 0 and cost >= w * w
        cluster = zero if is_zero else np.int64(values[3, low])
        clusters[n] = cluster
        counts[cluster] += 1


@compiled_for_each("void({real}[::1], {index}[::1], int64[::1], {index}[::1], {real}[::1])")
def tie(weights: Any, assignment: Any, places: Any, clusters: Any, centers: Any) -> None:
    """Set the weights at all places to their centers, and the assignment there."""
    for n in range(clusters.size):
        weights[places[n]] = centers[clusters[n]]
        assignment[places[n]] = clusters[n]
