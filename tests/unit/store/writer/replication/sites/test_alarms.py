"""Alarms are raised when something lasts, once, and cleared when it is over."""

from __future__ import annotations

from siltstone.store.writer.replication.sites.alarms import (
    CLEAR_US,
    RAISE_US,
    Alarm,
    AlarmChanges,
    AlarmKind,
    AlarmWatch,
)

ALARM = Alarm(AlarmKind.NO_LEADER, "m/0")
NOTHING = AlarmChanges({}, frozenset())


def test_what_lasts_is_raised_once_and_cleared_when_it_is_over() -> None:
    watch = AlarmWatch()
    assert watch.look({ALARM: "first"}, 0) == NOTHING
    assert watch.look({ALARM: "first"}, RAISE_US - 1) == NOTHING
    assert watch.look({ALARM: "then"}, RAISE_US) == AlarmChanges({ALARM: "then"}, frozenset())
    assert watch.look({ALARM: "later"}, 2 * RAISE_US) == NOTHING
    assert watch.texts() == {ALARM: "later"}
    assert watch.look({}, 2 * RAISE_US + CLEAR_US - 1) == NOTHING
    assert watch.look({}, 2 * RAISE_US + CLEAR_US) == AlarmChanges({}, frozenset({ALARM}))
    assert watch.texts() == {}
    assert watch.counts == {AlarmKind.NO_LEADER: 1}


def test_a_blink_is_not_told() -> None:
    watch = AlarmWatch()
    for second in range(20):
        found = {ALARM: "now and then"} if second % 2 else {}
        assert watch.look(found, second * 1_000_000) == NOTHING
    assert watch.counts == {}


def test_an_alarm_that_blinks_stays_raised() -> None:
    watch = AlarmWatch()
    watch.look({ALARM: "x"}, 0)
    watch.look({ALARM: "x"}, RAISE_US)
    assert watch.look({}, RAISE_US + 1_000_000) == NOTHING
    assert watch.look({ALARM: "x"}, RAISE_US + 2_000_000) == NOTHING
    assert watch.look({}, RAISE_US + 2_000_000 + CLEAR_US).cleared == {ALARM}
