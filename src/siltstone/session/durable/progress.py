"""How far a durable session has come in the rows of each shard.

A row is open from the moment when it is offered to the client until the client has it for good.
Rows are offered in the order of their serials and may end in any order. The position of a shard is
its first open row, or the one behind all that were looked at: a session that begins anew there
misses nothing, and of what follows it leaves out what is done.

A row that came by and was not wanted changes nothing that must be saved: whoever begins again at an
older position leaves it out again. So it is only counted, and saved now and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from siltstone.session.archive.records import SavedInflight

# A position that rows passed by without a match is saved when that many have, or at every tenth
# look: this bounds what is read again after a crash.
PASSED_ROWS_MAX: Final = 4096
PASSED_LOOKS_MAX: Final = 10


class ShardProgress:
    """The rows of one shard."""

    def __init__(self, owner: Progress, shard: int, next_serial: int) -> None:
        self.owner = owner
        self.shard = shard
        # Every row before this one was looked at.
        self.next_serial = next_serial
        # Rows that were offered, in order, from the first open one on or before it; those of them
        # that are open.
        self._offered: deque[int] = deque()
        self._open: set[int] = set()
        # Rows that were done before this connection, and have not come by yet.
        self.done: set[int] = set()
        # Rows that had a packet id on an earlier connection, and have not come by yet.
        self.sent_before: dict[int, SavedInflight] = {}
        # Rows before this one may have been sent when the broker stopped without a word.
        self.doubtful_until = 0
        # Rows before this one came when the client was away.
        self.missed_until = 0

    def come_by(self, offered: list[int], left_out: list[int]) -> None:
        """Take note of rows that follow all before: those that will be offered to the client, and
        those that were done before this connection.
        """
        if left_out:
            self.done.difference_update(left_out)
            self._offered.extend(sorted(offered + left_out))
        else:
            self._offered.extend(sorted(offered))
        self._open.update(offered)

    def complete(self, serial: int) -> None:
        """Take note of a row that the client has for good."""
        self.owner.freed += 1
        self.owner.changed = True
        self._open.discard(serial)
        if not self._open:
            self._offered.clear()

    def pass_by(self, next_serial: int) -> None:
        """Take note that every row before a serial was looked at."""
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
        """Return the rows behind the position that are done, in order."""
        self.position()
        done = [serial for serial in self._offered if serial not in self._open]
        # What has not come by yet stands behind all that has.
        return done + sorted(self.done)

    def is_open(self) -> bool:
        """Tell whether any row is offered and not done."""
        return bool(self._open)

    def open_count(self) -> int:
        """Return how many rows are offered and not done."""
        return len(self._open)


class Progress:
    """The lanes of one session."""

    def __init__(self) -> None:
        self.lanes: dict[int, ShardProgress] = {}
        # Rows that ended since somebody last took note.
        self.freed = 0
        # Whether anything is to be saved soon.
        self.changed = False
        # Serials that came by since the last save, and how often that was too little to save.
        self.passed = 0
        self._looks = 0

    def lane(self, shard: int) -> ShardProgress:
        """Return the lane of a shard; one that is new begins with its first row."""
        lane = self.lanes.get(shard)
        if lane is None:
            lane = ShardProgress(self, shard, 0)
            self.lanes[shard] = lane
        return lane

    def start(self, shard: int, next_serial: int, done: Iterable[int]) -> ShardProgress:
        """Begin a shard where an earlier connection has left it."""
        lane = ShardProgress(self, shard, next_serial)
        lane.done = set(done)
        self.lanes[shard] = lane
        return lane

    def is_far(self) -> bool:
        """Tell, asked now and then, whether the saved position is so far behind or so old that it
        is worth a save by itself.
        """
        if self.passed == 0:
            return False
        self._looks += 1
        return self.passed >= PASSED_ROWS_MAX or self._looks >= PASSED_LOOKS_MAX

    def saved(self) -> None:
        """Take note that all of it is part of a save."""
        self.changed = False
        self.passed = 0
        self._looks = 0

    def end(self) -> None:
        """Let go of the lanes, which refer to this."""
        self.lanes = {}

    def position(self) -> dict[int, int]:
        """Return the first row of each shard that is not done."""
        return {shard: lane.position() for shard, lane in self.lanes.items()}

    def done(self) -> dict[int, list[int]]:
        """Return the rows behind the position that are done, in order."""
        found = {shard: lane.done_rows() for shard, lane in self.lanes.items()}
        return {shard: rows for shard, rows in found.items() if rows}
