"""The loops of latent weights, which lie behind some elements of larger tensors.

Takes     for each tensor the positions of its latent weights, and addresses.
Gives     latent weights copied there with their pull, or taken from there; a cluster for each.
Unaware   of torch; `tying.latent_ops` has the torch version of each loop.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from reefknot.kernels.shared import add_to, array_at, worker
from reefknot.kernels.work import (
    CENTERS,
    NUM_CENTERS,
    NUM_TENSORS,
    NUMBERS,
    SUMS,
    TABLE,
    TASK_SIZE,
    TENSOR,
    block_of,
    claim,
    first_place,
)


class LatentRow(NamedTuple):
    """A tensor: how many latent weights it has, and addresses; 0 for none.

    The first three are those of the whole tensors, the others have an element per latent weight.
    """

    size: int
    weights: int
    grad: int
    assignment: int
    places: int
    latent: int
    clusters: int
    bits: int


WEIGHTS, GRAD, ASSIGNMENT, PLACES, LATENT, CLUSTERS, BITS = range(1, 8)  # columns
_COLUMNS = len(LatentRow._fields)


@cache
def put(real: Any, index: Any) -> Any:
    """Copy latent weights to their places; add strength·(w − own center) to the gradients there.

    The number is the strength.
    """

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], _COLUMNS), np.int64)
        centers = array_at(task[CENTERS], task[NUM_CENTERS], real)
        strength = real(array_at(task[NUMBERS], 1, np.float64)[0])
        place = first_place(task)
        while claim(task, table, place):
            tensor = place[TENSOR]
            places = block_of(table, place, PLACES, np.int64)
            latent = block_of(table, place, LATENT, real)
            clusters = block_of(table, place, CLUSTERS, index)
            weights = array_at(table[tensor, WEIGHTS], table[tensor, 0], real)
            grad = array_at(table[tensor, GRAD], table[tensor, 0], real)
            has_grad = table[tensor, GRAD] != 0
            for n in range(latent.size):
                if has_grad:
                    grad[places[n]] += (latent[n] - centers[clusters[n]]) * strength
                weights[places[n]] = latent[n]

    return work


@cache
def take(real: Any) -> Any:
    """Copy latent weights from their places."""

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], _COLUMNS), np.int64)
        place = first_place(task)
        while claim(task, table, place):
            places = block_of(table, place, PLACES, np.int64)
            latent = block_of(table, place, LATENT, real)
            weights = array_at(table[place[TENSOR], WEIGHTS], table[place[TENSOR], 0], real)
            for n in range(latent.size):
                latent[n] = weights[places[n]]

    return work


@cache
def choose(real: Any, index: Any) -> Any:
    """Choose the cluster of each latent weight, and count the clusters.

    The numbers are the price of a bit, how many values there are, and the zero cluster (-1: none).
    The table of values has four rows: values, their prices, upper edges of the intervals in which
    each is the cheapest, and their clusters.
    """

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], _COLUMNS), np.int64)
        numbers = array_at(task[NUMBERS], 3, np.float64)
        price, count, zero = real(numbers[0]), np.int64(numbers[1]), np.int64(numbers[2])
        values = array_at(task[CENTERS], (4, count), real)
        sums = array_at(task[SUMS], task[NUM_CENTERS], np.int64)
        counts = np.zeros(sums.size, np.int64)
        place = first_place(task)
        while claim(task, table, place):
            latent = block_of(table, place, LATENT, real)
            clusters = block_of(table, place, CLUSTERS, index)
            bits = block_of(table, place, BITS, real)
            for n in range(latent.size):
                w = latent[n]
                low, high = np.int64(0), count - 1
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
        for k in range(counts.size):
            add_to(sums, k, counts[k])

    return work


@cache
def tie(real: Any, index: Any) -> Any:
    """Set the weights at all places to their centers, and the assignment there."""

    @worker
    def work(address: Any) -> None:
        task = carray(address, TASK_SIZE, np.int64)
        table = array_at(task[TABLE], (task[NUM_TENSORS], _COLUMNS), np.int64)
        centers = array_at(task[CENTERS], task[NUM_CENTERS], real)
        place = first_place(task)
        while claim(task, table, place):
            tensor = place[TENSOR]
            places = block_of(table, place, PLACES, np.int64)
            clusters = block_of(table, place, CLUSTERS, index)
            weights = array_at(table[tensor, WEIGHTS], table[tensor, 0], real)
            assignment = array_at(table[tensor, ASSIGNMENT], table[tensor, 0], index)
            for n in range(clusters.size):
                weights[places[n]] = centers[clusters[n]]
                assignment[places[n]] = clusters[n]

    return work
