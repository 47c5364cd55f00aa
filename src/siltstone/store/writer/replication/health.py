"""The timers of a site: when it claims, publishes again or falls silent, and when it counts as
dead.

Nothing here is needed for safety of the log: a wrong clock or a wrong guess costs time, not rows.
The one exception is a lease, which needs clocks that run at about the same rate: a site stops
serving its clients long before another site may declare it dead.

All times are in microseconds of the site's own monotonic clock, unless they are called wall times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import Final

from siltstone.units import SECOND_US

SILENCE_US: Final = SECOND_US
RANK_US: Final = 300_000
BACK_OFF_US_MAX: Final = 10 * SECOND_US
AGAIN_US: Final = 500_000
STALL_US: Final = 3 * SECOND_US
CLOCK_US_MAX: Final = 5 * SECOND_US
RENEW_US: Final = 2 * SECOND_US
MUTE_US: Final = 10 * SECOND_US
DEAD_US: Final = 20 * SECOND_US
FALL_BACK_US: Final = 20 * SECOND_US


class ClaimTimer:
    """Decides when a follower claims: after silence, the lowest rank first, then less and less
    often.

    The rank may change; a new rank applies from the next heartbeat or record on.
    """

    def __init__(self, rank: int, now_us: int) -> None:
        self.rank = rank
        self._claims = 0
        self._due_us = 0
        self.heard(now_us)

    def heard(self, now_us: int) -> None:
        """Take a heartbeat of the leader, or a record that counted."""
        self._claims = 0
        self._due_us = now_us + SILENCE_US + self.rank * RANK_US

    def is_due(self, now_us: int) -> bool:
        return now_us >= self._due_us

    def claimed(self, now_us: int) -> None:
        """Record that this site has claimed. The next claim waits twice as long, up to a limit."""
        self._claims += 1
        back_off_us = min(SILENCE_US << min(self._claims, 8), BACK_OFF_US_MAX)
        self._due_us = now_us + back_off_us + self.rank * RANK_US


class OutboxTimer:
    """Decides when a leader publishes its outbox again, and when it has stalled."""

    def __init__(self) -> None:
        self._oldest = 0
        self._since_us = 0
        self._published_us = 0

    def watch(self, oldest: int, now_us: int) -> bool:
        """Return whether to publish again. `oldest` is the oldest index under way, or 0."""
        if oldest != self._oldest:
            self._oldest, self._since_us, self._published_us = oldest, now_us, now_us
            return False
        if not oldest or now_us - self._published_us < AGAIN_US:
            return False
        self._published_us = now_us
        return True

    def is_stalled(self, now_us: int) -> bool:
        """Return whether to stop the heartbeats, so that another site claims."""
        return bool(self._oldest) and now_us - self._since_us >= STALL_US


class Lease:
    """The time that a site may serve its clients without renewing its entry.

    A site that has just started does not serve clients before its first renewal: the other sites
    do not know this boot yet, and may declare the site dead at any moment.
    """

    def __init__(self) -> None:
        self._renewed_us: int | None = None
        self._tried_us: int | None = None

    def try_renew(self, now_us: int) -> bool:
        """Return whether to renew now; an answer then goes to `renewed`, with the same time."""
        if self._tried_us is not None and now_us - self._tried_us < RENEW_US:
            return False
        self._tried_us = now_us
        return True

    def renewed(self, sent_us: int) -> None:
        """Take the answer to a renewal that was sent at this time: the lease counts from there."""
        if self._renewed_us is None or sent_us > self._renewed_us:
            self._renewed_us = sent_us

    def may_serve(self, now_us: int) -> bool:
        return self._renewed_us is not None and now_us - self._renewed_us < MUTE_US


class PeerWatch:
    """Measures by our own clock how long ago the entry of a peer has changed."""

    def __init__(self, now_us: int) -> None:
        self._entry = -1
        self._changed_us = now_us

    def saw(self, entry: int, now_us: int) -> None:
        """Take the revision of the peer's entry."""
        if entry != self._entry:
            self._entry, self._changed_us = entry, now_us

    def is_dead(self, now_us: int) -> bool:
        """Return whether to declare the boot of the peer dead, by compare-and-set."""
        return now_us - self._changed_us >= DEAD_US


class BoundsWatch:
    """Decides when to believe that the log has lost messages that this site has read.

    A new leader of the log may give outdated answers for some seconds: it reports its last message
    before it has applied everything that its predecessor committed. So a shorter log is believed
    only if nothing else is seen for a while. Meanwhile the chain protects the site: a message that
    is stored after the lost ones does not fit.

    The answer takes some time. A message that is read meanwhile may be newer than the answer, and
    proves that the log is longer.
    """

    def __init__(self) -> None:
        self._since_us: int | None = None

    def last(self, told: int, *, read_before: int, read: int, now_us: int) -> int | None:
        """Return the last sequence of the log, None if it is not known now.

        `told` is the answer of the log, `read_before` the last sequence that was read before the
        question, and `read` the one that is read now.
        """
        if told >= read_before:
            self._since_us = None
            return max(told, read)
        if self._since_us is None:
            self._since_us = now_us
        return told if now_us - self._since_us >= FALL_BACK_US else None


def all_can_read(written: int, read: Iterable[int]) -> bool:
    """Return whether all reachable sites can read records of a version. `read` has the newest
    version that each can read. Otherwise this site does not claim: during an upgrade, all sites
    must be able to read the records of the leader.
    """
    return all(newest >= written for newest in read)


def clock_is_wrong(own_us: int, all_us: Sequence[int]) -> bool:
    """Return whether our wall time is far from the median of all sites, ours included."""
    return abs(own_us - median_low(all_us)) > CLOCK_US_MAX
