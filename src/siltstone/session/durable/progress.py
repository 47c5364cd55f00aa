"""The progress of a durable session in the rows of each shard.

A row is open from the moment when it is offered to the client until its delivery is complete. Rows
are offered in the order of their serials and may complete in any order. The position of a shard is
its first open row, or the row after all rows that were examined. A session that restarts at the
position misses nothing, and it skips the later rows that are done.

A row that was examined and not wanted changes nothing that must be saved: a session that restarts
at an older position examines the row again and skips it again. Such rows are only counted, and the
position is saved occasionally.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from siltstone.session.archive.records import SavedInflight

# A position that moved only over unwanted rows is saved after PASSED_ROWS_MAX rows, or at every
# PASSED_LOOKS_MAX-th check. This limits how much is read again after a crash.
PASSED_ROWS_MAX: Final = 4096
PASSED_LOOKS_MAX: Final = 10


class ShardProgress:
    """The rows of one shard."""

    def __init__(self, owner: SessionProgress, shard: int, next_serial: int) -> None:
        self.owner = owner
        self.shard = shard
        # Every row before this one was examined.
        self.next_serial = next_serial
        # The offered rows in order, from the first open row or earlier; and those of them that are
        # open.
        self._offered: deque[int] = deque()
        self._open: set[int] = set()
        # Rows that were done before this connection, and were not read again yet.
        self.done: set[int] = set()
        # Rows that had a packet id on an earlier connection, and were not read again yet.
        self.sent_before: dict[int, SavedInflight] = {}
        # Rows before this one may have been sent before the broker stopped without a last save.
        self.doubtful_until = 0
        # Rows before this one arrived while the client was disconnected.
        self.missed_until = 0

    def come_by(self, offered: list[int], left_out: list[int]) -> None:
        """Record rows that were read, which follow all earlier ones: `offered` will be offered to
        the client, and `left_out` were done before this connection.
        """
        if left_out:
            self.done.difference_update(left_out)
            self._offered.extend(sorted(offered + left_out))
        else:
            self._offered.extend(sorted(offered))
        self._open.update(offered)

    def complete(self, serial: int) -> None:
        """Record that the delivery of a row is complete."""
        self.owner.freed += 1
        self.owner.changed = True
        self._open.discard(serial)
        if not self._open:
            self._offered.clear()

    def pass_by(self, next_serial: int) -> None:
        """Record that every row before a serial was examined."""
        if next_serial > self.next_serial:
            self.owner.passed += next_serial - self.next_serial
            self.next_serial = next_serial

    def position(self) -> int:
        """Return the first row that is not done."""
        offered = self._offered
        while offered and offered[0] not in self._open:
            offered.popleft()
        return offered[0] if offered else self.next_serial

    def done_rows(self) -> list[int]:
        """Return the rows after the position that are done, in order."""
        self.position()
        done = [serial for serial in self._offered if serial not in self._open]
        # Rows that were not read again yet come after all rows that were.
        return done + sorted(self.done)

    def is_open(self) -> bool:
        """Tell whether any row is offered and not done."""
        return bool(self._open)

    def open_count(self) -> int:
        """Return how many rows are offered and not done."""
        return len(self._open)


class SessionProgress:
    """The progress of one session or group, with one lane for each shard."""

    def __init__(self) -> None:
        self.lanes: dict[int, ShardProgress] = {}
        # Rows that completed since the owner last reset this counter.
        self.freed = 0
        # Whether there is a change to save soon.
        self.changed = False
        # The serials passed since the last save, and the number of checks since then.
        self.passed = 0
        self._looks = 0

    def lane(self, shard: int) -> ShardProgress:
        """Return the lane of a shard; a new lane begins with the first row."""
        lane = self.lanes.get(shard)
        if lane is None:
            lane = ShardProgress(self, shard, 0)
            self.lanes[shard] = lane
        return lane

    def start(self, shard: int, next_serial: int, done: Iterable[int]) -> ShardProgress:
        """Begin a shard at the saved position of an earlier connection."""
        lane = ShardProgress(self, shard, next_serial)
        lane.done = set(done)
        self.lanes[shard] = lane
        return lane

    def is_far(self) -> bool:
        """Tell whether the saved position is so far behind or so old that it should be saved
        without another change. Call it at regular intervals.
        """
        if self.passed == 0:
            return False
        self._looks += 1
        return self.passed >= PASSED_ROWS_MAX or self._looks >= PASSED_LOOKS_MAX

    def saved(self) -> None:
        """Record that the current progress is part of a save."""
        self.changed = False
        self.passed = 0
        self._looks = 0

    def end(self) -> None:
        """Drop the lanes, which refer to this object, to break the reference cycle."""
        self.lanes = {}

    def position(self) -> dict[int, int]:
        """Return the first row of each shard that is not done."""
        return {shard: lane.position() for shard, lane in self.lanes.items()}

    def done(self) -> dict[int, list[int]]:
        """Return for each shard the rows after the position that are done, in order."""
        found = {shard: lane.done_rows() for shard, lane in self.lanes.items()}
        return {shard: rows for shard, rows in found.items() if rows}
