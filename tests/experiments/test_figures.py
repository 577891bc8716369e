"""Figures: drawn from committed data alone, the same each time, small, for light and dark pages."""

import base64
import io
import json
import re

import numpy as np
import pytest
from experiments.figures import FIGURES, besides, errors, page, pareto, style, while_training
from PIL import Image

DRAWN = [figure for figure in FIGURES if page.read(figure) is not None]
PNG = re.compile(r"data:image/png;base64,([\w+/=]+)")


def without_pictures(text: str) -> str:
    """How a PNG is compressed is the library's affair."""
    return PNG.sub("", text)


def test_there_are_the_ten_figures_of_the_paper() -> None:
    assert [figure.NUMBER for figure in FIGURES] == list(range(1, 11))


def drawn(figure):
    """Those with a page of weights take long."""
    marks = pytest.mark.slow if page.name_of(figure) == "first_layer" else ()
    return pytest.param(figure, id=page.name_of(figure), marks=marks)


@pytest.mark.parametrize("figure", [drawn(figure) for figure in (*DRAWN, while_training)])
def test_a_committed_figure_is_what_its_data_gives(figure) -> None:
    for theme in (style.LIGHT, style.DARK):
        with style.styled(theme):
            text = style.svg(figure.draw(page.read(figure), theme))
        path = page.PICTURES / f"{page.name_of(figure)}-{theme.name}.svg"
        assert without_pictures(text) == without_pictures(path.read_text())
        assert path.stat().st_size < 180_000  # figure 10 holds 235,200 weights that are not sparse
        assert "<dc:date>" not in text


def test_the_page_is_what_the_data_give() -> None:
    text = page.DOCUMENT.read_text()
    assert page.written(text) == text
    for figure in FIGURES:
        assert text.count(f"<!-- figure {figure.NUMBER} -->") == 1
    for mark in (*besides.SENTENCES, "open"):
        assert text.count(f"<!-- {mark} -->") == 1


def test_the_page_shows_files_that_are_there_and_all_of_them() -> None:
    shown = re.findall(r'(?:src|srcset)="([^"]+)"', page.DOCUMENT.read_text())
    names = [page.name_of(figure) for figure in DRAWN]
    files = {f"figures/{name}-{theme}.svg" for name in names for theme in ("light", "dark")}
    assert set(shown) == files
    assert all((page.DOCUMENT.parent / file).exists() for file in files)


def test_a_figure_without_data_is_told_to_be_open(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("experiments.studies.driver.RECORDS", tmp_path)
    told = page.open_ones()
    for study in ("behaviour", "generalisation", "num_clusters", "refits", "variants"):
        assert f"`python -m experiments.studies {study}`" in told
    assert "Figure 4 is open" in page.block(pareto)


def test_data_files_are_small() -> None:
    for path in page.record_of(next(iter(page.STUDIES.values()))).parent.glob("*.json"):
        assert path.stat().st_size < 300_000, path.name
        json.loads(path.read_text())


# -- what is computed from data ---------------------------------------------------------------


def run(density: float, error: float) -> dict[str, float]:
    return {"density": density, "val_error": error}


def test_a_front_has_the_runs_that_nothing_beats() -> None:
    rows = [run(0.1, 2.0), run(0.2, 1.5), run(0.3, 1.8), run(0.05, 4.0), run(0.2, 1.7)]
    best = pareto.front(rows)
    assert best == [run(0.05, 4.0), run(0.1, 2.0), run(0.2, 1.5)]
    assert pareto.error_at(rows, 0.15) == pytest.approx(1.75)
    assert pareto.error_at(rows, 0.25) is None


def test_errors_over_k_are_of_the_seeds_and_those_over_t_of_runs_that_ended() -> None:
    seed = {"num_clusters": 4, "test": True, "hard": 2.0, "test_soft": 1.5, "test_hard": 2.5}
    search = {"num_clusters": 4, "test": False, "hard": 1.0}
    assert errors.by_k([search, seed, seed | {"test_hard": 3.5}]) == {
        4: {"test_soft": [1.5, 1.5], "test_hard": [2.5, 3.5]}
    }
    rows = [
        {"num_clusters": 2, "refit_every": 1_000, "hard": 7.0},
        {"num_clusters": 2, "refit_every": 1, "hard": 8.0},
        {"num_clusters": 2, "refit_every": 1, "hard": None},
    ]
    rows.append({"num_clusters": 2, "refit_every": 1_000, "hard": 9.0})  # a worse strength
    assert errors.by_t(rows) == {2: {1: 8.0, 1_000: 7.0}}


def test_points_of_a_curve_are_means_over_seeds_at_one_strength_and_threshold() -> None:
    def point(seed: int, density: float, threshold: float | None = None) -> dict:
        row = {"series": "threshold" if threshold else "k9", "l1_strength": 1e-5, "seed": seed}
        return row | run(density, 10 * density) | ({"threshold": threshold} if threshold else {})

    rows = [point(0, 0.1), point(1, 0.3), point(0, 0.5, 1e-3), point(0, 0.7, 1e-2)]
    found = pareto.series_of({"runs": rows})
    assert found["k9"] == [{"l1_strength": 1e-5, "density": 0.2, "val_error": 2.0}]
    assert [row["density"] for row in found["threshold"]] == [0.5, 0.7]


def test_a_half_of_figure_6_is_drawn_alone_while_the_other_is_open() -> None:
    rows = [{"num_clusters": 2, "refit_every": t, "hard": 9.0} for t in (1, 20_000)]
    with style.styled(style.LIGHT):
        text = style.svg(errors.draw({"t": {"runs": rows}}, style.LIGHT))
    assert "K = 2" in text
    assert "the study `num_clusters`" in errors.found({"t": {"runs": rows}})


def test_colours_tell_signs_and_zero_is_transparent() -> None:
    picture = style.signed(np.array([[-1.0, 0.0, 0.5]]), style.LIGHT)
    assert picture[0, :, 3].tolist() == [1.0, 0.0, 0.5]
    assert not np.array_equal(picture[0, 0, :3], picture[0, 2, :3])


def test_tiles_have_an_empty_pixel_between_them() -> None:
    sheet = style.tiles(np.arange(12.0).reshape(3, 2, 2), 2)
    assert np.isnan(sheet[:, 2]).all()
    assert np.isnan(sheet[2]).all()
    assert sheet[:2, 3:].tolist() == [[4, 5], [6, 7]]
    assert sheet.shape == (5, 5)


def test_a_picture_in_an_svg_loses_nothing_but_bytes() -> None:
    values = np.random.default_rng(0).integers(-7, 8, (60, 60)) / 7
    picture = style.signed(values, style.DARK)
    with style.styled(style.DARK):
        figure, axes = style.canvas(1, 1, 2.0)
        style.show(axes, picture)
        text = style.svg(figure)
    (found,) = PNG.findall(text)
    content = base64.b64decode(found)
    shown = np.array(Image.open(io.BytesIO(content)).convert("RGBA"))
    alive = picture[..., 3] > 0
    assert np.abs(shown[alive] - picture[alive] * 255).max() < 1  # matplotlib rounds down
    assert not shown[~alive, 3].any()
    assert len(content) < 60 * 60  # a palette, not four bytes a pixel
