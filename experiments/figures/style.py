"""Style: one look for all figures, on a light page and on a dark one.

Takes     a theme.
Gives     a canvas to draw on, pictures of signed weights, and the figure as SVG: the same bytes
          for the same data, without a background, in the reader's own sans-serif font.
Unaware   of what is drawn.
"""

import base64
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

_MEASURED = "DejaVu Sans"  # comes with matplotlib, and is wider than the readers' fonts
_FONTS = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', 'Liberation Sans', sans-serif"
WIDTH = 7.2  # inches


@dataclass(frozen=True)
class Theme:
    """The colours of a page, as the reports have them."""

    name: str
    ink: str
    quiet: str
    grid: str
    a: str
    b: str
    c: str
    d: str


LIGHT = Theme("light", "#1b2228", "#56616b", "#dde2e4", "#0b5c7a", "#b0501a", "#5b7a1f", "#77828b")
DARK = Theme("dark", "#e4e9ec", "#9ca8b1", "#2e373f", "#68b7d7", "#e39a68", "#a9c76a", "#8b969f")


@contextmanager
def styled(theme: Theme) -> Iterator[None]:
    """Apply the theme to everything drawn inside."""
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "reefknot",
        "image.interpolation": "none",
        "image.composite_image": False,
        "font.family": _MEASURED,
        "font.size": 9,
        "text.color": theme.ink,
        "axes.edgecolor": theme.quiet,
        "axes.labelcolor": theme.quiet,
        "axes.titlecolor": theme.ink,
        "axes.titlesize": 9.5,
        "axes.titlelocation": "left",
        "axes.facecolor": "none",
        "axes.linewidth": 0.7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.6,
        "xtick.color": theme.quiet,
        "ytick.color": theme.quiet,
        "xtick.major.width": 0.7,
        "ytick.major.width": 0.7,
        "xtick.minor.width": 0.5,
        "ytick.minor.width": 0.5,
        "lines.linewidth": 1.4,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "figure.facecolor": "none",
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.w_pad": 0.06,
        "figure.constrained_layout.h_pad": 0.05,
    }
    with matplotlib.rc_context(settings):
        yield


def canvas(rows: int, columns: int, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure of the page's width and its axes."""
    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.subplots(rows, columns, **options)


def svg(figure: Figure) -> str:
    """The figure as text; no date, no names of a machine."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = file.getvalue().decode().replace(f"'{_MEASURED}'", _FONTS)
    return re.sub(r"(data:image/png;base64,)([\w+/=\s]+)", _smaller, text)


def _smaller(match: re.Match[str]) -> str:
    """The same picture with a palette, if it has few colours."""
    content = base64.b64decode(match[2])
    pixels = np.array(Image.open(io.BytesIO(content)).convert("RGBA"))
    pixels[pixels[..., 3] == 0] = 0
    colours, places = np.unique(pixels.reshape(-1, 4), axis=0, return_inverse=True)
    if len(colours) <= 256:
        picture = Image.fromarray(places.reshape(pixels.shape[:2]).astype(np.uint8), "P")
        picture.putpalette(colours.tobytes(), "RGBA")
        file = io.BytesIO()
        picture.save(file, "PNG", optimize=True)
        content = min(content, file.getvalue(), key=len)
    return match[1] + base64.b64encode(content).decode()


def signed(values: np.ndarray, theme: Theme) -> np.ndarray:
    """Weights from -1 to 1 as colours: one for each sign, the fainter the nearer to zero."""
    shape = (*values.shape, 4)
    picture = np.zeros(shape)
    picture[values < 0, :3], picture[values > 0, :3] = to_rgb(theme.a), to_rgb(theme.b)
    picture[..., 3] = np.clip(np.abs(values), 0, 1)
    return picture


def tinted(shares: np.ndarray, colour: str) -> np.ndarray:
    """Numbers from 0 to 1 as strengths of one colour."""
    picture = np.zeros((*shares.shape, 4))
    picture[..., :3], picture[..., 3] = to_rgb(colour), np.clip(shares, 0, 1)
    return picture


def tiles(images: np.ndarray, columns: int) -> np.ndarray:
    """Images (n, h, w) side by side, one empty pixel between them; NaN where nothing is."""
    n, h, w = images.shape
    rows = -(-n // columns)
    sheet = np.full((rows * (h + 1) - 1, columns * (w + 1) - 1), np.nan)
    for number, image in enumerate(images):
        top, left = number // columns * (h + 1), number % columns * (w + 1)
        sheet[top : top + h, left : left + w] = image
    return sheet


def show(axes: Any, picture: np.ndarray, **options: Any) -> None:
    """A picture without ticks."""
    axes.imshow(picture, **options)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def outlined(axes: Any, count: int, columns: int, side: int, theme: Theme) -> None:
    """A thin frame around each of so many square tiles."""
    for number in range(count):
        corner = number % columns * (side + 1) - 0.5, number // columns * (side + 1) - 0.5
        axes.add_patch(
            Rectangle(corner, side, side, fill=False, edgecolor=theme.grid, linewidth=0.6)
        )


def framed(axes: Any, theme: Theme) -> None:
    """A thin frame around a picture."""
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(theme.grid)
