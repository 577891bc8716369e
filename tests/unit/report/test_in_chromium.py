"""The page in a real browser: silent, whole at every width, and without a pointer."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from chromium import EXECUTABLE, Browser, Page, chromium

from reefknot.dtypes import DTYPES
from reefknot.format import open_state
from reefknot.lab.report import Compared, compared, render, write_comparison, write_report
from reefknot.state import Codebook, TiedState, TiedTensor

pytestmark = pytest.mark.skipif(
    EXECUTABLE is None, reason="there is no chromium here, so that no page is opened in it"
)
RECORDS = Path(__file__).parents[3] / "experiments" / "records"
RUNS = ("lenet-300-100_sparse_apt", "lenet-5-caffe_sparse_apt", "lenet-300-100_dense")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports of real runs, and one of a network with long names and many values."""
    made = {}
    for name in RUNS:
        folder = tmp_path_factory.mktemp("report") / "run"
        shutil.copytree(next(RECORDS.glob(f"*_{name}_seed0")), folder)
        made[name] = write_report(folder, open_state(folder / "model.reef"))
    several = [Compared(f"runs/{'n' * 60}", "finished", 900 + n, 3.0 - n) for n in range(3)]
    several += [compared(place, place.name) for place in sorted(RECORDS.glob("*-300-100_s*"))]
    made["compared"] = tmp_path_factory.mktemp("report") / "comparison.html"
    write_comparison(made["compared"], "Several runs", "of all kinds", several)
    made["tall"] = tmp_path_factory.mktemp("report") / "tall.html"
    made["tall"].write_text(render({"network": "n" * 80}, [], _tall(), "x = 1"), encoding="utf-8")
    return made


def _tall() -> TiedState:
    codebook = Codebook(DTYPES["F32"], np.linspace(-1, 1, 101, dtype="<f4"))
    indices = np.random.default_rng(0).integers(0, 101, (3_000, 16))
    indices[indices > 50] = 50  # which is zero
    name = "encoder.layers.11.attention.self.query_projection.parametrizations.weight.original"
    bias = TiedTensor("bias", 0, np.arange(101))
    return TiedState((codebook,), (TiedTensor(name, 0, indices), bias))


@pytest.mark.parametrize("name", [*RUNS, "tall", "compared"])
def test_page_is_silent_and_nothing_is_cut_off(
    browser: Browser, reports: dict[str, Path], name: str
) -> None:
    with browser.page(reports[name]) as page:
        for width in (320, 390, 720, 900, 1400):
            for dark in (False, True):
                page.show(width=width, dark=dark)
                assert page.run(CUT_OFF % width) == []
                assert page.run("document.documentElement.scrollWidth") <= width
                assert page.run(BOXES_WITHOUT_A_HINT) == [], width
                assert (page.run(BRIGHTNESS_OF_PAPER) < 128) == dark
        assert page.said() == []
        assert page.asked_for() == [reports[name].as_uri()]


BRIGHTNESS_OF_PAPER = "+getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0]"

# Words and pictures that reach beyond the window, and are not inside a box that scrolls.
CUT_OFF = """[...document.querySelectorAll('main *, footer')]
    .filter(e => !e.closest('.scroll') && e.getClientRects().length)
    .filter(e => e.getBoundingClientRect().right > %d || e.getBoundingClientRect().left < 0)
    .map(e => e.outerHTML.slice(0, 120))"""

# Boxes that scroll sideways and cannot be focused or do not say so; and hints that are not true.
BOXES_WITHOUT_A_HINT = """[...document.querySelectorAll('.scroll')]
    .filter(box => box.getClientRects().length)
    .filter(box => {
        const hint = box.previousElementSibling;
        const hinted = !!hint && hint.className === 'hint' && hint.getClientRects().length > 0;
        return (box.scrollWidth > box.clientWidth) !== hinted || box.tabIndex !== 0;
    })
    .map(box => box.getAttribute('aria-label'))"""


def test_a_page_that_is_none_of_this_is_noticed(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<main><p style='width: 500px'>wide</p><div class='scroll' aria-label='rows' "
        "style='overflow: auto; width: 99px'><pre>" + "row " * 99 + "</pre></div></main>"
        "<img src='missing.png'><script>console.log('hello'); none()</script>"
    )
    with browser.page(page) as bad:
        bad.show(width=390)
        assert len(bad.run(CUT_OFF % 390)) == 1
        assert bad.run(BOXES_WITHOUT_A_HINT) == ["rows"]
        said = "".join(bad.said())
        assert "hello" in said
        assert "none is not defined" in said
        assert len(bad.asked_for()) == 2


def _tab_to(page: Page, selector: str) -> None:
    """Press Tab until something is focused; a page has only so many places to stop at."""
    for _ in range(100):
        page.press("Tab")
        if page.run(f"document.activeElement.matches({selector!r})"):
            return
    raise AssertionError(f"Tab never reaches {selector}")


def test_tables_scroll_by_keyboard(browser: Browser, reports: dict[str, Path]) -> None:
    with browser.page(reports["lenet-5-caffe_sparse_apt"]) as page:
        page.show(width=390)
        _tab_to(page, ".scroll[aria-label=Tensors]")
        assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.run("document.activeElement.style.scrollBehavior = 'auto'")
        for _ in range(5):
            page.press("ArrowRight")
        page.wait_until("document.activeElement.scrollLeft > 50")


@pytest.mark.parametrize("name", ["lenet-5-caffe_sparse_apt", "tall"])
def test_what_a_pointer_is_told_can_be_read_by_keyboard(
    browser: Browser, reports: dict[str, Path], name: str
) -> None:
    with browser.page(reports[name]) as page:
        page.show(width=390)
        for _ in range(page.run("document.querySelectorAll('.numbers').length")):
            _tab_to(page, ".numbers:not([open]) > summary")
            page.press("Enter")
            assert page.run("document.activeElement.parentElement.open")
            _tab_to(page, ".numbers[open] .scroll")
        assert page.run("document.querySelectorAll('svg title').length") > 20
        assert page.run(UNTOLD) == []
        assert page.run(BOXES_WITHOUT_A_HINT) == []


# What a drawing tells under a pointer, and no row of the numbers below it does.
UNTOLD = """[...document.querySelectorAll('figure')].flatMap(figure => {
    const rows = [...figure.querySelectorAll('.numbers tbody tr')]
        .map(row => [...row.cells].map(cell => cell.textContent));
    return [...figure.querySelectorAll('svg title')].map(title => title.textContent)
        .filter(told => !rows.some(row => told === `step ${row[0]}: ${row[1]}`
            || told === `${row[0]}: ${row[1]} weights` || told === `ends at ${row[1]}`));
})"""
