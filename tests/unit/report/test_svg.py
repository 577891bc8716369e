"""Scales, ticks and charts: positions worked by hand."""

import xml.etree.ElementTree as ET

import pytest

from reefknot.lab.report.svg import (
    Chart,
    Scale,
    is_log,
    log_ticks,
    nice_step,
    nice_ticks,
    padded,
    tick_labels,
)


def _chart(**changed: object) -> Chart:
    settings = {"x_range": (0.0, 10.0), "y_range": (0.0, 1.0), "label": "a label"} | changed
    return Chart(**settings)


def _paths(chart: Chart, kind: str) -> list[str]:
    root = ET.fromstring(chart.render())
    return [path.get("d") for path in root.iter("path") if kind in path.get("class")]


@pytest.mark.parametrize(
    ("span", "step"),
    # A fifth of 10 is 2; of 11 it is 2.2, so 5; of 30 it is 6, so 10; of 0.05 it is 0.01.
    [(10, 2), (11, 5), (30, 10), (0.05, 0.01)],
)
def test_step_is_one_two_or_five_times_a_power_of_ten(span: float, step: float) -> None:
    assert nice_step(span) == pytest.approx(step)


def test_ticks_are_round_and_inside() -> None:
    assert nice_ticks(0, 1) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]  # 0.6, not 0.6000000000000001
    assert nice_ticks(-0.5, 0.5) == [-0.4, -0.2, 0.0, 0.2, 0.4]
    assert nice_ticks(1_000, 70_000) == [20_000, 40_000, 60_000]
    assert nice_ticks(3, 3) == [3]


def test_log_ticks_are_powers_of_ten_and_finer_in_a_short_range() -> None:
    assert log_ticks(0.01, 10) == [0.01, 0.1, 1, 10]
    assert log_ticks(2, 30) == [2, 5, 10, 20]
    assert log_ticks(1e-12, 1e12)[0] == 1e-12  # 25 powers are thinned to every fifth
    assert len(log_ticks(1e-12, 1e12)) == 5


def test_tick_labels_share_one_unit() -> None:
    assert tick_labels([0.0, 500_000.0, 1_000_000.0]) == ["0", "0.5M", "1M"]
    assert tick_labels([0.0, 5_000.0, 10_000.0]) == ["0", "5k", "10k"]
    assert tick_labels([1.0, 1e4, 1e8], log=True) == ["1", "10k", "100M"]
    assert tick_labels([-0.2, 0.0, 0.2]) == ["\u22120.2", "0", "0.2"]


def test_log_scale_puts_equal_ratios_at_equal_distances() -> None:
    scale = Scale(1, 100, 0, 200, log=True)
    assert [scale(v) for v in (1, 10, 100)] == [0, 100, 200]


def test_log_scale_is_chosen_for_positive_values_over_a_decade() -> None:
    assert is_log([1, 11])
    assert not is_log([1, 9])
    assert not is_log([0, 100])
    assert not is_log([])


def test_range_ends_on_ticks_and_is_never_empty() -> None:
    assert padded([0.13, 0.88], log=False) == pytest.approx((0.0, 1.0))  # steps of 0.2
    assert padded([2.0, 9.0], log=False, zero=True) == (0.0, 10.0)
    for values in ([0.0], [5.0], [-3.0], [1e-9, 1e-9]):
        low, high = padded(values, log=False)
        assert low < high
    low, high = padded([7.0], log=True)
    assert 0 < low < 7 < high


def test_line_breaks_at_gaps_and_draws_lone_points_as_dots() -> None:
    chart = _chart()
    chart.line([(0, 0.0), (5, 0.5), (6, None), (7, 0.5), (8, None), (9, 0.1), (10, 1.0)])
    (path,) = _paths(chart, "line")
    # x runs from 50 to 412, y from 202 (0) up to 24 (1).
    assert path == "M50.0,202.0L231.0,113.0M375.8,184.2L412.0,24.0"
    root = ET.fromstring(chart.render())
    assert [c.get("cx") for c in root.iter("circle")] == ["303.4"]


def test_log_line_leaves_out_zero() -> None:
    chart = _chart(y_range=(0.1, 10.0), log=True)
    chart.line([(0, 10.0), (5, 0.1), (10, 0.0)])
    assert _paths(chart, "line") == ["M50.0,24.0L231.0,202.0"]


def test_chart_has_a_label_for_screen_readers_and_escapes_it() -> None:
    root = ET.fromstring(_chart(label='<"&').render())
    assert root.get("role") == "img"
    assert root.get("aria-label") == '<"&'


def test_chart_of_one_step_has_width() -> None:
    chart = _chart(x_range=(3.0, 3.0))
    chart.line([(3, 0.5)])
    assert ET.fromstring(chart.render()).find("circle").get("cx") == "231"


def test_stems_stand_at_their_values() -> None:
    # From 0.5 to 8 are four doublings over 178 pixels: 1 is one doubling above the foot.
    chart = _chart(y_range=(0.5, 8.0), log=True)
    for x, y in ((0.0, 8.0), (10.0, 1.0)):
        chart.stem(x, y, kind="zero", title="told")
    assert _paths(chart, "stem") == ["M50.0,202.0L50.0,24.0", "M412.0,202.0L412.0,157.5"]
