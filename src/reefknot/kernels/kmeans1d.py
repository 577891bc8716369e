"""k-means and k-medians on a line.

Takes     numbers, how many clusters, and perhaps weights or centers to start from.
Gives     ascending centers and the cluster of each number; no cluster is empty.
Paper     section 3.3: clusters of sorted numbers are intervals, so an iteration is a binary
          search for each boundary, and the optimum is a shortest path (dynamic programming).
Unaware   of networks and of torch.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reefknot.errors import ReefknotError
from reefknot.kernels.jit import compiled

Distance = Literal["l2", "l1"]

# A cold start is solved exactly on about this many merged points, then polished on all of them.
COARSE_POINTS = 2048


class Clustering(NamedTuple):
    """Ascending centers, float64, and the index of its center for each value."""

    centers: NDArray[np.float64]
    assignment: NDArray[np.integer]


def kmeans1d(
    values: ArrayLike,
    num_clusters: int,
    *,
    weights: ArrayLike | None = None,
    exact: bool = False,
    centers: ArrayLike | None = None,
    distance: Distance = "l2",
    max_iterations: int = 100,
) -> Clustering:
    """Group numbers around at most `num_clusters` centers.

    Each center is the mean of its cluster (`distance="l2"`) or its lower median (`"l1"`), and
    there are fewer than `num_clusters` of them only where there are fewer distinct values. A
    cluster that runs empty is moved to the value that its own center serves worst.

    Args:
        values: finite numbers, of any shape.
        num_clusters: how many centers at most.
        weights: how much each value counts; none negative, not all zero.
        exact: the true optimum, by dynamic programming on the distinct values: n·K·log n steps
            and 4·n·K bytes for n distinct values. Otherwise Lloyd's iteration.
        centers: where to start (a warm start); without them, the optimum of a coarse copy.
        distance: `"l2"` for k-means, `"l1"` for k-medians.
        max_iterations: of Lloyd's iteration.

    >>> kmeans1d([0.0, 0.1, 0.9, 1.1], 2)
    Clustering(centers=array([0.05, 1.  ]), assignment=array([0, 0, 1, 1], dtype=uint8))
    """
    numbers = np.asarray(values)
    masses = None if weights is None else np.asarray(weights, np.float64)
    _check(numbers, masses, num_clusters, distance)
    line = _Line.of(numbers.ravel(), masses, distance)
    if len(line) <= num_clusters:
        starts = np.arange(len(line), dtype=np.int64)
    elif exact:
        starts = line.optimum(num_clusters)
    else:
        if centers is None:
            first = line.coarse().centers_of_optimum(num_clusters)
        else:
            first = np.sort(np.asarray(centers, np.float64).ravel())
            if not np.all(np.isfinite(first)):
                raise ReefknotError("the centers to start from must be finite numbers")
        starts = line.lloyd(first, num_clusters, max_iterations)
    assignment = np.searchsorted(line.points[starts[1:]], numbers.ravel(), side="right")
    return Clustering(
        line.centers(starts),
        assignment.astype(assignment_dtype(len(starts))).reshape(numbers.shape),
    )


def nearest(values: ArrayLike, centers: NDArray[np.float64]) -> NDArray[np.integer]:
    """The index of the nearest of the ascending `centers`; half way between two, the lower one."""
    middles = (centers[1:] + centers[:-1]) / 2
    return np.searchsorted(middles, values, side="left").astype(assignment_dtype(len(centers)))


def assignment_dtype(num_clusters: int) -> np.dtype:
    """The type that assignments to this many clusters are held in: one byte up to 256."""
    return np.dtype(np.uint8 if num_clusters <= 256 else np.int32)


def _check(numbers: NDArray, masses: NDArray | None, num_clusters: int, distance: Distance) -> None:
    if num_clusters < 1:
        raise ReefknotError(f"num_clusters must be at least 1, found {num_clusters}")
    if distance not in ("l2", "l1"):
        raise ReefknotError(f"distance must be 'l2' or 'l1', found {distance!r}")
    if numbers.size == 0:
        raise ReefknotError("there are no values to cluster")
    bad = numbers.size - np.count_nonzero(np.isfinite(numbers))
    if bad:
        raise ReefknotError(
            f"values must be finite to be clustered; {bad:,} of {numbers.size:,} are not"
        )
    if masses is not None:
        if masses.shape != numbers.shape:
            raise ReefknotError(f"{masses.size} weights were given for {numbers.size} values")
        if not np.all(np.isfinite(masses)) or np.any(masses < 0) or not np.any(masses > 0):
            raise ReefknotError("weights must be finite, none negative and not all zero")


class _Line:
    """Distinct sorted points with masses, and their running sums, on which clusters are intervals.

    A clustering is `starts`: the index of the first point of each cluster, beginning with 0.
    """

    def __init__(self, points: NDArray, masses: NDArray, distance: Distance) -> None:
        self.points = points
        self.distance = distance
        # Distances do not change under a shift, and running sums lose least around the mean.
        self.origin = float(np.average(points, weights=masses))
        shifted = points - self.origin
        self.masses = masses
        self.mass = np.concatenate([[0.0], np.cumsum(masses)])
        self.moment = np.concatenate([[0.0], np.cumsum(masses * shifted)])
        self.square = np.concatenate([[0.0], np.cumsum(masses * shifted * shifted)])

    @classmethod
    def of(cls, numbers: NDArray, masses: NDArray | None, distance: Distance) -> "_Line":
        if masses is None:
            ordered = np.sort(numbers).astype(np.float64)
            edges = np.concatenate([[True], ordered[1:] != ordered[:-1]])
            firsts = np.flatnonzero(edges)
            counts = np.diff(np.append(firsts, len(ordered))).astype(np.float64)
            return cls(ordered[firsts], counts, distance)
        points, where = np.unique(numbers.astype(np.float64), return_inverse=True)
        summed = np.bincount(where.ravel(), weights=masses.ravel(), minlength=len(points))
        return cls(points[summed > 0], summed[summed > 0], distance)

    def __len__(self) -> int:
        return len(self.points)

    def centers(self, starts: NDArray) -> NDArray[np.float64]:
        """The mean, or lower median, of each interval."""
        ends = np.append(starts[1:], len(self))
        mass = self.mass[ends] - self.mass[starts]
        if self.distance == "l1":
            half = self.mass[starts] + mass / 2
            return self.points[np.searchsorted(self.mass[1:], half, side="left")]
        means = self.origin + (self.moment[ends] - self.moment[starts]) / mass
        # A mean lies among its points; rounding of the running sums must not push it outside.
        return np.clip(means, self.points[starts], self.points[ends - 1])

    def lloyd(self, first: NDArray, num_clusters: int, max_iterations: int) -> NDArray[np.int64]:
        """Lloyd's iteration from the centers `first`, until no boundary moves."""
        # Fewer centers than asked for are like clusters that have run empty.
        starts, before = self._starts(first), None
        for _ in range(max_iterations):
            if before is not None and np.array_equal(starts, before):
                if len(starts) >= num_clusters:
                    break
                first = self._refill(starts, num_clusters)
                if len(first) == len(starts):
                    break
                starts = self._starts(first)
            before = starts
            starts = self._starts(self.centers(starts))
        return starts

    def _starts(self, centers: NDArray) -> NDArray[np.int64]:
        """The intervals of points nearest to each center, without the empty ones."""
        middles = (centers[1:] + centers[:-1]) / 2
        inner = np.searchsorted(self.points, middles, side="right")
        starts = np.unique(np.concatenate([[0], inner]))
        return starts[starts < len(self)].astype(np.int64)

    def _refill(self, starts: NDArray, num_clusters: int) -> NDArray[np.float64]:
        """The centers, and for each missing cluster the point that costs most where it is."""
        centers = self.centers(starts)
        own = np.repeat(centers, np.diff(np.append(starts, len(self))))
        away = np.abs(self.points - own)
        cost = self.masses * (away if self.distance == "l1" else away * away)
        missing = num_clusters - len(starts)
        worst = np.argsort(-cost, kind="stable")[:missing]
        return np.sort(np.concatenate([centers, self.points[worst[cost[worst] > 0]]]))

    def optimum(self, num_clusters: int) -> NDArray[np.int64]:
        """The best intervals there are, by dynamic programming."""
        k = min(num_clusters, len(self))
        shifted = self.points - self.origin
        use_medians = self.distance == "l1"
        return _best_starts(shifted, self.mass, self.moment, self.square, k, use_medians)

    def centers_of_optimum(self, num_clusters: int) -> NDArray[np.float64]:
        return self.centers(self.optimum(num_clusters))

    def coarse(self) -> "_Line":
        """A line of at most about `COARSE_POINTS` points: neighbours merged into their means."""
        if len(self) <= COARSE_POINTS:
            return self
        half = COARSE_POINTS // 2
        # Half of the cuts at equal mass (detail where the points are), half at equal width (so
        # that a few far outliers keep points of their own).
        by_mass = np.searchsorted(self.mass, np.linspace(0, self.mass[-1], half, endpoint=False))
        width = np.linspace(self.points[0], self.points[-1], half, endpoint=False)
        by_width = np.searchsorted(self.points, width)
        starts = np.unique(np.concatenate([[0], by_mass, by_width]))
        starts = starts[starts < len(self)]
        merged = np.unique(self.centers(starts), return_index=True)
        masses = np.add.reduceat(self.masses, starts)
        return _Line(merged[0], masses[merged[1]], self.distance)


