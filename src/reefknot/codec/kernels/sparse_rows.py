"""Compressed sparse rows: not a format of ours, but what the paper counts.

Takes     a matrix of indices, some elements at a time.
Gives     how often each symbol of the rows occurs.
Unaware   of codes and rates.
"""

import numpy as np

from reefknot.kernels.jit import compiled

COLUMN, SKIPPED, ENTRIES = 0, 1, 2  # the elements of `state`
_ROWS = "int64({}[::1], int64, uint8[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1])"


@compiled(_ROWS.format("uint8"), _ROWS.format("uint16"), allocates=False)
def count_rows(x, columns, stored, zero, values, gaps, state, lengths):
    """Count the symbols of rows in which only elements with `stored` indices have an entry.

    An entry is a value and the number of elements skipped before it; where these are more than
    `gaps` can count, entries of `zero` bridge them. `lengths` becomes the entries of each row that
    ends here, whose number is the result; `state` is kept between parts of a matrix.
    """
    span = len(gaps)
    column, skipped, entries = state[COLUMN], state[SKIPPED], state[ENTRIES]
    ended = np.int64(0)
    for i in range(len(x)):
        value = np.int64(x[i])
        if stored[value]:
            while skipped >= span:
                values[zero] += 1
                gaps[span - 1] += 1
                entries += 1
                skipped -= span
            values[value] += 1
            gaps[skipped] += 1
            entries += 1
            skipped = np.int64(0)
        else:
            skipped += 1
        column += 1
        if column == columns:
            lengths[ended] = entries
            ended += 1
            column, skipped, entries = np.int64(0), np.int64(0), np.int64(0)
    state[COLUMN], state[SKIPPED], state[ENTRIES] = column, skipped, entries
    return ended
