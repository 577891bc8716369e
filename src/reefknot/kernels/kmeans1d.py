"""k-means and k-medians in one dimension.

Takes     numbers, how many clusters, and optionally weights or centers to start from.
Gives     ascending centers and the cluster of each number; no cluster is empty.
Paper     section 3.3: clusters of sorted numbers are intervals, so an iteration is a binary
          search for each boundary, and the optimum is a shortest path (dynamic programming).
Unaware   of networks and of torch.

Few numbers are sorted. Many are counted in narrow bins first (`histogram.py`), which takes one pass
instead of a sort and adds less than a thousandth to the distortion, as tests check.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reefknot.errors import ReefknotError
from reefknot.kernels import assignment_dtype
from reefknot.kernels.histogram import (
    Bins,
    Countable,
    Histogram,
    InMemory,
    has_bins,
    has_powers,
    threads_for,
    work_on,
)
from reefknot.kernels.jit import compiled, inlined, inlined_with_arrays
from reefknot.kernels.reducer import SINGLE, Reducer

Distance = Literal["l2", "l1"]

# A cold start is solved exactly on about this many merged points, then refined on all of them.
COARSE_POINTS = 2048, 4096  # at least, at most
COARSE_PER_CLUSTER = 12
COUNTED_FROM = 1 << 15  # from this many numbers on, they are counted in bins
BINS_PER_CLUSTER = 16  # occupied bins must be at least this many times the clusters


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
    cluster that runs empty is moved to the value with the largest cost.

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
    if not exact and masses is None:
        return kmeans1d_of_parts(
            numbers,
            num_clusters,
            SINGLE,
            centers=centers,
            distance=distance,
            max_iterations=max_iterations,
        )
    _check_finite(numbers)
    line = _Line.of(numbers.ravel(), masses, distance)
    if exact and len(line) > num_clusters:
        return _assigned(line, line.optimum(num_clusters), numbers)
    return _assigned(line, line.one_each_or_solved(num_clusters, centers, max_iterations), numbers)


def kmeans1d_of_parts(
    numbers: NDArray,
    num_clusters: int,
    reducer: Reducer,
    *,
    centers: ArrayLike | None = None,
    distance: Distance = "l2",
    max_iterations: int = 100,
) -> Clustering:
    """`kmeans1d` on numbers spread over several places; gives the clusters of those in this one.

    Many numbers are counted in bins; of few, the distinct values are sent to all places.
    """
    if distance == "l2" and reducer.total(np.array([numbers.size]))[0] >= COUNTED_FROM:
        assignment = np.empty(numbers.shape, assignment_dtype(num_clusters))
        flat = np.ascontiguousarray(numbers)
        here = InMemory(work_on(flat, assignment), flat.dtype, threads_for(flat.size))
        found = refit(here, num_clusters, centers, reducer=reducer, max_iterations=max_iterations)
        if found is not None:
            return Clustering(found.centers, assignment)
    _check_finite(numbers)
    points, counts = reducer.merged(*_distinct(numbers))
    line = _Line(points, counts.astype(np.float64), distance)
    return _assigned(line, line.one_each_or_solved(num_clusters, centers, max_iterations), numbers)


def _assigned(line: "_Line", starts: NDArray[np.int64], numbers: NDArray) -> Clustering:
    """The clusters that begin at these points of the line, for each number."""
    assignment = np.searchsorted(line.points[starts[1:]], numbers.ravel(), side="right")
    dtype = assignment_dtype(len(starts))
    return Clustering(line.final_centers(starts), assignment.astype(dtype).reshape(numbers.shape))


class Refit(NamedTuple):
    """Ascending centers, and how many assignments changed."""

    centers: NDArray[np.float64]
    changed: int


def refit(
    numbers: Countable,
    num_clusters: int,
    centers: ArrayLike | None,
    *,
    reducer: Reducer = SINGLE,
    max_iterations: int = 100,
) -> Refit | None:
    """k-means in place: the numbers are counted in bins, not copied.

    Writes their assignments. Gives None, and writes nothing, if the numbers have no bins (all are
    zero, or the largest is not finite or near the limits of its type), or if too few bins are
    occupied for this many clusters.
    """
    if not has_bins(numbers.dtype):
        return None
    largest = reducer.largest(numbers.largest())
    if not has_powers(numbers.dtype, largest):
        return None
    bins = Bins(numbers.dtype, largest, 10 if num_clusters <= 64 else 12)
    histogram = Histogram(bins, reducer.total(numbers.cells(bins)))
    if len(histogram.counts) < BINS_PER_CLUSTER * num_clusters:
        return None
    line = _Line(histogram.means, histogram.counts.astype(np.float64), "l2")
    starts = line.solve(num_clusters, centers, max_iterations)
    clusters = np.searchsorted(starts, np.arange(len(line)), side="right") - 1
    changed = numbers.spread(bins, histogram.table(clusters, num_clusters))
    return Refit(line.final_centers(starts), int(reducer.total(np.array([changed]))[0]))


class Counted(NamedTuple):
    """Ascending points, and how many numbers are at each of them."""

    points: NDArray[np.float64]
    counts: NDArray[np.int64]


def counted(numbers: NDArray, reducer: Reducer = SINGLE) -> Counted:
    """Numbers spread over several places: each distinct one or, of many numbers, their bins."""
    if reducer.total(np.array([numbers.size]))[0] >= COUNTED_FROM and has_bins(numbers.dtype):
        flat = np.ascontiguousarray(numbers)
        here = InMemory(work_on(flat), flat.dtype, threads_for(flat.size))
        largest = reducer.largest(here.largest())
        if has_powers(flat.dtype, largest):
            bins = Bins(flat.dtype, largest, 10)
            histogram = Histogram(bins, reducer.total(here.cells(bins)))
            return Counted(histogram.means, histogram.counts)
    return Counted(*reducer.merged(*_distinct(numbers)))


def nearest(values: ArrayLike, centers: NDArray[np.float64]) -> NDArray[np.integer]:
    """The index of the nearest of the ascending `centers`; of two at equal distance, the lower."""
    middles = centers[1:] / 2 + centers[:-1] / 2
    return np.searchsorted(middles, values, side="left").astype(assignment_dtype(len(centers)))


def _check(numbers: NDArray, masses: NDArray | None, num_clusters: int, distance: Distance) -> None:
    if num_clusters < 1:
        raise ReefknotError(f"num_clusters must be at least 1, found {num_clusters}")
    if distance not in ("l2", "l1"):
        raise ReefknotError(f"distance must be 'l2' or 'l1', found {distance!r}")
    if numbers.size == 0:
        raise ReefknotError("there are no values to cluster")
    if masses is not None:
        if masses.shape != numbers.shape:
            raise ReefknotError(f"{masses.size} weights were given for {numbers.size} values")
        if not np.all(np.isfinite(masses)) or np.any(masses < 0) or not np.any(masses > 0):
            raise ReefknotError("weights must be finite, none negative and not all zero")


def _check_finite(numbers: NDArray) -> None:
    bad = numbers.size - np.count_nonzero(np.isfinite(numbers))
    if bad:
        raise ReefknotError(
            f"values must be finite to be clustered; {bad:,} of {numbers.size:,} are not"
        )


def _distinct(numbers: NDArray) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Distinct numbers in ascending order, and how often each occurs."""
    ordered = np.sort(numbers.ravel()).astype(np.float64)
    firsts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)])
    return ordered[firsts], np.diff(np.append(firsts, len(ordered)))


