"""The pending changes of a group of transactions, on top of the stored data. Compiled.

A transaction sees the changes of the earlier transactions of its group here, so that all of them
can be stored in one write. Readers do not see these changes. The places of new topics also stay
here until the group is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from siltstone.store.kv.api import View
from siltstone.store.kv.keys import (
    KeyRange,
    place_of,
    row_key,
    row_prefix,
    stream_of,
    times_of_topic,
)
from siltstone.store.kv.slab import Found, KeyValueSlab
from siltstone.store.tx.commit.changes import ChangeList
from siltstone.store.tx.commit.conflicts import RecentWrites, exact_topic
from siltstone.store.tx.operations import COUNT_BYTES, count_in
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Structure

# More rows of one topic than this are deleted as one range, without reading the rest.
_RUN_MAX: Final = 16
# A deletion by wildcards scans the pending changes; with more than this, they are stored first.
_MANY_VALUES: Final = 512


class PendingGroup:
    """The changes of one group; belongs to the committer."""

    def __init__(
        self,
        slab: KeyValueSlab,
        structure: Structure,
        recent: RecentWrites,
        serial: int,
        changes: ChangeList | None,
    ) -> None:
        self._slab = slab
        self._structure = structure
        self._recent = recent
        # All later serials belong to this group.
        self._base_serial = serial
        self._view: View | None = None
        self._timed = slab.timed
        self._known = slab.places
        self.values: dict[bytes, bytes | None] = {}
        self.ranges: list[KeyRange] = []
        self.places: dict[bytes, bytes] = {}
        self.size_bytes = 0
        # All changes in order, if feeds need them; `values` has only the last one of each row.
        self.changes = changes

    def is_large(self) -> bool:
        """Return whether a scan of the pending changes would take too long."""
        return len(self.values) > _MANY_VALUES

    def release(self) -> None:
        """Release the view of the stored data."""
        if self._view is not None:
            self._view.release()
            self._view = None

    def get(self, topic: bytes, time_us: int) -> bytes | None:
        """Return the newest value of a row, pending or stored; None if it does not exist."""
        place = self._known_place(topic)
        if place is None:
            return None
        key = row_key(place, time_us, self._timed)
        if key in self.values:
            return self.values[key]
        for deleted in self.ranges:
            if deleted.start <= key < deleted.stop:
                return None
        return self._slab.engine.get(self._slab.family, key)

    def put(self, topic: bytes, time_us: int, value: bytes) -> None:
        """Set the value of a row."""
        place = self._known.get(topic)
        if place is None:
            place = self._learned_place(topic)
        key = row_key(place, time_us, self._timed)
        self.values[key] = value
        self.size_bytes += len(key) + len(value)
        self._recent.note(topic, time_us)
        if self.changes is not None:
            self.changes.put(topic, time_us, value, stream_of(place))

    def add(self, topic: bytes, amount: int, note: bytes) -> None:
        """Add to the number in a row of a plain map; delete the row if the result is 0."""
        found = self.get(topic, 0)
        count = count_in(found) + amount
        if count != 0:
            self.put(topic, 0, count.to_bytes(COUNT_BYTES, "big", signed=True) + note)
        elif found is not None:
            self._delete_only(topic)

    def delete(self, topic_filter: TopicFilter, since_us: int, until_us: int) -> None:
        """Delete the rows of a filter in [since, until), both stored and pending."""
        topic = exact_topic(topic_filter)
        if topic and not self._timed:
            if since_us <= 0 < until_us and self.get(topic, 0) is not None:
                self._delete_only(topic)
            return
        if topic:
            self._delete_pending(topic, since_us, until_us)
            rows = self._slab.topic_rows(self._stored(), topic, since_us, until_us)
            self._delete_run(rows, since_us, until_us)
            return
        for pending in self._recent.topics_of(topic_filter, self._base_serial):
            self._delete_pending(pending, since_us, until_us)
        for match in self._slab.match(topic_filter):
            start: bytes | None = b""
            while start is not None:
                rows = self._slab.scan(self._stored(), match, since_us, until_us, start)
                start = self._delete_run(rows, since_us, until_us)

    def _delete_only(self, topic: bytes) -> None:
        """Delete the only row of a topic of a plain map. The row must exist."""
        place = self._known_place(topic)
        assert place is not None
        self._delete_row(row_key(place, 0, self._timed), topic, 0)

    def _delete_run(self, rows: Iterator[Found], since_us: int, until_us: int) -> bytes | None:
        """Delete rows one by one; return None when all are deleted.

        If a topic has many rows, delete them as a range and return the end of this range. The
        caller continues its scan there.
        """
        topic, run = b"", 0
        for found in rows:
            if found.topic != topic:
                topic, run = found.topic, 0
            run += 1
            if run > _RUN_MAX:
                deleted = times_of_topic(
                    place_of(found.key, self._timed), since_us, until_us, self._timed
                )
                self.ranges.append(deleted)
                self._recent.note_range(topic, since_us, until_us)
                if self.changes is not None:
                    self.changes.delete(topic, since_us, until_us, found.stream_id)
                return deleted.stop
            if self.values.get(found.key, found.key) is not None:
                self._delete_row(found.key, topic, found.time_us)
        return None

    def _delete_pending(self, topic: bytes, since_us: int, until_us: int) -> None:
        place = self._known_place(topic)
        if place is None:
            return
        for time_us in self._recent.times_of(topic, self._base_serial):
            if since_us <= time_us < until_us:
                key = row_key(place, time_us, self._timed)
                if self.values.get(key) is not None:
                    self._delete_row(key, topic, time_us)

    def _delete_row(self, key: bytes, topic: bytes, time_us: int) -> None:
        self.values[key] = None
        self._recent.note(topic, time_us)
        if self.changes is not None:
            self.changes.delete(topic, time_us, time_us + 1, stream_of(key))

    def _known_place(self, topic: bytes) -> bytes | None:
        place = self.places.get(topic)
        return self._slab.place(topic) if place is None else place

    def _learned_place(self, topic: bytes) -> bytes:
        place = self.places.get(topic)
        if place is None:
            placement = self._structure.learn(topic)
            place = row_prefix(placement.stream.id, placement.varying)
            self.places[topic] = place
        return place

    def _stored(self) -> View:
        if self._view is None:
            self._view = self._slab.view()
        return self._view
