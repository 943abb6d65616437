"""Phases that take too long, with a simulated clock."""

import pytest

from convrec.runs.phases import FIRST_TIMES, OUTSIDE, REMEMBERED, TIMES_MEDIAN, Phases


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def train(phases: Phases, clock: Clock, steps: int, seconds: float) -> None:
    for _ in range(steps):
        with phases.phase("gen"):
            clock.now += seconds


def test_phase_limit_is_ten_medians_but_at_least_the_minimum(clock: Clock) -> None:
    phases = Phases(300, clock)
    train(phases, clock, 5, 60)
    train(phases, clock, 1, 500)  # one slow step does not move the median
    with phases.phase("gen"):
        clock.now += TIMES_MEDIAN * 60
        assert not phases.overdue()
        clock.now += 1
        assert phases.overdue() == "no progress for 601 s in phase gen (median 60.0 s, limit 600 s)"
    train(phases, clock, REMEMBERED, 1)
    with phases.phase("gen"):
        clock.now += 299
        assert not phases.overdue()
        clock.now += 2
        assert phases.overdue()


def test_the_first_time_has_a_higher_limit(clock: Clock) -> None:
    phases = Phases(300, clock)
    with phases.phase("testing"):
        clock.now += FIRST_TIMES * 300
        assert not phases.overdue()
        clock.now += 1
        assert "it has not finished before" in phases.overdue()


def test_a_nested_phase_is_progress_of_both(clock: Clock) -> None:
    phases = Phases(10, clock)
    train(phases, clock, 1, 1)
    with phases.phase("update_weights"):
        clock.now += 50
        with phases.phase("gen"):
            clock.now += 11
            assert "in phase gen" in phases.overdue()
        clock.now += 50
        assert not phases.overdue()  # its first limit is 60 s, and the inner phase was a sign of life


def test_a_failed_phase_leaves_no_duration(clock: Clock) -> None:
    phases = Phases(10, clock)
    with pytest.raises(ValueError, match="of the phase"), phases.phase("gen"):
        raise ValueError("of the phase")
    assert not phases.durations
    assert phases.current[0] == OUTSIDE


def test_a_long_start_is_not_a_hang(clock: Clock) -> None:
    phases = Phases(10, clock)
    clock.now += 1000
    phases.restart()
    assert not phases.overdue()
