"""Scales: elements that are an integer times a scale, rounded once.

Takes     float32 scales, how they are laid out over a tensor, and the integers.
Gives     elements, the same bits everywhere: the product is exact in float64, and rounded once.
Unaware   of where integers come from, of codebooks and of files.
"""

from dataclasses import dataclass

import numpy as np

from reefknot.dtypes import DTYPES, DType, from_numbers
from reefknot.errors import ReefknotError

SCALED = ("F32", "F16", "BF16")  # types that can have scales. Only ever add at the end
INTEGERS = ("I8", "I16")  # types of the integers
NEGATIVE_ZERO = -32_768  # the integer that stands for -0.0
SCALE = DTYPES["F32"]


@dataclass(frozen=True, eq=False)
class Scales:
    """Element i of a tensor, in C order, has the scale `values[i // run % len(values)]`.

    `run` is the length of a row for a scale per row, 1 for a scale per column, and the number of
    elements for one scale in all.
    """

    dtype: DType  # of the elements
    values: np.ndarray  # float32, one-dimensional
    run: int

    def __post_init__(self) -> None:
        if self.dtype.tag not in SCALED:
            raise ReefknotError(
                f"a tensor of {self.dtype.tag} cannot have scales; {', '.join(SCALED)} can"
            )
        if self.values.ndim != 1 or self.values.dtype != SCALE.storage:
            raise ReefknotError(
                f"scales are a one-dimensional array of {SCALE.storage}, "
                f"found {self.values.dtype} of shape {self.values.shape}"
            )
        if self.run < 1:
            raise ReefknotError(f"a scale is for a run of at least one element, not {self.run}")
        if not np.isfinite(self.values).all():
            raise ReefknotError("has a scale that is NaN or infinite; fetch the file again")

    def check(self, name: str, num_elements: int) -> None:
        """Refuse scales that no element uses, and elements without a scale."""
        most = -(-num_elements // self.run)
        if not min(most, 1) <= len(self.values) <= most:
            raise ReefknotError(
                f"{name!r} has {len(self.values):,} scales for {num_elements:,} elements "
                f"in runs of {self.run:,}; expected from 1 to {most:,}"
            )

    def elements(self, integers: np.ndarray, first: int = 0) -> np.ndarray:
        """The elements in their storage type; `first` is the index of the first one."""
        places = np.arange(first, first + integers.size, dtype=np.int64)
        places //= self.run
        places %= max(len(self.values), 1)
        numbers = integers.reshape(-1).astype(np.float64)
        numbers[numbers == NEGATIVE_ZERO] = -0.0
        numbers *= self.values.astype(np.float64)[places]
        return from_numbers(numbers, self.dtype)
