"""Makes the two pictures of docs/ship.md again: LeNet-5 as a QR code, and its page.

    python docs/make_ship_figures.py       needs segno, and chromium for the page

Both are of the smallest LeNet-5 among the records of seed 0, so that they change with it.
"""

import sys
import tempfile
from pathlib import Path

import segno

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
CODE, PAGE = FIGURES / "lenet-5-qr.svg", FIGURES / "page.png"


def smallest() -> Path:
    """The file of the smallest LeNet-5."""
    files = (ROOT / "experiments" / "records").glob("*_lenet-5-caffe_sparse_apt*_seed0/model.reef")
    return min(files, key=lambda path: path.stat().st_size)


def code_of(data: bytes) -> segno.QRCode:
    """The QR code of these bytes, as they are: no text, no address."""
    return segno.make_qr(data, mode="byte", error="l", boost_error=False)


def write_code(data: bytes) -> None:
    """The drawing: black on white, which readers need also on dark pages."""
    code_of(data).save(CODE, scale=3, border=4, light="white", svgclass=None, lineclass=None)


def write_page(source: Path) -> None:
    """A screenshot of the page, with one of its own digits."""
    sys.path.insert(0, str(ROOT / "tests"))
    import torch
    from chromium import chromium

    from reefknot import export
    from reefknot.lab.zoo import INPUTS, NETWORKS

    known = INPUTS["lenet-5-caffe"]
    pixels = export.Pixels(known.mean or 0, known.deviation or 1, known.full)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        made = Path(folder) / "page.html"
        model, example = NETWORKS["lenet-5-caffe"](), torch.zeros(1, *known.shape)
        export.html(source, model, made, example, pixels=pixels)
        with browser.page(made) as page:
            page.show(width=960)
            page.wait_until("document.querySelectorAll('li').length > 0")
            page.run("document.documentElement.style.scrollbarWidth = 'none'")
            page.screenshot(PAGE)


if __name__ == "__main__":
    FIGURES.mkdir(exist_ok=True)
    write_code(smallest().read_bytes())
    write_page(smallest())
    print(f"{CODE.name}: {CODE.stat().st_size:,} bytes, {PAGE.name}: {PAGE.stat().st_size:,} bytes")
