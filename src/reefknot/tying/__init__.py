"""Tying weights to shared values: which weights, in which groups, and the operations on them.

`Tying` is a model's weights in `Group`s with a codebook each. It knows no optimizer, no step and no
phase; those are in `reefknot.phases`. What a new method or phase needs is here by name:
`kmeans` gives groups their clusters, `gradients` changes gradients, `statistics` reads, `ops` works
on the memory of tensors, and `saved_tensor` and its like check a saved state.
"""

from reefknot.tying import gradients, kmeans, ops, statistics
from reefknot.tying.group import Group
from reefknot.tying.saved import saved_count, saved_number, saved_tensor
from reefknot.tying.selection import NORM_LAYERS, TENSOR, Scope, original_name, unwrapped
from reefknot.tying.tying import NumClusters, Saved, Tying

__all__ = [
    "NORM_LAYERS",
    "TENSOR",
    "Group",
    "NumClusters",
    "Saved",
    "Scope",
    "Tying",
    "gradients",
    "kmeans",
    "ops",
    "original_name",
    "saved_count",
    "saved_number",
    "saved_tensor",
    "statistics",
    "unwrapped",
]
