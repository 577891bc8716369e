"""Strength and price at each step, worked by hand."""

import math

import pytest

from reefknot.methods.schedule import Price, Schedule


def test_the_strength_grows_by_the_same_factor_each_relaxed_step():
    schedule = Schedule(relax_from=1, relax_tying=1e-2, relax_steps=2)
    strengths = [schedule.tying(step, 1e-4) for step in range(5)]
    assert strengths == pytest.approx([1e-4, 1e-4, 1e-3, 1e-2, 1e-2])


def test_without_relaxing_the_strength_stays():
    assert Schedule().tying(10**6, 0.25) == 0.25
    assert not Schedule().relaxed(10**6)
    assert Schedule(relax_from=5).tying(7, 0.25) == 0.25


def test_relaxing_begins_after_the_step_it_names():
    schedule = Schedule(relax_from=3)
    assert [schedule.relaxed(step) for step in range(2, 5)] == [False, True, True]


def test_a_price_that_follows_a_size_grows_while_the_file_is_too_large():
    price = Price(Schedule(relax_from=10, relax_steps=100, through_from=10, target_bytes=100))
    price.start(400, mean_square=0.5)
    assert price.now == pytest.approx(0.005)
    price.follow(26.666667, 202)  # half of the way in time: 200 bytes are wanted
    assert price.now == pytest.approx(0.005 * 1.01**2, rel=1e-4)
    price.follow(80, 500)  # five times as large as it should be, but a fifth at a time
    assert price.now == pytest.approx(0.005 * 1.01**2 * math.exp(0.2), rel=1e-4)


def test_a_price_that_is_not_needed_falls_to_a_tenth_and_can_come_back():
    price = Price(Schedule(relax_from=10, relax_steps=100, through_from=10, target_bytes=100))
    price.start(90, mean_square=0.5)
    for _ in range(100):
        price.follow(110, 90)
    assert price.now == pytest.approx(0.0005)
    other = Price(price.schedule)
    other.load_state_dict(price.state_dict())
    for one in (price, other):
        one.follow(110, 110)
    assert price.now == other.now == pytest.approx(0.0005 * 1.1**2)
