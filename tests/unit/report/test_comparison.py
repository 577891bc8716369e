"""The page about several runs."""

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from reefknot.cli import main
from reefknot.lab.report import Compared
from reefknot.lab.report.comparison import render_comparison

RECORDS = Path(__file__).parents[3] / "experiments" / "records"
RUNS = [
    Compared("small", "finished", 400, 3.0, 3.1, [(0.5, 9.0), (1.0, 3.0)], {"optimizer.lr": 0.5}),
    Compared("large", "finished", 800, 2.0, 2.2, [(0.5, 4.0), (1.0, 2.0)], {"optimizer.lr": 1.0}),
    Compared("beaten", "finished", 900, 2.5, None, [(0.5, 5.0), (1.0, 2.5)]),
    Compared("slow", "pruned", None, None, None, [(0.2, 9.0), (0.4, 8.0)]),
    Compared("<odd>", "failed: too small"),
]


def drawings(page):
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", page)]


def test_those_on_the_front_are_drawn_in_colour_and_stand_on_top():
    page = render_comparison("five runs", "a lead", RUNS)
    points, curves = drawings(page)
    dots = {dot[0].text: dot.get("class") for dot in points.iter("circle")}
    assert {told.split(":")[0]: kind for told, kind in dots.items()} == {
        "small": "dot a",
        "large": "dot a",
        "beaten": "dot zero",
    }
    assert len([p for p in curves.iter("path") if "line" in p.get("class")]) == 4
    names = re.findall(r'<th scope="row">(.*?)</th>', page)
    assert names == ["small", "large", "beaten", "slow", "&lt;odd&gt;"]
    rows = [re.sub("<.*?>", "|", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    assert "on the front||400||3.00\u00a0%||3.10\u00a0%||optimizer.lr = 0.5" in rows[1]
    assert "failed: too small" in rows[-1]


def test_sizes_are_drawn_by_their_ratio():
    same = [Compared(str(size), "finished", size, 1.0) for size in (100, 1_000, 10_000)]
    (points,) = drawings(render_comparison("", "", same))
    left, middle, right = sorted(float(dot.get("cx")) for dot in points.iter("circle") if len(dot))
    assert middle - left == pytest.approx(right - middle, abs=0.2)


@pytest.mark.parametrize("runs", [[], RUNS[3:], RUNS[:1], [Compared("x", file_bytes=0)]])
def test_whatever_is_missing_is_left_out(runs):
    page = render_comparison("some runs", "", runs)
    assert "<h2>Runs</h2>" in page
    assert "<script" not in page
    assert "NaN" not in page.replace("nan", "NaN")


def test_report_compares_several_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ("lenet-300-100_sparse_apt", "lenet-300-100_dense")
    for name in names:
        shutil.copytree(next(RECORDS.glob(f"*_{name}_seed0")), tmp_path / name)
    done = CliRunner().invoke(main, ["report", *names])
    assert done.exit_code == 0, done.output
    assert done.stdout == "wrote comparison.html\n"
    page = (tmp_path / "comparison.html").read_text()
    assert all(name in page for name in names)
    assert len(drawings(page)) == 2
    done = CliRunner().invoke(main, ["report", *names, "missing"])
    assert done.exit_code == 2
    assert "missing/record.json could not be read" in done.stderr
