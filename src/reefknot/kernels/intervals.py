"""Which of a few values is cheapest for a number, if each value has a price of its own.

Takes     ascending values and their prices.
Gives     the intervals in which each value has the least distance² + price.
Unaware   of what the values and prices stand for.

(w - c)² + p is w² plus a line in w, so the cheapest value is the lowest line. Their lower envelope
has the values in ascending order, and leaves out those that are too dear everywhere.
"""

import numpy as np
from numpy.typing import NDArray


def cheapest(
    values: NDArray[np.float64], prices: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The values that are cheapest somewhere, by index, and the edges between their intervals.

    >>> cheapest(np.array([-1.0, 0.0, 1.0]), np.array([0.0, 2.0, 0.5]))
    (array([0, 2]), array([0.125]))
    """
    found: list[int] = []
    edges: list[float] = []  # of the intervals of `found`, but for the last one
    lines = list(zip(values.tolist(), prices.tolist(), strict=True))
    for new, (value, price) in enumerate(lines):
        edge = -np.inf
        while found:
            last, its_price = lines[found[-1]]
            if value == last and price >= its_price:
                break
            if value != last:
                rise = value * value + price - last * last - its_price
                edge = rise / (2.0 * (value - last))
                if not edges or edge > edges[-1]:
                    break
            found.pop()
            del edges[-1:]
        if found and value == lines[found[-1]][0]:
            continue
        edges += [edge] if found else []
        found.append(new)
    return np.array(found, np.int64), np.array(edges, np.float64)
