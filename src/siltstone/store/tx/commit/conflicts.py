"""The recent writes of a shard, to find conflicts with the reads of a transaction. Compiled.

Every write is recorded with the serial of its commit and the half-open range of times that it
changed. A read conflicts if a later commit changed a topic of its filter at a time in its range.
The check is exact: disjoint times of one topic never conflict. A new row conflicts like a changed
one.

Two halves limit the memory and the age of the writes. When the newer half is full or old enough, it
becomes the older half, and the previous older half is forgotten. All writes after `floor` are
remembered. A transaction that began before `floor` must be refused, because the writes that it may
conflict with are unknown.

The writes of a half are numbered, and the writes of each topic form a chain, the last one first. A
read of one topic follows the chain back to the first number after its serial. A read of a filter
scans all numbers from there.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from siltstone.topic.grammar import TopicFilter

NONE: Final = -1


class ReadRange:
    """A read of a transaction in [since, until), of one topic or of the topics of a filter.

    Every topic of the read begins with `prefix`.
    """

    def __init__(
        self, topic: bytes, topic_filter: TopicFilter | None, since_us: int, until_us: int
    ) -> None:
        self.topic = topic
        self.filter = topic_filter
        self.since_us = since_us
        self.until_us = until_us
        self.prefix = topic if topic_filter is None else literal_prefix(topic_filter)

    def __str__(self) -> str:
        """Return the topic or the filter."""
        return self.topic.decode() if self.filter is None else self.filter.text


def exact_topic(topic_filter: TopicFilter) -> bytes:
    """Return the only topic that a filter matches; b"" if the filter has wildcards."""
    levels = topic_filter.levels
    if levels[-1] == b"#" or b"+" in levels:
        return b""
    return b"/".join(levels)


def literal_prefix(topic_filter: TopicFilter) -> bytes:
    """Return the prefix that all topics of a filter with wildcards share."""
    words: list[bytes] = []
    for level in topic_filter.levels:
        if level in (b"+", b"#"):
            break
        words.append(level)
    return b"/".join(words)


class _Half:
    """The writes of one period, in order of serials; a serial may have many writes."""

    def __init__(self, base_serial: int, began_at: float) -> None:
        # The last serial before the recorded ones.
        self.base_serial = base_serial
        self.began_at = began_at
        self.last: dict[bytes, int] = {}
        self.topics: list[bytes] = []
        self.times: list[int] = []
        self.earlier: list[int] = []
        # The ends of the writes that changed a range of times, by the number of the write.
        self.ends: dict[int, int] = {}
        # Each serial, and the number of its first write.
        self.serials: list[int] = []
        self.firsts: list[int] = []

    def first_behind(self, serial: int) -> int:
        """Return the number of the first write with a later serial."""
        if serial <= self.base_serial:
            return 0
        place = bisect_right(self.serials, serial)
        return self.firsts[place] if place < len(self.firsts) else len(self.topics)

    def touches(self, number: int, since_us: int, until_us: int) -> bool:
        """Return whether a write changed a time in [since, until)."""
        time_us = self.times[number]
        if time_us >= since_us:
            return time_us < until_us
        return bool(self.ends) and number in self.ends and self.ends[number] > since_us


class RecentWrites:
    """The recent writes, by topic and by serial. It belongs to the committer of a shard."""

    def __init__(self, writes_max: int, window: float, serial: int, now: float) -> None:
        self._half_max = max(1, writes_max // 2)
        self._window = window
        self._newer = _Half(serial, now)
        self._older = _Half(serial, now)

    def bound(self, writes_max: int, window: float) -> None:
        """Set the limits: about `writes_max` writes in both halves, `window` seconds for each."""
        self._half_max = max(1, writes_max // 2)
        self._window = window

    @property
    def floor(self) -> int:
        """The serial after which every write is remembered."""
        return self._older.base_serial

    def __len__(self) -> int:
        """Return the number of remembered writes."""
        return len(self._newer.topics) + len(self._older.topics)

    def begin(self, serial: int) -> None:
        """Begin to record writes with this serial, which must be above all earlier ones."""
        half = self._newer
        half.serials.append(serial)
        half.firsts.append(len(half.topics))

    def note(self, topic: bytes, time_us: int) -> None:
        """Record that a topic was changed at a time."""
        half = self._newer
        topics = half.topics
        number = len(topics)
        topics.append(topic)
        half.times.append(time_us)
        half.earlier.append(half.last.get(topic, NONE))
        half.last[topic] = number

    def note_range(self, topic: bytes, since_us: int, until_us: int) -> None:
        """Record that a topic was changed in [since, until)."""
        self._newer.ends[len(self._newer.topics)] = until_us
        self.note(topic, since_us)

    def turn(self, serial: int, now: float) -> None:
        """Forget the older half if the newer one is full or old; no later serial has writes yet."""
        newer = self._newer
        full = len(newer.topics) >= self._half_max
        # If the older half is empty, this only raises the floor. That does no harm.
        if full or now - newer.began_at >= self._window:
            self._older = newer
            self._newer = _Half(serial, now)

    def conflicting(self, read: ReadRange, serial: int) -> bytes:
        """Return a topic of a read that was changed after a serial; b"" if there is none."""
        topic = _changed(self._newer, read, serial)
        if not topic and serial < self._newer.base_serial:
            topic = _changed(self._older, read, serial)
        return topic

    def times_of(self, topic: bytes, serial: int) -> list[int]:
        """Return the times at which a topic was changed after a serial, from the newer half."""
        half = self._newer
        first = half.first_behind(serial)
        times: list[int] = []
        number = half.last.get(topic, NONE)
        while number >= first:
            times.append(half.times[number])
            number = half.earlier[number]
        return times

    def topics_of(self, topic_filter: TopicFilter, serial: int) -> list[bytes]:
        """Return the topics of a filter that were changed after a serial, from the newer half."""
        half = self._newer
        prefix = literal_prefix(topic_filter)
        found: dict[bytes, None] = {}
        for number in range(half.first_behind(serial), len(half.topics)):
            topic = half.topics[number]
            if topic.startswith(prefix) and topic not in found and topic_filter.matches(topic):
                found[topic] = None
        return list(found)


def _changed(half: _Half, read: ReadRange, serial: int) -> bytes:
    """Return a topic of a read that was changed after a serial; b"" if there is none."""
    first = half.first_behind(serial)
    topic_filter = read.filter
    if topic_filter is None:
        number = half.last.get(read.topic, NONE)
        while number >= first:
            if half.touches(number, read.since_us, read.until_us):
                return read.topic
            number = half.earlier[number]
        return b""
    for number in range(first, len(half.topics)):
        if half.touches(number, read.since_us, read.until_us):
            topic = half.topics[number]
            if topic.startswith(read.prefix) and topic_filter.matches(topic):
                return topic
    return b""
