"""k-means on a group: first clusters, clusters with a fixed zero, and refits.

Takes     a group, and where its centers begin.
Gives     the group with other centers and another assignment; its weights stay as they are.
Paper     section 3.1: k-means in one dimension, from evenly spaced centers.
Unaware   of optimizers, of step counts, and of which phase calls it.
"""

from typing import Literal

import numpy as np
import torch

from reefknot.errors import TyingError
from reefknot.kernels import assignment_dtype
from reefknot.kernels.histogram import Countable, InMemory
from reefknot.kernels.kmeans1d import COUNTED_FROM, Clustering, kmeans1d_of_parts, nearest
from reefknot.kernels.kmeans1d import refit as refit_counted
from reefknot.tying import ops
from reefknot.tying.counting import OnDevice, renumber_
from reefknot.tying.group import Group

Start = Literal["even", "kmeans"]


def start(group: Group, how: Start) -> None:
    """First clusters: evenly over the range of the weights (as in the paper), or by k-means."""
    group.follow()
    if how == "kmeans":
        _fit(group, None)
        return
    low, high = np.inf, -np.inf
    for _, _, piece in group.members.pieces():
        low, high = min(low, float(piece.min())), max(high, float(piece.max()))
    low, high = _range_of_all(group, low, high)
    even = np.linspace(low, high, group.num_clusters)
    group.allocate()
    for name, part, piece in group.members.pieces():
        assignment = ops.flat(group.assignments[name])[part]
        assignment.copy_(torch.from_numpy(nearest(piece, even)))
    group.set_centers(even, recount=True)


def start_with_zero(group: Group, how: Start) -> None:
    """Put zeros into a cluster at exactly 0, and run k-means with K - 1 clusters on the rest.

    Its centers start evenly over the range of the rest, or at the optimum. A group that is not
    sparse gets K clusters by k-means.
    """
    group.follow()
    if group.sparse:
        weights = group.members.weights()
        _split_zeros(group, weights, weights != 0, how)
    else:
        _fit(group, None)


def start_distinct(group: Group) -> None:
    """A cluster for each distinct value, and one at 0; with a fixed K, k-means.

    A group that is not sparse may have more values than clusters.
    """
    group.follow()
    if group.may_change:
        weights = group.members.weights().astype(np.float64)
        distinct, counts = np.unique(weights, return_counts=True)
        distinct, _ = group.members.processes.merged(distinct, counts)
        wanted = len(distinct) + (group.sparse and not np.any(distinct == 0))
        if group.sparse and wanted > group.most_clusters:
            raise TyingError(
                f"group {group.name!r} has {len(distinct):,} values, more than "
                f"{group.most_clusters}, so it is not tied yet; pack the network first, give "
                'num_clusters or scope = "tensor", or begin with "trained"'
            )
        group.num_clusters = min(wanted, group.most_clusters)
    start_with_zero(group, "kmeans")


def prune(group: Group, most: float, num_clusters: int) -> None:
    """Put weights up to this magnitude into the zero cluster, and run k-means on the others.

    A group that is not sparse gets `num_clusters` by k-means.
    """
    group.follow()
    group.num_clusters = num_clusters
    if group.sparse:
        weights = group.members.weights()
        _split_zeros(group, weights, np.abs(weights) > most, "kmeans")
    else:
        _fit(group, None)


def refit(group: Group) -> float:
    """Run k-means from the current centers; gives the fraction of changed assignments.

    Weights that are fixed at zero stay there, and the other K - 1 centers are for the rest.
    """
    group.follow()
    if group.zero_cluster is None:
        return _fit(group, group.centers) / group.members.num_weights
    return _refit_survivors(group, group.zero_cluster) / group.members.num_weights


def _fit(group: Group, centers: np.ndarray | None) -> int:
    """Run k-means, from these centers if given; gives how many assignments changed.

    Weights that the compiled loops can reach are counted in place; others are copied.
    """
    if not group.assignments:
        group.allocate()
    numbers = _countable(group)
    many = group.members.num_weights >= COUNTED_FROM
    if group.distance == "l2" and many and numbers is not None:
        reducer = group.members.processes
        found = refit_counted(numbers, group.num_clusters, centers, reducer=reducer)
        if found is not None:
            group.set_centers(found.centers, recount=True)
            return found.changed
    before = group.clusters()
    copied = _kmeans(group, group.members.weights(), group.num_clusters, centers)
    group.assign(copied.centers, copied.assignment)
    return _count_of_all(group, before != copied.assignment)


