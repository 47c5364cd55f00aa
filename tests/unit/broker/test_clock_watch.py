from __future__ import annotations

from siltstone.broker.alarms import CLOCK, QUIET, Alarms
from siltstone.broker.clock_watch import AHEAD, BACK, watch_clock
from siltstone.clock import GuardedClock, ManualClock


def test_the_alarm_lasts_as_long_as_the_clock_is_not_believed() -> None:
    inner, alarms = ManualClock(), Alarms()
    clock = GuardedClock(inner, jump_seconds=60, confirm_seconds=3600)
    texts = []
    for seconds in (0, 100, -100, -100, 100):
        inner.jump(seconds)
        watch_clock(alarms, clock)
        texts.append(alarms.text(CLOCK))
    assert texts == [QUIET, AHEAD, QUIET, BACK, QUIET]
