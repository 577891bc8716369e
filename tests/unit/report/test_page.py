"""The page as a whole: it can be parsed, tells what it should, and survives any input."""

import json
import os
import re
import shutil
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reefknot
from reefknot.dtypes import DTYPES
from reefknot.errors import ReefknotError
from reefknot.format import open_state
from reefknot.inspection import inspect
from reefknot.lab.report import curves, render, values, write_report
from reefknot.lab.report.wording import SPACE, number, plain, rate, share
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor

RECORDS = Path(__file__).parents[3] / "experiments" / "records"
F32 = DTYPES["F32"]
EVIL = "<script>alert('1')</script>&\"\u202e\ud800\x00"

RECORD: dict[str, Any] = {
    "network": "lenet-300-100",
    "data": "mnist",
    "method": "sparse_apt",
    "seed": 3,
    "settings": {"num_clusters": 17, "tying_strength": 1e-5},
    "val_error_soft": 1.71,
    "val_error_hardened": 2.63,
    "val_error": 1.78,
    "test_error": 1.874,
    "dense_val_error": 1.55,
    "dense_test_error": 1.64,
    "density": 0.0213,
    "num_clusters": 17,
    "file_bytes": 8402,
    "original_bytes": 1066440,
    "rate_file": 126.93,
    "rate_paper": 151.2,
    "rate_fixed": 7.8,
    "seconds": 754.0,
    "threads": 2,
    "versions": {"reefknot": "0.1.0"},
    "skipped": {"norm.weight": "has a NaN"},
}