def _split_zeros(group: Group, weights: np.ndarray, alive: np.ndarray, how: Start) -> None:
    """Make a cluster at 0 for all but `alive`, and K - 1 clusters by k-means for `alive`."""
    values, wanted = weights[alive], group.num_clusters - 1
    assignment = np.zeros(len(weights), assignment_dtype(group.num_clusters))
    centers, zero = np.zeros(1), 0
    if group.members.processes.total(np.array([len(values)]))[0]:
        first = None
        if how == "even":
            low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
            low, high = _range_of_all(group, low, high)
            first = np.linspace(values.dtype.type(low), values.dtype.type(high), wanted)
        found = _kmeans(group, values, wanted, first)
        zero = int(np.searchsorted(found.centers, 0.0))
        centers = np.insert(found.centers, zero, 0.0)
        assignment[:] = zero
        places = found.assignment.astype(assignment.dtype)
        assignment[alive] = places + (places >= zero)
    group.assign(centers, assignment, zero)


def _refit_survivors(group: Group, old: int) -> int:
    """Run k-means on all but the zero cluster `old`, which keeps its weights."""
    others = np.delete(group.centers, old)
    changed = _refit_on_device(group, old, others)
    if changed is not None:
        return changed
    before = group.clusters()
    alive = before != old
    if not _count_of_all(group, alive) or not len(others):
        return 0
    found = _kmeans(group, group.members.weights()[alive], len(others), others)
    zero = int(np.searchsorted(found.centers, 0.0))
    own = before[alive] - (before[alive] > old)  # the clusters as if there were no zero cluster
    after = np.full(len(before), zero, before.dtype)
    places = found.assignment.astype(before.dtype)
    after[alive] = places + (places >= zero)
    group.assign(np.insert(found.centers, zero, 0.0), after, zero)
    return _count_of_all(group, own != found.assignment)


def _refit_on_device(group: Group, old: int, others: np.ndarray) -> int | None:
    """What `_refit_survivors` does, without a copy on the host, for many weights elsewhere."""
    numbers = _on_device(group, old)
    many = int(group.counts.sum() - group.counts[old]) >= COUNTED_FROM
    if numbers is None or not many or group.distance != "l2":
        return None
    found = refit_counted(numbers, len(others), others, reducer=group.members.processes)
    if found is None:
        return None
    zero, places = int(np.searchsorted(found.centers, 0.0)), np.arange(len(found.centers))
    renumber_(numbers.held, np.append(places + (places >= zero), zero))
    group.set_centers(np.insert(found.centers, zero, 0.0), recount=True)
    group.zero_cluster = zero
    return found.changed


def _countable(group: Group) -> Countable | None:
    """The weights where they lie, if they can be counted there."""
    tensors = group.tensors()
    if all(tensors.reached):
        return InMemory(tensors.work, np.dtype(tensors.types[0]), torch.get_num_threads())
    return _on_device(group, None)


def _on_device(group: Group, without: int | None) -> OnDevice | None:
    """The weights, but for those of a cluster, where they are all on an accelerator."""
    held = group.tensors().held
    devices = {weights.device for weights, _, _ in held}
    if len(devices) > 1 or devices.pop().type in ("cpu", "mps"):  # mps has no float64
        return None
    return OnDevice(held, without)


def _kmeans(
    group: Group, values: np.ndarray, num_clusters: int, centers: np.ndarray | None
) -> Clustering:
    """k-means on some of the weights here, and those that other processes have."""
    return kmeans1d_of_parts(
        values, num_clusters, group.members.processes, centers=centers, distance=group.distance
    )


def _range_of_all(group: Group, low: float, high: float) -> np.ndarray:
    """The least and the largest of all processes, given those of this one."""
    return group.members.processes.all_reduce_max(np.array([-low, high])) * (-1, 1)


def _count_of_all(group: Group, found: np.ndarray) -> int:
    """How many are found here and in other processes."""
    return int(group.members.processes.total(np.array([np.count_nonzero(found)]))[0])
