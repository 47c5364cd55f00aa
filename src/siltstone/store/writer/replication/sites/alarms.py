"""Decide when an alarm of the cluster is raised and cleared: once, and not for a short problem.

An alarm has a kind and a place: a shard, a site, or a site of a shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

# A problem that lasts this long raises an alarm. A handover or a restart of NATS takes less time.
RAISE_US: Final = 5_000_000
# A problem that is gone for this long is over.
CLEAR_US: Final = 5_000_000


class AlarmKind(Enum):
    """The kinds of problems that an operator of a cluster must know."""

    NO_LEADER = "no leader"
    BELOW_QUORUM = "below quorum"
    UNDER_REPLICATED = "under-replicated"
    DIVERGED = "diverged"
    NO_SPACE = "no space"
    LOG_NEARLY_FULL = "log nearly full"
    SLOW_SITE = "slow site"
    CLOCK_SKEW = "clock skew"
    UNDECIDED = "undecided segments"
    UNSAFE_NATS = "unsafe NATS"


@dataclass(frozen=True, slots=True)
class Alarm:
    """A kind of alarm, and its place."""

    kind: AlarmKind
    place: str


@dataclass(frozen=True, slots=True)
class AlarmChanges:
    """The alarms that were raised and cleared since the last look, with the texts of the raised
    ones.
    """

    raised: Mapping[Alarm, str]
    cleared: frozenset[Alarm]


class AlarmWatch:
    """The alarms of one site. Times are microseconds of a monotonic clock."""

    def __init__(self) -> None:
        self._since: dict[Alarm, int] = {}
        self._seen: dict[Alarm, int] = {}
        self._texts: dict[Alarm, str] = {}
        self.raised: set[Alarm] = set()
        # How often each kind was raised since the start.
        self.counts: Counter[AlarmKind] = Counter()

    def look(self, found: Mapping[Alarm, str], now_us: int) -> AlarmChanges:
        """Take the problems that exist at this moment."""
        for alarm, text in found.items():
            self._since.setdefault(alarm, now_us)
            self._seen[alarm], self._texts[alarm] = now_us, text
        raised = {
            alarm: text
            for alarm, text in found.items()
            if alarm not in self.raised and now_us - self._since[alarm] >= RAISE_US
        }
        over = {alarm for alarm, at in self._seen.items() if now_us - at >= CLEAR_US}
        # A problem that was gone for a moment begins anew, unless its alarm was raised.
        blinks = {alarm for alarm in self._seen if alarm not in found and alarm not in self.raised}
        cleared = frozenset(over & self.raised)
        for alarm in over | blinks:
            del self._since[alarm], self._seen[alarm], self._texts[alarm]
        self.raised = (self.raised | raised.keys()) - cleared
        self.counts.update(alarm.kind for alarm in raised)
        return AlarmChanges(raised, cleared)

    def texts(self) -> dict[Alarm, str]:
        """Return the raised alarms, with the newest texts."""
        known = sorted(self.raised, key=lambda alarm: (alarm.place, alarm.kind.value))
        return {alarm: self._texts[alarm] for alarm in known}