class _Line:
    """Distinct sorted points with masses, and their prefix sums; clusters are intervals of them.

    A clustering is `starts`: the index of the first point of each cluster, beginning with 0.
    """

    def __init__(self, points: NDArray, masses: NDArray, distance: Distance) -> None:
        self.points = points
        self.distance = distance
        # Scaling by powers of two: no square overflows or underflows, and counts stay exact (the
        # median needs that). The origin is the median, around which prefix sums lose least.
        self.power = int(np.frexp(np.abs(points).max())[1])
        unit = np.ldexp(points, -self.power)
        self.masses = masses = np.ldexp(masses, -int(np.frexp(masses.max())[1]))
        self.origin = float(unit[np.searchsorted(np.cumsum(masses), masses.sum() / 2)])
        self.shifted = shifted = unit - self.origin
        self.mass = np.concatenate([[0.0], np.cumsum(masses)])
        self.moment = np.concatenate([[0.0], np.cumsum(masses * shifted)])
        self.square = np.concatenate([[0.0], np.cumsum(masses * shifted * shifted)])

    @classmethod
    def of(cls, numbers: NDArray, masses: NDArray | None, distance: Distance) -> "_Line":
        if masses is None:
            points, counts = _distinct(numbers)
            return cls(points, counts.astype(np.float64), distance)
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
        return self._among(means, starts, ends - 1)

    def final_centers(self, starts: NDArray) -> NDArray[np.float64]:
        """`centers`, but each interval summed on its own, so that outliers cost no precision."""
        if self.distance == "l1":
            return self.centers(starts)
        mass = np.add.reduceat(self.masses, starts)
        means = self.origin + np.add.reduceat(self.masses * self.shifted, starts) / mass
        return self._among(means, starts, np.append(starts[1:], len(self)) - 1)

    def _among(self, means: NDArray, first: NDArray, last: NDArray) -> NDArray[np.float64]:
        """Scale means back to the points, and clip them to their intervals (rounding errors)."""
        with np.errstate(over="ignore"):
            means = np.ldexp(means, self.power)
        return np.clip(means, self.points[first], self.points[last])

    def one_each_or_solved(
        self, num_clusters: int, centers: ArrayLike | None, max_iterations: int
    ) -> NDArray[np.int64]:
        """A cluster for each point if there are no more of them, otherwise `solve`."""
        if len(self) <= num_clusters:
            return np.arange(len(self), dtype=np.int64)
        return self.solve(num_clusters, centers, max_iterations)

    def solve(
        self, num_clusters: int, centers: ArrayLike | None, max_iterations: int
    ) -> NDArray[np.int64]:
        """Lloyd's iteration from the given centers, or from the optimum of a coarse copy."""
        if centers is None:
            first = self.coarse(num_clusters).centers_of_optimum(num_clusters)
        else:
            first = np.sort(np.asarray(centers, np.float64).ravel())
            if not np.all(np.isfinite(first)) or not 1 <= len(first) <= num_clusters:
                raise ReefknotError(
                    f"from 1 to {num_clusters} finite centers to start from were expected, "
                    f"found {first.tolist()[:5]}"
                )
        return self.lloyd(first, num_clusters, max_iterations)

    def lloyd(self, first: NDArray, num_clusters: int, max_iterations: int) -> NDArray[np.int64]:
        """Lloyd's iteration from the centers `first`, until no boundary moves."""
        # Missing centers are treated like clusters that have run empty.
        starts, before = self._starts(first), None
        for iteration in range(max_iterations):
            settled = before is not None and np.array_equal(starts, before)
            if settled and len(starts) >= num_clusters:
                break
            # Empty clusters are refilled before the others have converged, which may take long.
            if len(starts) < num_clusters and (settled or iteration % 8 == 0):
                first = self._refill(starts, num_clusters)
                if len(first) == len(starts):
                    break
                starts = self._starts(first)
            before = starts
            starts = self._starts(self.centers(starts))
        return starts

    def _starts(self, centers: NDArray) -> NDArray[np.int64]:
        """The intervals of points nearest to each center, without the empty ones."""
        middles = centers[1:] / 2 + centers[:-1] / 2
        inner = np.searchsorted(self.points, middles, side="right")
        starts = np.unique(np.concatenate([[0], inner]))
        return starts[starts < len(self)].astype(np.int64)

    def _refill(self, starts: NDArray, num_clusters: int) -> NDArray[np.float64]:
        """The centers, and for each missing cluster the point with the largest cost."""
        centers = self.centers(starts)
        own = np.repeat(centers, np.diff(np.append(starts, len(self))))
        # Scaled like the sums, so that no square overflows.
        away = np.abs(np.ldexp(self.points, -self.power) - np.ldexp(own, -self.power))
        cost = self.masses * (away if self.distance == "l1" else away * away)
        missing = num_clusters - len(starts)
        worst = np.argsort(-cost, kind="stable")[:missing]
        return np.sort(np.concatenate([centers, self.points[worst[cost[worst] > 0]]]))

    def optimum(self, num_clusters: int) -> NDArray[np.int64]:
        """The optimal intervals, by dynamic programming."""
        k = min(num_clusters, len(self))
        if self.distance == "l1":
            return _best_starts_l1(self.shifted, self.mass, self.moment, k)
        return _best_starts_l2(self.mass, self.moment, self.square, k)

    def centers_of_optimum(self, num_clusters: int) -> NDArray[np.float64]:
        return self.centers(self.optimum(num_clusters))

    def coarse(self, num_clusters: int) -> "_Line":
        """A line of some thousand points: neighbours merged into their means."""
        least, most = COARSE_POINTS
        wanted = min(max(COARSE_PER_CLUSTER * num_clusters, least), most)
        if len(self) <= wanted:
            return self
        # The values of an optimal quantizer are as dense as the cube root of the points' density.
        # So merge into intervals that are equal in that measure, which serves bulk and outliers.
        spacing = np.diff(self.shifted, append=self.shifted[-1])
        measure = np.concatenate([[0.0], np.cumsum(np.cbrt(self.masses * spacing * spacing))])
        cuts = np.linspace(0, measure[-1], wanted, endpoint=False)
        by_measure = np.searchsorted(measure, cuts)
        starts = np.unique(np.concatenate([[0], by_measure]))
        starts = starts[starts < len(self)]
        merged = np.unique(self.centers(starts), return_index=True)
        masses = np.add.reduceat(self.masses, starts)
        return _Line(merged[0], masses[merged[1]], self.distance)


