"""Mutated files: the four decoders agree on each, and none raises what it should not."""

import os
import shutil
import time

import pytest

from format import seams
from format.soak import BATCH, BUILDS, soak, with_seams

MINUTES = float(os.environ.get("REEFKNOT_SOAK_MINUTES", "30"))


def test_all_decoders_agree_on_some_mutations():
    report = soak(lambda report: report.files < 2 * BATCH, seed=6)
    assert report.is_fine, report.text()
    assert report.files == 2 * BATCH
    assert report.files // 5 < report.accepted < report.files
    read_by = set(report.peak_kilobytes)
    assert "library and reference" in read_by
    assert shutil.which("gcc") is None or next(iter(BUILDS)) in read_by
    assert shutil.which("node") is None or "reef.min.js" in read_by


@pytest.mark.soak
@pytest.mark.timeout(60 * MINUTES + 600)
def test_all_decoders_agree_on_as_many_mutations_as_there_is_time_for():
    stop = time.monotonic() + 60 * MINUTES
    report = soak(lambda report: not report.files or time.monotonic() < stop, seed=int(time.time()))
    print(report.text())
    assert report.is_fine, report.text()


@pytest.mark.soak
@pytest.mark.timeout(20 * MINUTES + 600)
def test_all_decoders_agree_where_limits_are_far_lower():
    assert with_seams(MINUTES / 3, seed=int(time.time())) == 0


def test_every_limit_is_still_where_it_is_lowered(tmp_path):
    seams.make(tmp_path)
