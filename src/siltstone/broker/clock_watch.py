"""The alarm for a wall clock that has jumped; clock.py decides what is believed of it."""

from __future__ import annotations

from typing import Final

from siltstone.broker.alarms import CLOCK, QUIET, Alarms
from siltstone.clock import GuardedClock

AHEAD: Final = (
    "the clock jumped ahead: the broker keeps its own time, and nothing expires by the new one, "
    "until the clock is set right, has stayed so for clock_confirm, or the broker is restarted"
)
BACK: Final = (
    "the clock was set back: the broker keeps its own time until the clock has caught up or the "
    "broker is restarted"
)


def watch_clock(alarms: Alarms, clock: GuardedClock) -> None:
    """Raise the alarm while the wall clock is not believed."""
    seconds = clock.ahead_seconds
    text = AHEAD if seconds > 0 else BACK if seconds < 0 else QUIET
    alarms.set(CLOCK, text, ahead_seconds=round(seconds))