@inlined
def _push(stack: NDArray, depth: int, low: int, high: int, first: int, last: int) -> int:
    """Push a range of j that is still to be solved, unless it is empty; gives the new depth."""
    if low > high:
        return depth
    stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3] = low, high, first, last
    return depth + 1


@inlined_with_arrays
def _walk_back(came_from: NDArray) -> NDArray:
    """The starts of the clusters, from the last to the first."""
    starts = np.zeros(came_from.shape[0], np.int64)
    j = came_from.shape[1] - 1
    for row in range(came_from.shape[0] - 1, 0, -1):
        starts[row] = came_from[row, j]
        j = starts[row] - 1
    return starts


@inlined
def _distance_from_median(
    points: NDArray, mass: NDArray, moment: NDArray, start: int, stop: int
) -> float:
    """The distance of points [start, stop) from their median, by bisection for it."""
    half = (mass[start] + mass[stop]) / 2
    low, high = start, stop - 1
    while low < high:
        middle = (low + high) // 2
        if mass[middle + 1] >= half:
            high = middle
        else:
            low = middle + 1
    below = points[low] * (mass[low] - mass[start]) - (moment[low] - moment[start])
    above = (moment[stop] - moment[low]) - points[low] * (mass[stop] - mass[low])
    return below + above


# Shortest paths over intervals. `best[j]` is the least cost of points [0, j] in the clusters so
# far; the start of the last cluster never moves left as j grows, so each row is filled by divide
# and conquer: the middle j bounds the search on both sides of it. `stack` holds what is to do.


