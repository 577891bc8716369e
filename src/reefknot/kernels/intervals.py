"""Which of a few values is cheapest for a number, if each value has a price of its own.

Takes     ascending values and their prices.
Gives     the intervals in which each value has the least distance² + price.
Unaware   of what the values and prices stand for.

(w - c)² + p is w² plus a line in w, so the cheapest value is the lowest line. Their lower envelope
has the values in ascending order, and leaves out those that are too dear everywhere.
"""

import numpy as np
from numpy.typing import NDArray

from reefknot.kernels.jit import compiled


def cheapest(
    values: NDArray[np.float64], prices: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The values that are cheapest somewhere, by index, and the edges between their intervals.

    >>> cheapest(np.array([-1.0, 0.0, 1.0]), np.array([0.0, 2.0, 0.5]))
    (array([0, 2]), array([0.125]))
    """
    found, edges = np.empty(len(values), np.int64), np.empty(len(values))
    count = _envelope(values, prices, found, edges)
    return found[:count], edges[: count - 1] if count else edges[:0]


@compiled("int64(float64[::1], float64[::1], int64[::1], float64[::1])", allocates=False)
def _envelope(values: NDArray, prices: NDArray, found: NDArray, edges: NDArray) -> int:
    """Fill `found`, and `edges` with the end of each interval but the last; gives how many."""
    count = 0
    for new in range(values.size):
        edge = -np.inf
        while count > 0:
            last = found[count - 1]
            if values[new] == values[last]:
                if prices[new] >= prices[last]:
                    break
                count -= 1
                continue
            rise = values[new] ** 2 + prices[new] - values[last] ** 2 - prices[last]
            edge = rise / (2.0 * (values[new] - values[last]))
            if count == 1 or edge > edges[count - 2]:
                break
            count -= 1
        if count > 0 and values[new] == values[found[count - 1]]:
            continue
        if count > 0:
            edges[count - 1] = edge
        found[count] = new
        count += 1
    return count
