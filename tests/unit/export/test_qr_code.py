"""LeNet-5 as a QR code: read back byte for byte, from the picture that the documents show."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
from chromium import EXECUTABLE, chromium

ROOT = Path(__file__).parents[3]

needs_zbarimg = pytest.mark.skipif(
    shutil.which("zbarimg") is None, reason="there is no zbarimg here, so that no code is read"
)


def figures():
    pytest.importorskip("segno", reason="there is no segno here, so that no code is made")
    path = ROOT / "docs" / "make_ship_figures.py"
    spec = importlib.util.spec_from_file_location("make_ship_figures", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(picture):
    """What the command of docs/ship.md finds in a picture."""
    text = (ROOT / "docs" / "ship.md").read_text()
    [command] = [line for line in text.splitlines() if line.startswith("zbarimg")]
    picture.rename(picture.with_name("lenet-5-qr.png"))
    subprocess.run(["bash", "-c", command], cwd=picture.parent, check=True)
    return (picture.parent / "lenet-5.reef").read_bytes()


@needs_zbarimg
def test_a_file_reads_back_from_its_code(tmp_path):
    make = figures()
    data = make.smallest().read_bytes()
    make.code_of(data).save(tmp_path / "code.png", scale=3, border=4)
    assert read(tmp_path / "code.png") == data


@needs_zbarimg
@pytest.mark.skipif(EXECUTABLE is None, reason="there is no chromium here to show the picture")
def test_the_picture_of_the_documents_holds_a_recorded_lenet_5(tmp_path):
    make = figures()
    records = (ROOT / "experiments" / "records").glob("*_lenet-5-caffe_*/model.reef")
    with chromium() as browser, browser.page(make.CODE) as page:
        page.show(width=900)
        page.screenshot(tmp_path / "shown.png")
    assert read(tmp_path / "shown.png") in [path.read_bytes() for path in records]