@compiled("int64[::1](float64[::1], float64[::1], float64[::1], int64)")
def _best_starts_l2(mass: NDArray, moment: NDArray, square: NDArray, k: int) -> NDArray:
    """The intervals with the least squared distance from their means."""
    n = mass.size - 1
    best, new = np.empty(n), np.empty(n)
    for j in range(n):
        best[j] = square[j + 1] - moment[j + 1] * moment[j + 1] / mass[j + 1]
    came_from = np.zeros((k, n), np.int32)
    stack = np.empty((128, 4), np.int64)
    for row in range(1, k):
        stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = row, n - 1, row, n - 1
        depth = 1
        while depth:
            depth -= 1
            low, high = stack[depth, 0], stack[depth, 1]
            first, last = stack[depth, 2], stack[depth, 3]
            j = (low + high) // 2
            least, at = np.inf, first
            for i in range(first, min(j, last) + 1):
                first_moment = moment[j + 1] - moment[i]
                gain = first_moment * first_moment / (mass[j + 1] - mass[i])
                cost = best[i - 1] - square[i] - gain
                if cost < least:
                    least, at = cost, i
            new[j] = least + square[j + 1]
            came_from[row, j] = at
            depth = _push(stack, depth, low, j - 1, first, at)
            depth = _push(stack, depth, j + 1, high, at, last)
        best, new = new, best
    return _walk_back(came_from)


@compiled("int64[::1](float64[::1], float64[::1], float64[::1], int64)")
def _best_starts_l1(points: NDArray, mass: NDArray, moment: NDArray, k: int) -> NDArray:
    """The intervals with the least distance from their medians."""
    n = points.size
    best, new = np.empty(n), np.empty(n)
    for j in range(n):
        best[j] = _distance_from_median(points, mass, moment, 0, j + 1)
    came_from = np.zeros((k, n), np.int32)
    stack = np.empty((128, 4), np.int64)
    for row in range(1, k):
        stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = row, n - 1, row, n - 1
        depth = 1
        while depth:
            depth -= 1
            low, high = stack[depth, 0], stack[depth, 1]
            first, last = stack[depth, 2], stack[depth, 3]
            j = (low + high) // 2
            least, at = np.inf, first
            for i in range(first, min(j, last) + 1):
                cost = best[i - 1] + _distance_from_median(points, mass, moment, i, j + 1)
                if cost < least:
                    least, at = cost, i
            new[j] = least
            came_from[row, j] = at
            depth = _push(stack, depth, low, j - 1, first, at)
            depth = _push(stack, depth, j + 1, high, at, last)
        best, new = new, best
    return _walk_back(came_from)
