"""The view of a transaction: the rows at one moment, with its own changes applied. Compiled.

Invariants: all reads are at the moment of the first one. Every range that a read depended on is
added to the operations, so that the commit can compare it with the writes of other transactions
since.
"""

from __future__ import annotations

from siltstone.clock import Clock
from siltstone.errors import UsageError
from siltstone.store.kv.keys import (
    STATE_KEY,
    TIME_END,
    row_key,
    serial_in,
    time_of,
    times_of_topic,
    timestamp_in,
)
from siltstone.store.kv.slab import Found, KeyValueSlab
from siltstone.store.tx.commit.conflicts import ReadRange
from siltstone.store.tx.operations import Addition, CommitSerial, Operations, Value
from siltstone.topic.grammar import TopicFilter


class TransactionView:
    """The view of one transaction, taken at its first read."""

    def __init__(self, slab: KeyValueSlab, clock: Clock, operations: Operations) -> None:
        self._slab = slab
        self._clock = clock
        self._operations = operations
        self._timed = slab.timed
        self._view = slab.view()
        # Read from the view itself, so that it is of exactly this moment.
        try:
            state = self._view.get(STATE_KEY) or b""
        except BaseException:
            self._view.release()
            raise
        operations.read_serial = serial_in(state)
        # The first time that a commit after this view may assign.
        self._next_us = timestamp_in(state) + 1

    def release(self) -> None:
        """Release the view."""
        self._view.release()

    def get(self, topic: bytes, time_us: int) -> bytes | None:
        """Return the value of a row. Raises: UsageError for a value that is not known yet."""
        operations = self._operations
        own = operations.writes.get((topic, time_us))
        if own is not None:
            return readable(own)
        operations.add_read(ReadRange(topic, None, time_us, time_us + 1))
        if operations.deletions is not None and self._is_deleted(topic, time_us):
            return None
        place = self._slab.place(topic)
        if place is None:
            return None
        return self._view.get(row_key(place, time_us, self._timed))

    def newest(self, topic: bytes) -> bytes | None:
        """Return the value of the row of a topic with the greatest time."""
        operations = self._operations
        if operations.deletions is not None or any(row[0] == topic for row in operations.writes):
            found = self.read(topic, None, 0, TIME_END)
            return found[-1].value if found else None
        place = self._slab.place(topic)
        last = None
        if place is not None:
            keys = times_of_topic(place, 0, TIME_END, self._timed)
            last = self._view.last(keys.start, keys.stop)
        # Changes of older rows do not change which row is the newest.
        since_us = 0 if last is None else time_of(last[0], self._timed)
        operations.add_read(ReadRange(topic, None, since_us, TIME_END))
        return None if last is None else last[1]

    def read(
        self, topic: bytes, topic_filter: TopicFilter | None, since_us: int, until_us: int
    ) -> list[Found]:
        """Return the rows of a topic, or of a filter, by topic and then by time."""
        operations = self._operations
        operations.add_read(ReadRange(topic, topic_filter, since_us, until_us))
        if topic_filter is None:
            found = list(self._slab.topic_rows(self._view, topic, since_us, until_us))
        else:
            found = list(self._slab.rows(self._view, topic_filter, since_us, until_us))
        if operations.deletions is not None:
            found = [row for row in found if not self._is_deleted(row.topic, row.time_us)]
        if operations.writes:
            own = self._own(topic, topic_filter, since_us, until_us)
            found = [row for row in found if (row.topic, row.time_us) not in own]
            found += own.values()
        found.sort(key=_in_order)
        return found

    def settled(self, time_us: int) -> int:
        """Return a time as far as it is known now: a time that the commit assigns is not before
        now, nor before the times that earlier commits assigned.
        """
        return max(self._next_us, self._clock.now_us()) if time_us < 0 else time_us

    def _is_deleted(self, topic: bytes, time_us: int) -> bool:
        """Return whether the transaction deletes a stored row."""
        for deletion in self._operations.deletions or ():
            until_us = self.settled(deletion.until_us)
            if deletion.since_us <= time_us < until_us and deletion.filter.matches(topic):
                return True
        return False

    def _own(
        self, topic: bytes, topic_filter: TopicFilter | None, since_us: int, until_us: int
    ) -> dict[tuple[bytes, int], Found]:
        """Return the transaction's own writes in the range that is read."""
        own: dict[tuple[bytes, int], Found] = {}
        for (written, time_us), value in self._operations.writes.items():
            wanted = written == topic if topic_filter is None else topic_filter.matches(written)
            if wanted and since_us <= self.settled(time_us) < until_us:
                own[written, time_us] = Found(written, time_us, readable(value), 0, b"")
        return own


def _in_order(row: Found) -> tuple[bytes, int]:
    """Return the sort key of a row; rows without a time yet come last, in their order."""
    return row.topic, TIME_END - row.time_us if row.time_us < 0 else row.time_us


def readable(value: Value) -> bytes:
    """Return a value of the transaction's own. Raises: UsageError for one that is not known yet."""
    if isinstance(value, CommitSerial):
        raise UsageError("the serial of the commit cannot be read before the commit")
    if isinstance(value, Addition):
        raise UsageError("a count that this transaction adds to cannot be read before the commit")
    return value
