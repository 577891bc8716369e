"""The tensors of one stream, one after the other: the same calls write and read them.

Takes     a coder that has passed the header, and codebooks sorted as in a file.
Gives     indices of tied tensors and their scales, bytes of kept ones.
"""

import math

import numpy as np

from reefknot.codec import tied
from reefknot.codec.coder import Coder
from reefknot.codec.kept import PlaneModel, code_planes, from_planes, to_planes
from reefknot.format import layout
from reefknot.scales import SCALE
from reefknot.state import occurrences


class SolidContent:
    """The models of one stream, with what they have learned from its tensors so far."""

    def __init__(self) -> None:
        self._memory = tied.Memory()
        self._planes: dict[str, PlaneModel] = {}
        self.spent_on_scales = 0  # in 64ths of a byte

    def code_tied(
        self,
        coder: Coder,
        shape: tuple[int, ...],
        indices: np.ndarray | None,
        codebook: int,
        book: layout.Book,
    ) -> np.ndarray:
        """Code indices into a sorted codebook; a reader passes None and gets them back."""
        size, zero = len(book.bits), book.zero
        pivot = max(zero, 0)
        if math.prod(shape) and size > 1:
            if indices is not None:
                pivot = _pivot(indices, size, zero)
            if zero >= 0 and coder.flag(pivot == zero, "pivot is zero", base=60000):
                pivot = zero
            else:
                pivot = coder.uniform(pivot, size)
        return tied.code_tensor(
            coder, shape, indices, pivot=pivot, size=size, codebook=codebook, memory=self._memory
        )

    def code_kept(self, coder: Coder, planes: np.ndarray, tag: str) -> np.ndarray:
        """Code the bytes of a kept tensor."""
        return code_planes(coder, planes, self._planes.setdefault(tag, PlaneModel()))

    def code_scales(
        self, coder: Coder, values: np.ndarray | None, num_scales: int = 0
    ) -> np.ndarray:
        """Code the scales of a tied tensor, which are predicted from other scales only."""
        blank = np.zeros((num_scales, layout.SCALE_BYTES), np.uint8)
        planes = blank if values is None else to_planes(values, SCALE)
        before = coder.spent()
        planes = self.code_kept(coder, planes, "scales")
        self.spent_on_scales += coder.spent() - before
        return from_planes(planes, SCALE, (len(planes),))


def _pivot(indices: np.ndarray, size: int, zero: int) -> int:
    """The index that most elements are assumed to have: that of zero, unless zero is rare."""
    counts = occurrences(indices, size)
    most = int(np.argmax(counts))
    return zero if zero >= 0 and 4 * counts[zero] >= counts[most] else most
