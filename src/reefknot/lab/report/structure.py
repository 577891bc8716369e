"""Structure: what is left of each tensor, and which of its rows and columns are dead.

Takes     a `TiedState`.
Gives     one `Occupancy` per tensor, and small pictures of where the non-zeros are, as PNG.
Paper     appendix: row and column sparsity, and the count of connections that leave each input.
Unaware   of the page that they stand in.
"""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reefknot.dtypes import is_zero
from reefknot.lab.report.markup import tag
from reefknot.state import KeptTensor, TiedState, TiedTensor

Color = tuple[int, int, int, int]  # red, green, blue, opacity, each 0 to 255

LEVELS = 15  # shades between the lightest non-zero and the darkest
DEAD = LEVELS + 1  # the palette entry of a dead row or column
MAX_WIDTH, MAX_HEIGHT = 1000, 500  # of a picture, in pixels; larger tensors are drawn in blocks


def _shades(red: int, green: int, blue: int, *, dead: int) -> list[Color]:
    """Nothing for zero, growing opacity for the levels, and grey for what is dead."""
    opacities = (round(255 * (0.2 + 0.8 * level / LEVELS)) for level in range(1, LEVELS + 1))
    levels: list[Color] = [(red, green, blue, opacity) for opacity in opacities]
    return [(0, 0, 0, 0), *levels, (119, 130, 139, dead)]


LIGHT = _shades(11, 92, 122, dead=52)  # what each index of a picture looks like on light paper
DARK = _shades(120, 200, 232, dead=40)  # and on a dark screen


@dataclass(frozen=True, eq=False)
class Occupancy:
    """One tensor of a state: what it is, and how much of it is not zero.

    A row is an output (a unit or a filter), a column an input (a unit or a channel), as in torch.
    Tensors with fewer than two dimensions, and buffers, have neither: `rows` is empty then.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    is_tied: bool
    elements: int
    nonzeros: int
    dead_rows: np.ndarray  # booleans, one for each row
    dead_columns: np.ndarray

    @property
    def is_matrix(self) -> bool:
        """Whether it has rows and columns that can die."""
        return bool(self.dead_rows.size and self.dead_columns.size)

    @property
    def num_dead(self) -> tuple[int, int]:
        """How many rows and how many columns are dead."""
        return int(np.count_nonzero(self.dead_rows)), int(np.count_nonzero(self.dead_columns))

    @property
    def density(self) -> float:
        """The fraction of its elements that are not zero."""
        return self.nonzeros / self.elements if self.elements else 0.0


def nonzero_mask(state: TiedState, tensor: TiedTensor | KeptTensor) -> np.ndarray:
    """True where an element is not zero, in the tensor's shape."""
    if isinstance(tensor, KeptTensor):
        return ~is_zero(tensor.data, tensor.dtype)
    if tensor.scales is not None:
        return np.asarray(~is_zero(state.values(tensor), state.dtype(tensor)))
    return np.asarray(~state.codebooks[tensor.codebook].zeros[tensor.indices])


def occupancy(state: TiedState, tensor: TiedTensor | KeptTensor, mask: np.ndarray) -> Occupancy:
    """What is left of one tensor, by its `nonzero_mask`."""
    none = np.zeros(0, bool)
    is_tied = isinstance(tensor, TiedTensor)
    alive = (
        mask.ndim >= 2 and mask.size > 0 and (isinstance(tensor, TiedTensor) or tensor.trainable)
    )
    rows = np.asarray(~mask.any(axis=tuple(range(1, mask.ndim)))) if alive else none
    columns = np.asarray(~mask.any(axis=(0, *range(2, mask.ndim)))) if alive else none
    return Occupancy(
        name=tensor.name,
        shape=tensor.shape,
        kind=state.dtype(tensor).tag,
        is_tied=is_tied,
        elements=mask.size,
        nonzeros=int(np.count_nonzero(mask)),
        dead_rows=rows,
        dead_columns=columns,
    )