class _Page(HTMLParser):
    """Checks that tags nest, and keeps the text and the attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open
        self.text = re.sub(r"\s+", " ", " ".join(self.words)).replace(" ,", ",")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def _metrics() -> list[dict[str, Any]]:
    lines = []
    for n in range(8):
        hard = n > 4
        lines.append(
            {
                "step": 100 * n,
                "phase": "hard tying" if hard else "soft tying",
                "is_last": hard,
                "loss": 2.0 / (n + 1),
                "kmeans_penalty": 0.0 if hard else 50.0 / (n + 1) ** 2,
                "val_error": None if n == 2 else 5.0 - n / 2,
                "density": 1 / (n + 1),
                "predicted_bytes": 20_000 - 1000 * n,
                "target_bytes": 12_000,
                "target_density": 0.1,
                "lr": 0.001,
                "centers": {"network": [-0.2, 0.0, 0.3 + n / 100]},
                "counts": {"network": [3, 100, 5]},
                "spreads": {"network": [0.02, 0.0, None]},
                "changed": 0.1 / (n + 1),
                "step_seconds": 0.02 / (n + 1),
                "seconds": 1.5 * n,
            }
        )
    return lines


def _state(name: str = "fc1.weight") -> TiedState:
    indices = np.zeros((4, 16), int)
    indices[0, :5] = 1
    indices[1, 3] = 2
    codebook = Codebook(F32, np.array([0.0, -0.25, 0.5], "<f4"))
    bias = TiedTensor("fc1.bias", 0, np.array([0, 1, 1, 2]))
    buffer = KeptTensor("norm.mean", F32, np.ones(4, "<f4"), trainable=False)
    return TiedState((codebook,), (TiedTensor(name, 0, indices), bias, buffer), {"tied": name})


def _page(record: Any = RECORD, metrics: Any = None, state: Any = None, config: str = "") -> _Page:
    state = _state() if state is None else state
    return _Page(render(record, _metrics() if metrics is None else metrics, state, config))


def test_headline_tells_sizes_rate_and_error() -> None:
    page = _page()
    words = page.text.replace(SPACE, " ")
    assert "lenet-300-100 on mnist" in words
    assert "1,066,440 bytes → 8,402 bytes, 127\u00d7, test error 1.87 %" in words


def test_errors_stand_in_the_order_of_the_stages() -> None:
    words = _page().text.replace(SPACE, " ")
    shown = ["1.55 %", "1.64 %", "1.71 %", "2.63 %", "1.78 %", "1.87 %"]
    places = [words.index(error, words.index("Measured on")) for error in shown]
    assert places == sorted(places)


def test_every_drawing_is_valid_xml_with_a_label() -> None:
    drawings = re.findall(r"<svg.*?</svg>", render(RECORD, _metrics(), _state(), ""), re.DOTALL)
    assert len(drawings) == 9  # seven curves, the centers, the weights of each value
    for drawing in drawings:
        root = ET.fromstring(drawing)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        assert not re.search(r"nan|inf\b|None", drawing)


def test_page_fetches_nothing_and_runs_nothing() -> None:
    page = render(RECORD, _metrics(), _state(), "x = 1")
    assert "http" not in page
    assert "@import" not in page
    assert "url(" not in page
    for tag, attributes in _Page(page).tags:
        assert tag not in ("script", "link", "iframe", "object")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "srcset", "href"):
            assert name not in attributes


def test_tensor_table_tells_what_is_left() -> None:
    words = _page(state=_state()).text.replace(SPACE, " ")
    assert "fc1.weight F32 4 \u00d7 16 64 6 9.38 % 2 of 4 11 of 16" in words
    assert "norm.mean F32, kept exactly 4 4 4 100.0 %" in words
    assert "tied = fc1.weight" in words


def test_rows_and_columns_without_weights_are_counted() -> None:
    conv = np.zeros((2, 3, 2, 2), int)
    conv[0, 1, 1, 0] = 1  # filter 1 is dead, and channels 0 and 2
    square = np.ones((2, 2), "<f4")
    tensors = (
        TiedTensor("conv", 0, conv),
        KeptTensor("weight", F32, square),
        KeptTensor("buffer", F32, square, trainable=False),
        TiedTensor("none", 0, np.zeros((0, 4), int)),
        TiedTensor("scale", 0, np.array(1)),
    )
    state = TiedState((Codebook(F32, np.array([0.0, 0.5], "<f4")),), tensors)
    words = _page({}, [], state).text.replace(SPACE, " ")
    assert "conv F32 2 \u00d7 3 \u00d7 2 \u00d7 2 24 1 4.17 % 1 of 2 2 of 3 " in words
    assert "weight F32, kept exactly 2 \u00d7 2 4 4 100.0 % 0 of 2 0 of 2 " in words
    assert "buffer F32, kept exactly 2 \u00d7 2 4 4 100.0 % \u2013 \u2013 " in words
    assert "none F32 0 \u00d7 4 0 0 0 % \u2013 \u2013 scale F32 scalar 1 1 100.0 % \u2013" in words


def test_the_title_tells_network_data_and_method() -> None:
    page = render({**RECORD, "data": "mine:letters", "data_name": "my letters"}, [], _state(), "")
    assert "<title>lenet-300-100 on my letters · sparse_apt · reefknot</title>" in page
    assert "<h1>lenet-300-100 on my letters</h1>" in page
    assert "<h1>lenet-300-100 on mnist</h1>" in render(RECORD, [], _state(), "")


@pytest.mark.parametrize("name", ["lenet-300-100_sparse_apt", "lenet-5-caffe_sparse_apt"])
def test_every_byte_of_a_real_run_is_accounted_for(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(next(RECORDS.glob(f"*_{name}_seed0")), tmp_path / "run")
    page = write_report(folder, open_state(folder / "model.reef")).read_text(encoding="utf-8")
    section = re.search(r"<h2>Where every byte went</h2>.*?</section>", page, re.DOTALL)
    assert section is not None
    rows = {
        row[0]: row[1:]
        for row in (
            re.findall(r"<t[hd][^>]*>([^<]*)</t", row)
            for row in re.findall(r"<tr>(.*?)</tr>", section[0])
        )
    }
    size = (folder / "model.reef").stat().st_size
    assert rows.pop("The file")[0] == f"{size:,}"
    assert rows.pop("Part")[:4] == ["Bytes", "Share", "Positions", "Values"]
    inspected = inspect(folder / "model.reef")
    for tensor in inspected.tensors:
        assert rows[tensor.name][0] == f"{tensor.bytes:,.1f}"
    shown = [float(row[0].replace(",", "")) for row in rows.values()]
    assert len(shown) == len(inspected.tensors) + 2
    assert sum(shown) == pytest.approx(size, abs=0.05 * len(shown))
    assert f"{inspected.xz_bytes:,} after xz" in section[0]


def test_without_a_file_no_bytes_are_told() -> None:
    assert "Where every byte went" not in _page(state=_state()).text


@pytest.mark.parametrize(
    "name", ["2026-11-15_lenet-300-100_dense", "2026-11-16_lenet-300-100_dense-warped"]
)
def test_a_dense_run_reports_no_tying(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(RECORDS / f"{name}_seed0", tmp_path / "run")
    write_report(folder, open_state(folder / "model.reef"))
    words = _Page((folder / "report.html").read_text(encoding="utf-8")).text
    assert "Validation error" in words
    for word in (
        "tying",
        "tied",
        "Shared values",
        "Rate as in the paper",
        "Predicted size",
        "frozen",
    ):
        assert word not in words.replace("sparse_apt", "")


def test_names_from_files_are_escaped_everywhere() -> None:
    record = {
        key: EVIL for key in ("network", "data", "method", "seed", "test_error", "versions")
    } | {"skipped": {EVIL: EVIL}, "settings": {EVIL: [EVIL]}, "versions": {"reefknot": EVIL}}
    lines = [
        {**line, "phase": EVIL, "centers": {EVIL: [1.0], "b": [2.0]}, "counts": {EVIL: [3]}}
        for line in _metrics()
    ]
    page = render(record, lines, _state(EVIL.replace("\ud800", "")), EVIL)
    page.encode("utf-8")
    assert "<script" not in page
    assert "\x00" not in page
    assert "alert" in _Page(page).text
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(drawing)


def test_nothing_at_all_still_makes_a_page() -> None:
    assert "reefknot" in _page({}, []).text
    assert "reefknot" in _page({}, [], TiedState((), ())).text


ODD: list[Any] = [None, float("nan"), 10**400, -1e308, 1e-320, 0, -3, True, "x", [], [None], {}]


@pytest.mark.parametrize("odd", ODD, ids=lambda value: str(value)[:8])
def test_odd_values_never_stop_a_report(odd: Any) -> None:
    for key in RECORD:
        _page({**RECORD, key: odd}, [], _state())
    for key in _metrics()[0]:
        lines = _metrics()
        lines[3][key] = odd
        _page(RECORD, lines)
        _page(RECORD, [{**line, key: odd} for line in lines])
    for key in ("centers", "spreads", "counts"):
        _page({}, [{**line, key: {"a": odd, "b": [odd, 1.0]}} for line in _metrics()])
    _page({}, [odd, *_metrics()])


@pytest.mark.parametrize("key", sorted(RECORD))
def test_missing_key_is_left_out(key: str) -> None:
    _page({name: value for name, value in RECORD.items() if name != key}, state=_state())


def test_steps_told_again_after_a_resume_are_drawn_once() -> None:
    lines = curves.in_order([{"step": s, "n": n} for n, s in enumerate([0, 1, 2, 3, 2, 3, 4])])
    assert [(line["step"], line["n"]) for line in lines] == [
        (0, 0),
        (1, 1),
        (2, 2),
        (2, 4),
        (3, 5),
        (4, 6),
    ]


def test_phases_meet_where_the_first_ends() -> None:
    found = curves.phases(curves.in_order(_metrics()))
    assert found == [(0, 400, "soft tying", False), (400, 700, "hard tying", True)]


BUDGET = {"sparsify": 66, "recover": 72, "commit": 98, "frozen": 100}  # where each ends


def _budget(**target: float) -> list[dict[str, Any]]:
    """The metrics of a run with a budget, one line a step."""
    line = {k: v for k, v in _metrics()[0].items() if not k.startswith("target_")} | target
    return [
        {**line, "step": s, "phase": next(p for p, end in BUDGET.items() if s <= end),
         "is_last": s > BUDGET["commit"],
         "predicted_bytes": 30_000 / s, "density": 1 / s}
        for s in range(1, 101)
    ]  # fmt: skip


def test_the_phases_of_a_budget_are_named_and_the_last_one_is_shaded() -> None:
    page = render(RECORD, _budget(target_bytes=320), _state(), "")
    assert curves.phases(curves.in_order(_budget())) == [
        (1, 66, "sparsify", False),
        (66, 72, "recover", False),
        (72, 98, "commit", False),
        (98, 100, "frozen", True),
    ]
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    drawings = [drawing for drawing in drawings if ">sparsify<" in drawing]
    assert len(drawings) == 8
    for drawing in drawings:
        assert ">commit<" in drawing
        assert ">frozen<" in drawing  # short, but there is room in the margin
        assert drawing.count('class="phase"') == 1
        assert drawing.count('class="edge"') == 2  # where recover and commit begin
        shade = re.search(r'<rect class="phase" x="([\d.]+)"', drawing)
        name = re.search(r'x="([\d.]+)"[^>]*>frozen<', drawing)
        assert shade is not None
        assert name is not None
        assert shade[1] == name[1]
    assert "phases: sparsify, recover, commit, frozen (shaded)." in _Page(page).text


def test_a_last_phase_that_is_short_has_its_name_in_the_margin() -> None:
    lines = [
        {**line, "phase": "hard tying" if line["is_last"] else "soft tying"} for line in _budget()
    ]
    drawings = re.findall(r"<svg.*?</svg>", render({}, lines, _state(), ""), re.DOTALL)
    named = [">hard tying<" in drawing for drawing in drawings if ">soft tying<" in drawing]
    assert len(named) == 8
    assert all(named)
    assert "phases: soft tying, hard tying (shaded)." in _page({}, lines).text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sparse_apt-33", "phases: soft tying, hard tying (shaded)."),
        ("dense-warped", "phases: training."),
    ],
)
def test_committed_records_name_their_phases(name: str, told: str) -> None:
    folder = RECORDS / f"2026-11-16_lenet-300-100_{name}_seed0"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert told in _Page(render({}, lines, _state(), "")).text


def test_a_run_without_hard_steps_names_its_one_phase() -> None:
    folder = RECORDS / "2026-11-16_lenet-300-100_sparse_apt-33_seed0"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    soft = [line for line in lines if not line["is_last"]]
    assert "phases: soft tying." in _Page(render({}, soft, _state(), "")).text


def test_the_size_is_drawn_with_its_target() -> None:
    found = {f.title: f for f in curves.training(_budget(target_bytes=320), 311.0)}
    size = found["Predicted size"]
    assert size.note == "bytes, while training; dashed: the target, 320 bytes, log scale"
    assert size.body.count('class="level"') == 1
    without = {f.title: f for f in curves.training(_budget(), 311.0)}["Predicted size"]
    assert without.note == "bytes, while training; dashed: the file, 311 bytes, log scale"
    # The line lies at its value: 320 is above 311, so nearer to the top.
    level = r'class="level"[^>]* y1="([\d.]+)"'
    high, low = (float(re.search(level, f.body)[1]) for f in (size, without))
    assert high < low


def test_the_density_is_drawn_with_its_target() -> None:
    found = {f.title: f for f in curves.training(_budget(target_density=0.02), 311.0)}
    assert found["Density"].body.count('class="level"') == 1
    assert f"dashed: the target, 2.00{SPACE}%" in found["Density"].note
    assert "dashed: the file" in found["Predicted size"].note


def test_the_stages_are_called_by_what_is_known_then() -> None:
    words = _page().text.replace(SPACE, " ")
    assert "Before tied values validation 1.71 %" in words
    assert "Clusters frozen validation 2.63 %" in words
    assert "Dense network test 1.64 %" in words


def test_a_network_that_was_tied_already_is_not_called_dense() -> None:
    record = RECORD | {"start_is_tied": True}
    page = render(record, _metrics(), _state(), "")
    assert "Tied network, before" in page
    assert "Dense network" not in page


def test_long_runs_stay_small() -> None:
    line = _metrics()[0] | {"centers": {"network": [float(k) for k in range(300)]}}
    lines = [{**line, "step": n} for n in range(3_000)]
    page = render(RECORD, lines, _state(), "")
    assert len(page) < 1_000_000
    assert "64 of 300 drawn" in page


def test_every_shared_value_has_a_stem() -> None:
    for size in (2, 100):
        codebook = Codebook(F32, np.linspace(-1, 1, size, dtype="<f4"))
        state = TiedState((codebook,), (TiedTensor("w", 0, np.arange(size)),))
        assert render({}, [], state, "").count('class="stem') == size


def test_shared_values_are_read_from_types_that_numpy_lacks() -> None:
    half = TiedTensor("w", 0, np.array([0, 1, 1]))
    # bfloat16 0x3f80 is 1.0 and 0xc000 is -2.0: the upper halves of those float32 values.
    bf16 = Codebook(DTYPES["BF16"], np.array([0x3F80, 0xC000], "<u2"))
    (found,) = values.histograms(TiedState((bf16,), (half,)))
    assert found.numbers.rows == [("\u22122", "2"), ("1", "1")]
    fp8 = Codebook(DTYPES["F8_E4M3"], np.array([0x38, 0x0], "u1"))
    assert values.histograms(TiedState((fp8,), (half,))) == []


def test_words_for_numbers() -> None:
    assert [plain(v) for v in (0.0, -0.25, 12345.6, 1e-7)] == [
        "0",
        "\u22120.25",
        "12,346",
        "1e\u22127",
    ]
    assert [rate(v) for v in (9.999, 99.94, 1234.5)] == ["10.00\u00d7", "99.9\u00d7", "1,234\u00d7"]
    assert share(0.0213) == f"2.13{SPACE}%"
    assert number(True) is None
    assert number(float("inf")) is None


# -- writing --------------------------------------------------------------------------------------


def _folder(path: Path) -> Path:
    (path / "record.json").write_text(json.dumps(RECORD))
    lines = [json.dumps(line) for line in _metrics()]
    (path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 800, "lo')
    (path / "config.toml").write_text('name = "<mine>"')
    reefknot.save(_state(), path / "model.reef")
    return path


def test_write_report_reads_the_folder_and_leaves_one_file(tmp_path: Path) -> None:
    path = write_report(_folder(tmp_path), _state())
    assert path == tmp_path / "report.html"
    page = _Page(path.read_text(encoding="utf-8"))
    assert 'name = "<mine>"' in page.text
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.toml",
        "metrics.jsonl",
        "model.reef",
        "record.json",
        "report.html",
    ]


def test_write_report_is_the_same_twice(tmp_path: Path) -> None:
    first = write_report(_folder(tmp_path), _state()).read_bytes()
    assert write_report(tmp_path, _state()).read_bytes() == first


def test_failure_keeps_the_old_page_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_folder(tmp_path) / "report.html").write_text("old")

    def full(fd: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReefknotError, match="no space"):
        write_report(tmp_path, _state())
    assert (tmp_path / "report.html").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 5


def test_page_has_normal_rights_and_follows_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "report.html").symlink_to(elsewhere / "page.html")
    write_report(_folder(tmp_path), _state())
    assert (tmp_path / "report.html").is_symlink()
    umask = os.umask(0)
    os.umask(umask)
    assert (elsewhere / "page.html").stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "could not be read"), ("{", "not valid JSON"), ("[]", "a list; a record")],
)
def test_folder_that_is_no_run_is_refused_in_one_sentence(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "record.json").write_text(content)
    with pytest.raises(ReefknotError, match=message):
        write_report(tmp_path, _state())
    assert not (tmp_path / "report.html").exists()
