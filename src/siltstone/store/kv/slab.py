"""The rows of one slab as its readers see them: a family of keys, and the structure of its topics.

The structure here contains everything that is committed or being committed; the committer learns in
a structure of its own. A topic never changes its stream, so a cached place of a topic is valid for
the life of the slab and is read without a lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from threading import Lock
from typing import Final, NamedTuple

from siltstone.errors import NotFoundError, RetryError, SlabDroppedError
from siltstone.store.kv.api import Engine, View
from siltstone.store.kv.keys import (
    KeyRange,
    after_topic,
    row_key,
    row_prefix,
    rows_of_stream,
    stream_of,
    time_of,
    times_of_topic,
    varying_of,
)
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Match, Stream, Structure

# The first read of a scan is small, because most callers need few rows.
_FIRST_LIMIT: Final = 64
_LIMIT: Final = 1024
# The first read after rows were skipped.
_SKIP_LIMIT: Final = 16


class Found(NamedTuple):
    """A row as it is stored."""

    topic: bytes
    time_us: int
    value: bytes
    stream_id: int
    key: bytes


class KeyValueSlab:
    """One generation of one shard, for any number of reading threads."""

    def __init__(
        self, engine: Engine, family: str, structure: Structure, *, timed: bool, topics_max: int
    ) -> None:
        self.engine = engine
        self.family = family
        self.timed = timed
        # The key prefixes of topics that are known to be valid and to have a stream.
        self.places: dict[bytes, bytes] = {}
        # Its rows are being replaced by a copy from another site, which has a slab of its own.
        self.is_replaced = False
        self._topics_max = topics_max
        self._structure = structure
        self._lock = Lock()

    def view(self) -> View:
        """Return a view of the slab at this moment. Raises: SlabDroppedError, RetryError."""
        try:
            view = self.engine.view(self.family)
        except NotFoundError as exc:
            if self.is_replaced:
                raise _replaced() from exc
            raise SlabDroppedError("the slab was dropped with its rows") from exc
        # Set before the first row is removed, so a view that was taken before is whole.
        if self.is_replaced:
            view.release()
            raise _replaced()
        return view

    def publish(self, edges: bytes, places: dict[bytes, bytes]) -> None:
        """Make the edges of a commit known to readers, before its rows become visible."""
        if edges:
            with self._lock:
                self._structure.apply(edges)
        self._remember(places)

    def place(self, topic: bytes) -> bytes | None:
        """Return the key prefix of a topic; None if it was never written."""
        place = self.places.get(topic)
        if place is not None:
            return place
        with self._lock:
            placement = self._structure.lookup(topic)
        if placement is None:
            return None
        place = row_prefix(placement.stream.id, placement.varying)
        self._remember({topic: place})
        return place

    def match(self, topic_filter: TopicFilter) -> list[Match]:
        """Return the streams that may hold topics of a filter, in order of their ids."""
        with self._lock:
            matches = self._structure.match(list(topic_filter.levels))
        return sorted(matches, key=lambda match: match.stream.id)

    def held(self, view: View, topic_filter: TopicFilter) -> list[Match]:
        """Return the streams that may hold topics of a filter and have rows, in order of their
        ids.
        """
        found = []
        for match in self.match(topic_filter):
            rows = rows_of_stream(match.stream.id, [])
            if view.items(rows.start, rows.stop, 1):
                found.append(match)
        return found

    def stream(self, stream_id: int) -> Stream | None:
        """Return a stream by its id."""
        with self._lock:
            return self._structure.stream(stream_id)

    def export(self) -> bytes:
        """Return the whole structure as edges."""
        with self._lock:
            return self._structure.export()

    def rows(
        self,
        view: View,
        topic_filter: TopicFilter,
        since_us: int,
        until_us: int,
        first_topic: bytes = b"",
    ) -> Iterator[Found]:
        """Yield the matching rows in [since, until); in each stream by topic, then by time.

        In a stream that the first topic would belong to, the topics before it are left out.
        """
        for match in self.match(topic_filter):
            start = _first_key(match.stream, first_topic) if first_topic else b""
            yield from self.scan(view, match, since_us, until_us, start)

    def topic_rows(self, view: View, topic: bytes, since_us: int, until_us: int) -> Iterator[Found]:
        """Yield the rows of one topic in [since, until), in order of time."""
        place = self.place(topic)
        if place is None:
            return
        stream_id = stream_of(place)
        bounds = times_of_topic(place, since_us, until_us, self.timed)
        position, limit = bounds.start, _FIRST_LIMIT
        while True:
            items = view.items(position, bounds.stop, limit)
            for key, value in items:
                yield Found(topic, time_of(key, self.timed), value, stream_id, key)
            if len(items) < limit:
                return
            position, limit = items[-1][0] + b"\x00", _LIMIT

    def scan(
        self, view: View, match: Match, since_us: int, until_us: int, start: bytes = b""
    ) -> Iterator[Found]:
        """Yield the matching rows of one stream, from a key on."""
        timed = self.timed
        words = match.constraints if any(w is not None for w in match.constraints) else None
        bounds = self._bounds(match, since_us, until_us)
        position = max(bounds.start, start)
        stream_id, topics = match.stream.id, _Topics(match.stream)
        limit, found = _FIRST_LIMIT, 0
        while True:
            items = view.items(position, bounds.stop, limit)
            number = 0
            while number < len(items):
                key, value = items[number]
                number += 1
                time_us = time_of(key, timed)
                varying = varying_of(key, timed)
                position = b"" if words is None else skip_key(stream_id, varying, words)
                if not position:
                    if since_us <= time_us < until_us:
                        found += 1
                        yield Found(topics.of(varying), time_us, value, stream_id, key)
                        continue
                    if time_us >= until_us:
                        position = after_topic(key, timed)
                    else:
                        position = row_key(row_prefix(stream_id, varying), since_us, timed)
                # Skip the rows before the next possible match.
                number = bisect_left(items, position, number, key=_key_of)
            if position and items and position > items[-1][0]:
                # About as many rows may follow there as matched here.
                limit = min(max(_SKIP_LIMIT, 2 * found), _LIMIT)
            elif len(items) < limit:
                return
            else:
                position, limit = items[-1][0] + b"\x00", min(4 * limit, _LIMIT)
            found = 0

    def _bounds(self, match: Match, since_us: int, until_us: int) -> KeyRange:
        """Return the range of keys that contains everything that a filter selects in a stream."""
        words: list[bytes] = []
        for word in match.constraints:
            if word is None:
                break
            words.append(word)
        if len(words) == match.stream.varying_count:
            prefix = row_prefix(match.stream.id, b"/".join(words))
            return times_of_topic(prefix, since_us, until_us, self.timed)
        return rows_of_stream(match.stream.id, words)

    def _remember(self, places: dict[bytes, bytes]) -> None:
        known = self.places
        if len(known) + len(places) > self._topics_max:
            # Replaced, not cleared: other threads may be reading it.
            self.places = dict(places)
        else:
            known.update(places)


def _replaced() -> RetryError:
    return RetryError("the shard is being replaced by a copy from another site, try again")


class _Topics:
    """Inserts the varying parts of topics into the pattern of their stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._varying: bytes | None = None
        self._topic = b""

    def of(self, varying: bytes) -> bytes:
        # The rows of a topic are consecutive.
        if varying != self._varying:
            self._topic = topic_in(self._stream, varying)
            self._varying = varying
        return self._topic