@compiled("int64(float64[::1], int64, int64, float64)")
def _median_index(mass: NDArray, start: int, stop: int, half: float) -> int:
    """The first point of [start, stop) at which the running mass reaches `half`."""
    low, high = start, stop - 1
    while low < high:
        middle = (low + high) // 2
        if mass[middle + 1] >= half:
            high = middle
        else:
            low = middle + 1
    return low


@compiled("float64(float64[::1], float64[::1], float64[::1], float64[::1], int64, int64, boolean)")
def _cost(
    points: NDArray,
    mass: NDArray,
    moment: NDArray,
    square: NDArray,
    start: int,
    stop: int,
    use_medians: bool,
) -> float:
    """The distance of points [start, stop) from their mean (squared) or median."""
    total = mass[stop] - mass[start]
    if use_medians:
        at = _median_index(mass, start, stop, mass[start] + total / 2)
        below = points[at] * (mass[at] - mass[start]) - (moment[at] - moment[start])
        above = (moment[stop] - moment[at]) - points[at] * (mass[stop] - mass[at])
        return below + above
    first = moment[stop] - moment[start]
    return max(0.0, square[stop] - square[start] - first * first / total)


@compiled("int64[::1](float64[::1], float64[::1], float64[::1], float64[::1], int64, boolean)")
def _best_starts(
    points: NDArray, mass: NDArray, moment: NDArray, square: NDArray, k: int, use_medians: bool
) -> NDArray:
    """Shortest path over intervals, each row by divide and conquer.

    `best[j]` is the least cost of points [0, j] in the clusters so far; the start of the last
    cluster never moves left as j grows, so the middle j bounds the search on both sides of it.
    """
    n = points.size
    best = np.empty(n)
    for j in range(n):
        best[j] = _cost(points, mass, moment, square, 0, j + 1, use_medians)
    came_from = np.zeros((k, n), np.int32)
    stack = np.empty((2 * 64, 4), np.int64)
    for row in range(1, k):
        new = best.copy()
        stack[0] = (row, n - 1, row, n - 1)
        depth = 1
        while depth:
            depth -= 1
            low, high, first, last = stack[depth]
            if low > high:
                continue
            j = (low + high) // 2
            least, at = np.inf, first
            for i in range(first, min(j, last) + 1):
                cost = best[i - 1] + _cost(points, mass, moment, square, i, j + 1, use_medians)
                if cost < least:
                    least, at = cost, i
            new[j] = least
            came_from[row, j] = at
            stack[depth] = (low, j - 1, first, at)
            stack[depth + 1] = (j + 1, high, at, last)
            depth += 2
        best = new
    starts = np.zeros(k, np.int64)
    j = n - 1
    for row in range(k - 1, 0, -1):
        starts[row] = came_from[row, j]
        j = starts[row] - 1
    return starts
