"""Compressed sparse rows: not a format of ours, but what the paper counts.

Takes     a matrix of indices.
Gives     how often each symbol of the rows occurs.
Unaware   of codes and rates.
"""

import numpy as np

CHUNK = 1 << 18  # elements processed at a time, to bound memory


def count_rows(matrix: np.ndarray, zeros: np.ndarray, values: np.ndarray, gaps: np.ndarray) -> None:
    """Add how often each value and each gap occurs, in rows where only non-zeros have an entry.

    An entry is a value and the number of elements skipped before it in its row; where these are
    more than `gaps` can count, entries of zero bridge them.
    """
    indices, columns = matrix.reshape(-1), matrix.shape[1]
    last = -1  # where the last entry is
    for at in range(0, len(indices), CHUNK):
        part = indices[at : at + CHUNK]
        found = np.flatnonzero(~zeros[part])
        places = np.concatenate(([last], at + found))
        begins = places[1:] // columns * columns
        skipped = places[1:] - np.maximum(places[:-1], begins - 1) - 1
        fillers = int((skipped // len(gaps)).sum())
        values += np.bincount(part[found], minlength=len(values))
        values[np.argmax(zeros)] += fillers
        gaps += np.bincount(skipped % len(gaps), minlength=len(gaps))
        gaps[-1] += fillers
        last = int(places[-1])