def topic_in(stream: Stream, varying: bytes) -> bytes:
    """Return the topic of a stream with these varying words."""
    words = iter(varying.split(b"/"))
    return b"/".join([next(words) if level == b"+" else level for level in stream.levels])


def _first_key(stream: Stream, topic: bytes) -> bytes:
    """Return the key prefix of a topic in a stream, b"" if it cannot be in this stream."""
    words = topic.split(b"/")
    if len(words) != len(stream.levels):
        return b""
    varying: list[bytes] = []
    for word, level in zip(words, stream.levels, strict=True):
        if level == b"+":
            varying.append(word)
        elif level != word:
            return b""
    return row_prefix(stream.id, b"/".join(varying))


def skip_key(stream_id: int, varying: bytes, constraints: list[bytes | None]) -> bytes:
    """Return the lowest key behind a row that can match the words of a filter, b"" if the row
    itself matches.

    The keys of one word at a level are consecutive, among those with the same words before it.
    """
    words = varying.split(b"/")
    stream = row_prefix(stream_id, b"")[:-1]
    for level, wanted in enumerate(constraints):
        if wanted is not None and words[level] != wanted:
            last = level + 1 == len(words)
            before = b"".join([word + b"/" for word in words[:level]])
            # A word ends with a slash or, at the last level, with a zero byte.
            end = b"\x00" if last else b"/"
            if before + words[level] + end < before + wanted + end:
                return stream + before + wanted + end
            # Behind all keys with the same words before this level; no word has the byte ff.
            return stream + (before[:-1] + b"0" if level else b"\xff")
    return b""


def _key_of(item: tuple[bytes, bytes]) -> bytes:
    return item[0]
