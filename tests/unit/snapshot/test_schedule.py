from __future__ import annotations

from siltstone.snapshot.schedule import Schedule


def test_the_first_snapshot_comes_a_whole_interval_after_the_start() -> None:
    schedule = Schedule(300.0, 1000.0)
    assert [schedule.wait(now) for now in (1000.0, 1200.0, 1300.0, 1400.0)] == [300, 100, 0, 0]


def test_an_interval_counts_from_when_the_last_snapshot_began() -> None:
    schedule = Schedule(300.0, 0.0)
    schedule.begin(310.0)
    schedule.end()
    assert schedule.wait(350.0) == 260.0


def test_without_an_interval_there_are_only_those_that_are_asked_for() -> None:
    schedule = Schedule(0.0, 0.0)
    assert schedule.wait(1e9) is None
    schedule.ask()
    assert schedule.wait(1e9) == 0.0


def test_those_who_ask_while_one_is_written_share_the_next() -> None:
    schedule = Schedule(0.0, 0.0)
    schedule.ask()
    schedule.begin(0.0)
    schedule.ask()
    schedule.ask()
    assert schedule.wait(1.0) is None
    schedule.end()
    assert schedule.wait(1.0) == 0.0
    schedule.begin(1.0)
    schedule.end()
    assert schedule.wait(2.0) is None


def test_a_tick_that_falls_into_a_snapshot_does_not_begin_another() -> None:
    schedule = Schedule(1.0, 0.0)
    schedule.begin(1.0)
    assert schedule.wait(5.0) is None
    schedule.end()
    assert schedule.wait(5.0) == 0.0
