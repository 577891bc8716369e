"""PNG: the few bytes that make a small palette image, written by hand.

Takes     a matrix of palette indices and the palette, colors with opacity.
Gives     the bytes of a PNG file, or a `<picture>` that carries them, in light and in dark.
Unaware   of what the pixels mean.
"""

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reefknot.lab.report.markup import tag

Color = tuple[int, int, int, int]  # red, green, blue, opacity, each 0 to 255


class Palettes(NamedTuple):
    """The colors of the same indices on light paper and on a dark screen."""

    light: Sequence[Color]
    dark: Sequence[Color]


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


def picture(pixels: np.ndarray, palettes: Palettes, *, zoom: int, label: str) -> str:
    """A `<picture>` that holds its own PNG files, each pixel drawn `zoom` CSS pixels wide."""
    height, width = pixels.shape
    light, dark = (
        f"data:image/png;base64,{base64.b64encode(encode_png(pixels, palette)).decode('ascii')}"
        for palette in palettes
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
