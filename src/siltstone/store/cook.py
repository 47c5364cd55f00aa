"""Turn the calls of one flush into the rows of one frame, grouped by stream.

Invariants: a call is in the frame whole or not at all; a bad topic fails its own call and teaches
the structure nothing; rows keep their order of arrival within a stream. What was learned on the way
stays pending in the structure until the frame is durable: after a failed flush the cook is thrown
away and made anew from what was published.

Common topics are found in a dictionary. It has two halves, so that it can forget: when the newer is
full it becomes the older, and the older is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from mypy_extensions import i64

from siltstone.errors import InvalidTopicError, SiltstoneError, UsageError
from siltstone.segment.body import StreamRows
from siltstone.segment.frame import PRODUCER
from siltstone.segment.room import Room
from siltstone.topic.grammar import TOPIC_SIZE_MAX, check_topic
from siltstone.topic.structure import Structure

NO_PRODUCER: Final = b""
# What a row takes beside its columns, about.
ROW_OVERHEAD: Final = 16
_MISSES_A_TURN: Final = 4


class Block:
    """Rows of one topic that come laid out: i32 offsets, one a row and one more, and the values; or
    the room that these were put into.
    """

    def __init__(self, topic: bytes, offsets: bytes, values: bytes, room: Room | None) -> None:
        self.topic = topic
        self.offsets = offsets
        self.values = values
        self.room = room

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.offsets) // 4 - 1


class Call:
    """One append to one shard, as parallel lists; its rows are stored together or not at all."""

    def __init__(self, topics: list[bytes], values: list[bytes], publisher: bytes) -> None:
        self.topics = topics
        self.values = values
        self.publisher = publisher
        self.publishers: list[bytes] | None = None
        self.flags = 0
        self.flag_list: list[int] | None = None
        self.properties: list[bytes] | None = None
        self.producer = NO_PRODUCER
        self.sequence = 0
        self.wants_sync = True
        # The numbers that the rows had in the call that was split by shard.
        self.rows: list[int] | None = None
        self.size_bytes = 0
        self.error: SiltstoneError | None = None
        # In place of the lists.
        self.block: Block | None = None

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.topics) if self.block is None else self.block.count

    def measure(self, value_bytes_max: int) -> None:
        """Check the shape of the columns and set the size. Raises: UsageError, naming the row."""
        count = len(self.topics)
        total = measure_column(self.topics, "topics", count, TOPIC_SIZE_MAX)
        total += measure_column(self.values, "values", count, value_bytes_max)
        if self.publishers is not None:
            total += measure_column(self.publishers, "publishers", count, TOPIC_SIZE_MAX)
        if self.properties is not None:
            total += measure_column(self.properties, "properties", count, value_bytes_max)
        self.size_bytes = total + ROW_OVERHEAD * count


def measure_column(column: Sequence[object], name: str, count: int, size_max: int) -> int:
    """Check that a column has count byte strings of a bearable size; return their size in all.

    Raises: UsageError, naming the row.
    """
    if len(column) != count:
        raise UsageError(f"columns differ in length: topics={count} {name}={len(column)}")
    total = 0
    for item in column:
        if not isinstance(item, bytes) or len(item) > size_max:
            _refuse_item(column, name, size_max)
        else:
            total += len(item)
    return total


def _refuse_item(column: Sequence[object], name: str, size_max: int) -> None:
    for row, item in enumerate(column):
        if not isinstance(item, bytes):
            raise UsageError(f"{name} must be bytes: row={row} type={type(item).__name__}")
        if len(item) > size_max:
            raise UsageError(
                f"{name} has too large an item: row={row} size_bytes={len(item)} max={size_max}"
            )


class Cooked:
    """The rows of a frame, by stream, and what goes with them."""

    def __init__(self, timestamp_us: int) -> None:
        self.timestamp_us = timestamp_us
        self.row_count = 0
        self.streams: list[StreamRows] = []
        self.publishers: list[bytes] = []
        self.flags = 0
        self.edges = b""
        self.producers = b""
        # What the frame takes before compression; known when it is encoded.
        self.size_bytes = 0


class _Place:
    """Where the rows of a topic go."""

    def __init__(self, rows: StreamRows) -> None:
        self.rows = rows
        # The frame in which the topic was last met, and its number among the stream's topics there.
        self.frame = -1
        self.number = 0


def _stream_id(rows: StreamRows) -> int:
    return rows.stream_id


class Cook:
    """Holds what cooking remembers from flush to flush; belongs to the shard's committer."""

    def __init__(self, structure: Structure, topics_max: int) -> None:
        self.structure = structure
        self._half = max(1, topics_max // 2)
        self._newer: dict[bytes, _Place] = {}
        self._older: dict[bytes, _Place] = {}
        self._rows: dict[int, StreamRows] = {}
        self._frame = 0
        self._misses = 0

    def cook(self, calls: list[Call], timestamp_us: int) -> Cooked:
        """Group the rows of all sound calls, the first row at this time, each later one a µs later.

        A call with a bad topic gets its error set and is left out.
        """
        cooked = Cooked(timestamp_us)
        self._frame += 1
        accepted: list[Call] = []
        placed: list[list[_Place]] = []
        for call in calls:
            places = self._places(call)
            if places is not None:
                accepted.append(call)
                placed.append(places)
        names = _publisher_names(accepted)
        cooked.publishers = list(names)
        cooked.flags = _shared_flags(accepted)
        with_properties = False
        for call in accepted:
            if call.properties is not None:
                with_properties = True
        touched: list[StreamRows] = []
        timestamp = timestamp_us
        for k in range(len(accepted)):
            call = accepted[k]
            _place_rows(call, placed[k], timestamp, self._frame, touched)
            _place_extras(call, placed[k], names, len(names) > 1, cooked.flags < 0, with_properties)
            timestamp += len(call.topics)
        touched.sort(key=_stream_id)
        cooked.streams = touched
        cooked.row_count = timestamp - timestamp_us
        cooked.edges = self.structure.take_pending() if self.structure.has_pending() else b""
        cooked.producers = _producers(accepted)
        return cooked

    def place(self, topic: bytes) -> tuple[int, bytes]:
        """Return the stream of a sound topic, and the edges that were learned for it."""
        rows = self._place(topic).rows
        edges = self.structure.take_pending() if self.structure.has_pending() else b""
        return rows.stream_id, edges

    def forget_rows(self, cooked: Cooked) -> None:
        """Let go of the rows of a frame that was written."""
        for rows in cooked.streams:
            rows.clear()

    def _places(self, call: Call) -> list[_Place] | None:
        """Find the place of each row; None, with the error set, when a topic is bad."""
        newer = self._newer
        topics = call.topics
        places: list[_Place | None] = []
        missing: list[int] = []
        for i in range(len(topics)):
            place = newer.get(topics[i])
            if place is None:
                missing.append(i)
            places.append(place)
        if missing:
            # All are checked before any is learned: a refused call must teach nothing.
            for i in missing:
                if not _is_plain(topics[i]) and not self._is_sound(call, i):
                    return None
            for i in missing:
                places[i] = self._place(topics[i])
        return cast("list[_Place]", places)

    def _is_sound(self, call: Call, row: int) -> bool:
        """Check a topic by all rules; set the call's error where it breaks one."""
        try:
            check_topic(call.topics[row])
        except InvalidTopicError as exc:
            rows = call.rows
            call.error = InvalidTopicError(f"{exc}: row={row if rows is None else rows[row]}")
            return False
        return True

    def _place(self, topic: bytes) -> _Place:
        place = self._newer.get(topic)
        if place is not None:
            return place
        place = self._older.get(topic)
        if place is None:
            self._misses += 1
            stream = self.structure.find(topic)
            if stream is None:
                stream = self.structure.learn(topic).stream
            stream_id = stream.id
            rows = self._rows.get(stream_id)
            if rows is None:
                rows = StreamRows(stream_id)
                self._rows[stream_id] = rows
            place = _Place(rows)
        self._remember(topic, place)
        return place

    def _remember(self, topic: bytes, place: _Place) -> None:
        """Keep a place while there is room; make room only now and then.

        Where topics hardly ever return, remembering each would cost more than finding it anew.
        """
        if len(self._newer) >= self._half:
            if self._older and self._misses < _MISSES_A_TURN * self._half:
                return
            self._older = self._newer
            self._newer = {}
            self._misses = 0
        self._newer[topic] = place


def _is_plain(topic: bytes) -> bool:
    """Say whether a topic is of the common kind that needs no closer look: ASCII, no wildcard."""
    length: i64 = len(topic)
    if length == 0 or length > TOPIC_SIZE_MAX:
        return False
    for i in range(length):
        code: i64 = topic[i]
        # A set of boxed numbers would cost more than the whole loop.
        if code >= 0x80 or code == 0 or code == 0x2B or code == 0x23:  # noqa: PLR1714
            return False
    return True


def _publisher_names(calls: list[Call]) -> dict[bytes, int]:
    """Number the publishers of all calls; nothing is numbered where all are unknown."""
    names: dict[bytes, int] = {}
    for call in calls:
        publishers = call.publishers
        if publishers is None:
            if call.publisher not in names:
                names[call.publisher] = len(names)
        else:
            for name in publishers:
                if name not in names:
                    names[name] = len(names)
    if len(names) == 1 and b"" in names:
        names.clear()
    return names


def _shared_flags(calls: list[Call]) -> int:
    """Return the flags that all rows share, or -1."""
    shared = -1
    for call in calls:
        if call.flag_list is not None or (shared >= 0 and call.flags != shared):
            return -1
        shared = call.flags
    return shared


def _place_rows(
    call: Call, places: list[_Place], timestamp_us: int, frame: int, touched: list[StreamRows]
) -> None:
    """Hand each row's time, topic and value to its stream."""
    values = call.values
    topics = call.topics
    timestamp = timestamp_us
    for i in range(len(places)):
        place = places[i]
        rows = place.rows
        if place.frame != frame:
            place.frame = frame
            place.number = len(rows.topics)
            if place.number == 0:
                touched.append(rows)
            rows.topics.append(topics[i])
        rows.timestamps.append(timestamp)
        rows.topic_index.append(place.number)
        rows.values.append(values[i])
        timestamp += 1


def _place_extras(
    call: Call,
    places: list[_Place],
    names: dict[bytes, int],
    with_publishers: bool,
    with_flags: bool,
    with_properties: bool,
) -> None:
    """Hand over the columns that not every frame has."""
    if with_publishers:
        publishers = call.publishers
        number = 0 if publishers is not None else names[call.publisher]
        for i in range(len(places)):
            if publishers is not None:
                number = names[publishers[i]]
            places[i].rows.publishers.append(number)
    if with_flags:
        flag_list = call.flag_list
        flags = call.flags
        for i in range(len(places)):
            if flag_list is not None:
                flags = flag_list[i]
            places[i].rows.flags.append(flags)
    if with_properties:
        properties = call.properties
        item = b""
        for i in range(len(places)):
            if properties is not None:
                item = properties[i]
            places[i].rows.properties.append(item)


def _producers(calls: list[Call]) -> bytes:
    return b"".join(
        [PRODUCER.pack(call.producer, call.sequence) for call in calls if call.producer]
    )