def block_size(shape: tuple[int, int]) -> tuple[int, int]:
    """How many rows and columns of a matrix one pixel stands for."""
    return max(1, math.ceil(shape[0] / MAX_HEIGHT)), max(1, math.ceil(shape[1] / MAX_WIDTH))


def mask_pixels(mask: np.ndarray, found: Occupancy) -> np.ndarray:
    """A picture of a tensor's non-zeros, dead rows and columns tinted, as indices into `LIGHT`.

    A convolution is drawn with a filter in each row, its channels side by side. The shade of a
    block grows with the root of its density, or the few weights of a sparse layer would vanish.
    """
    matrix = mask.reshape(mask.shape[0], -1)
    height, width = block_size((matrix.shape[0], matrix.shape[1]))
    share = _block_means(matrix, height, width)
    pixels: np.ndarray = np.ceil(LEVELS * np.sqrt(share)).astype(np.uint8)
    # A block is dead when all of its rows, or all of its columns, are.
    per_channel = matrix.shape[1] // mask.shape[1]
    dead_columns = np.repeat(found.dead_columns, per_channel)
    rows = _block_means(found.dead_rows[:, None], height, 1)[:, 0] == 1
    columns = _block_means(dead_columns[None, :], 1, width)[0] == 1
    pixels[rows, :] = DEAD
    pixels[:, columns] = DEAD
    return pixels


def _block_means(matrix: np.ndarray, height: int, width: int) -> np.ndarray:
    """The mean of each block of a matrix; blocks at the far edges may be smaller."""
    tops = np.arange(0, matrix.shape[0], height)
    lefts = np.arange(0, matrix.shape[1], width)
    sums = np.add.reduceat(np.add.reduceat(matrix, tops, axis=0, dtype=np.int64), lefts, axis=1)
    tall = np.diff(np.append(tops, matrix.shape[0]))
    wide = np.diff(np.append(lefts, matrix.shape[1]))
    return np.asarray(sums / np.outer(tall, wide))


def input_counts(mask: np.ndarray) -> np.ndarray | None:
    """Non-zero connections that leave each input of a first layer, as the square its inputs form.

    None when the inputs do not form a square of at least 4 by 4, or when the matrix is so much
    taller than wide that it is an embedding, whose columns are not pixels.
    """
    if mask.ndim != 2 or mask.shape[0] > 8 * mask.shape[1]:
        return None
    side = math.isqrt(mask.shape[1])
    if side < 4 or side * side != mask.shape[1]:
        return None
    return np.asarray(np.count_nonzero(mask, axis=0)).reshape(side, side)


def count_pixels(counts: np.ndarray) -> np.ndarray:
    """A heat map of counts as indices into `LIGHT`; an input without connections is dead."""
    most = max(int(counts.max()), 1)
    pixels = np.ceil(LEVELS * counts / most).astype(np.uint8)
    pixels[counts == 0] = DEAD
    return pixels


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def encode_png(pixels: np.ndarray, palette: Sequence[Color]) -> bytes:
    """A palette image of `pixels` (rows, columns), each an index into `palette`."""
    height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # 8 bits, palette, no interlace
    rows = np.zeros((height, width + 1), np.uint8)  # each row begins with its filter: 0, none
    rows[:, 1:] = pixels
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", header),
            _chunk(b"PLTE", b"".join(bytes(color[:3]) for color in palette)),
            _chunk(b"tRNS", bytes(color[3] for color in palette)),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            _chunk(b"IEND", b""),
        )
    )


def picture(pixels: np.ndarray, *, zoom: int, label: str) -> str:
    """A `<picture>` that holds its own PNG files, each pixel drawn `zoom` CSS pixels wide."""
    height, width = pixels.shape
    light, dark = (
        f"data:image/png;base64,{base64.b64encode(encode_png(pixels, palette)).decode('ascii')}"
        for palette in (LIGHT, DARK)
    )
    return tag(
        "picture",
        tag("source", media="screen and (prefers-color-scheme: dark)", srcset=dark),
        tag(
            "img",
            src=light,
            alt=label,
            width=width * zoom,
            height=height * zoom,
            class_="pixels crisp" if zoom > 1 else "pixels",
        ),
    )
