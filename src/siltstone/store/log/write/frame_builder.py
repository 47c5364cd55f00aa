"""Turn the calls of one flush into the rows of one frame, grouped by stream.

Invariants: all rows of a call are in the frame, or none; a bad topic fails only its own call and
does not change the structure; rows keep their order of arrival within a stream.

A builder has a structure of its own, apart from the published one that readers know. After a failed
flush the builder is discarded, and a new one is made from the published structure.

Topics of the current frame are in a dictionary. For another topic, the stream is looked up in a
cache of common topics, then by walking the structure. If topics rarely repeat, the cache costs more
than the walk, and some frames skip it. Places and streams are numbers, not objects: thousands of
short-lived objects for each frame would trigger the garbage collector again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mypy_extensions import i32, i64

from siltstone.errors import InvalidTopicError, SiltstoneError, UsageError
from siltstone.rows.batch import RowBatch
from siltstone.store.segment.body import StreamRows
from siltstone.store.segment.frame import PRODUCER
from siltstone.store.segment.writer import Room
from siltstone.store.writer.queue import Queued
from siltstone.store.writer.replication.messages import ProducerCall
from siltstone.topic.grammar import check_topic
from siltstone.topic.structure import Stream, Structure

NO_PRODUCER: Final = b""
# The approximate bytes of a row in memory besides its columns.
ROW_OVERHEAD: Final = 16
# The cache of common topics is cleared after this many misses for each topic of its capacity.
_MISSES_A_TURN: Final = 4
# The number of frames that skip the cache after it had less than half of the topics of a frame.
_FRAMES_UNAIDED: Final = 15
_FEW_TOPICS: Final = 100
_TOPIC_MASK: Final = (1 << 32) - 1


class Block:
    """Rows of one topic as columns: i32 offsets, one for each row plus one, and the values.

    If there is a room, the values are in the room instead.
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


class Call(Queued):
    """One append to one shard; its rows are stored together or not at all."""

    def __init__(self, batch: RowBatch) -> None:
        super().__init__()
        self.batch = batch
        self.shard = 0
        self.producer = NO_PRODUCER
        self.sequence = 0
        self.wants_sync = True
        self.error: SiltstoneError | None = None
        # Used instead of the batch if it is set.
        self.block: Block | None = None
        # Identifies the call in a replicated database: it is stored once, however often it is sent.
        self.claim: ProducerCall | None = None

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.batch.topics) if self.block is None else self.block.count

    def item_count(self) -> int:
        """Return the number of rows."""
        return self.row_count


def claims_of(calls: list[Call]) -> list[ProducerCall]:
    """Return the claims of the calls that are stored."""
    return [call.claim for call in calls if call.claim is not None and call.error is None]


def has_sound_topics(call: Call) -> bool:
    """Return whether all topics of a call are valid, so that a builder accepts it."""
    if call.batch.checked:
        return True
    try:
        for topic in call.batch.topics:
            check_topic(topic)
    except InvalidTopicError:
        return False
    return True


def measure_column(column: Sequence[object], name: str, count: int, size_max: int) -> int:
    """Check that a column has `count` byte strings of at most `size_max`; return their total size.

    Raises: UsageError, naming the row.
    """
    if len(column) != count:
        raise UsageError(f"columns must have the same length: topics={count} {name}={len(column)}")
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
                f"{name} is too large: row={row} size_bytes={len(item)} max={size_max}"
            )


class BuiltFrame:
    """The rows of a frame by stream, with their publishers, flags, edges and producers."""

    def __init__(self, timestamp_us: int) -> None:
        self.timestamp_us = timestamp_us
        self.row_count = 0
        self.streams: list[StreamRows] = []
        self.publishers: list[bytes] = []
        self.flags = 0
        self.edges = b""
        self.producers = b""
        # The bytes of the body before compression; set when it is encoded.
        self.size_bytes = 0


def _stream_id(rows: StreamRows) -> int:
    return rows.stream_id


class FrameBuilder:
    """Builds frames; keeps a structure and a cache of topics between flushes.

    It belongs to the committer of the shard. A place is a number. Its upper half is the index of a
    stream in the frame, in order of first rows. Its lower half, 32 bits, is the index of a topic in
    that stream.
    """

    def __init__(self, structure: Structure, topics_max: int) -> None:
        self.structure = structure
        self._topics_max = topics_max
        # The cache: the stream numbers of common topics.
        self._common: dict[bytes, int] = {}
        self._misses = 0
        self._misses_max = _MISSES_A_TURN * topics_max
        self._unaided = 0
        # The cache lookups for the current frame, and how many of them were hits.
        self._asked = 0
        self._found = 0
        # The state of the current frame. `_met` has the numbers of its streams in the structure.
        # `_at` maps these numbers to indexes in `_streams`, or to -1. `_places` maps topics.
        self._streams: list[StreamRows] = []
        self._met: list[int] = []
        self._at: list[int] = []
        self._places: dict[bytes, int] = {}

    def build(self, calls: list[Call], timestamp_us: int) -> BuiltFrame:
        """Group the rows of all valid calls; the first row gets this time, each next one 1 µs more.

        A call with a bad topic gets its error set and is left out.
        """
        self._forget_frame()
        built = BuiltFrame(timestamp_us)
        accepted: list[Call] = []
        placed: list[list[int]] = []
        wants_places = _differ(calls)
        timestamp = timestamp_us
        for call in calls:
            if call.batch.checked:
                places = self._take_rows(call.batch, timestamp, wants_places)
            else:
                found = self._find_places(call)
                if found is None:
                    continue
                places = found
                _place_rows(self._streams, call, places, timestamp)
            accepted.append(call)
            placed.append(places)
            timestamp += len(call.batch.topics)
        names = _publisher_names(accepted)
        built.publishers = list(names)
        built.flags = _shared_flags(accepted)
        with_properties = False
        for call in accepted:
            if call.batch.properties:
                with_properties = True
        streams = self._streams
        for k in range(len(accepted)):
            call = accepted[k]
            if len(names) > 1:
                _place_publishers(streams, call, placed[k], names)
            if built.flags < 0:
                _place_flags(streams, call, placed[k])
            if with_properties:
                _place_properties(streams, call, placed[k])
        built.streams = sorted(streams, key=_stream_id)
        built.row_count = timestamp - timestamp_us
        built.edges = self.structure.take_pending() if self.structure.has_pending() else b""
        built.producers = _producers(accepted)
        self._weigh_common()
        # Release the memory: a frame is large, and the next one may come much later.
        self._forget_frame()
        return built

    def place(self, topic: bytes) -> tuple[int, bytes]:
        """Return the stream id of a valid topic, and the edges that were learned for it."""
        number = self._find_stream(topic)
        if number < 0:
            number = self._learn_stream(topic)
        edges = self.structure.take_pending() if self.structure.has_pending() else b""
        return self.structure.numbered(number).id, edges

    def _weigh_common(self) -> None:
        """Skip the cache for some frames if it is full and had few of the topics of this frame."""
        if self._unaided:
            self._unaided -= 1
            return
        is_full = len(self._common) >= self._topics_max
        if is_full and self._asked > _FEW_TOPICS and 2 * self._found < self._asked:
            self._unaided = _FRAMES_UNAIDED

    def _forget_frame(self) -> None:
        for number in self._met:
            self._at[number] = -1
        self._streams = []
        self._met = []
        self._places = {}
        self._asked = 0
        self._found = 0

    def _take_rows(self, batch: RowBatch, timestamp_us: int, wants_places: bool) -> list[int]:
        """Add the time, topic and value of each row of a checked batch to its stream, in one walk.

        Return the place of each row if the caller wants it.
        """
        known = self._places
        topics = batch.topics
        values = batch.values
        places: list[int] = []
        timestamp: i64 = timestamp_us
        for i in range(len(topics)):
            place: i64 = known.get(topics[i], -1)
            if place < 0:
                number = self._find_stream(topics[i])
                if number < 0:
                    number = self._learn_stream(topics[i])
                place = self._place(topics[i], number)
            self._streams[place >> 32].add(timestamp, i32(place & _TOPIC_MASK), values[i])
            timestamp += 1
            if wants_places:
                places.append(int(place))
        return places

    def _find_places(self, call: Call) -> list[int] | None:
        """Return the place of each row; if a topic is bad, set the error and return None."""
        known = self._places
        topics = call.batch.topics
        places: list[int] = []
        is_whole = True
        # Check all topics first: a refused call must not change the frame or the structure.
        for i in range(len(topics)):
            place = known.get(topics[i], -1)
            if place < 0:
                is_whole = False
                number = self._find_stream(topics[i])
                if number >= 0:
                    place = _of_stream(number)
                elif not call.batch.checked and not self._is_sound(call, i):
                    return None
            places.append(place)
        if not is_whole:
            for i in range(len(places)):
                place = places[i]
                if place < 0:
                    topic = topics[i]
                    number = self._learn_stream(topic) if place == -1 else _of_stream(place)
                    places[i] = self._place(topic, number)
        return places

    def _is_sound(self, call: Call, row: int) -> bool:
        """Return whether a topic obeys all rules; if not, set the error of the call."""
        try:
            check_topic(call.batch.topics[row])
        except InvalidTopicError as exc:
            rows = call.rows
            call.error = InvalidTopicError(f"{exc}: row={row if rows is None else rows[row]}")
            return False
        return True

    def _place(self, topic: bytes, number: int) -> int:
        """Return the place of a topic of this stream in the frame; assign one if it has none."""
        while len(self._at) <= number:
            self._at.append(-1)
        at: i64 = self._at[number]
        if at < 0:
            at = len(self._streams)
            self._at[number] = int(at)
            self._met.append(number)
            self._streams.append(StreamRows(self.structure.numbered(number).id))
        topics = self._streams[at].topics
        new = int((at << 32) | len(topics))
        place = self._places.setdefault(topic, new)
        if place == new:
            topics.append(topic)
        return place

    def _find_stream(self, topic: bytes) -> int:
        """Return the number of the stream of a topic; -1 if it is new or needs a full check."""
        if self._unaided == 0:
            self._asked += 1
            number = self._common.get(topic, -1)
            if number >= 0:
                self._found += 1
                return number
        stream = self.structure.find_plain(topic)
        if stream is None:
            return -1
        if self._unaided == 0:
            self._remember(topic, stream)
        return stream.number

    def _learn_stream(self, topic: bytes) -> int:
        """Return the number of the stream of a valid topic; learn the topic if it is new."""
        stream = self.structure.learn(topic).stream
        self._remember(topic, stream)
        return stream.number

    def _remember(self, topic: bytes, stream: Stream) -> None:
        """Add a topic to the cache if it has room; after too many misses, clear it first."""
        self._misses += 1
        if len(self._common) < self._topics_max:
            self._common[topic] = stream.number
        elif self._misses > self._misses_max:
            self._common = {topic: stream.number}
            self._misses = 0


def _of_stream(number: int) -> int:
    """Convert a stream number to a number below -1, which is never a place, or back."""
    return -2 - number


def _differ(calls: list[Call]) -> bool:
    """Return whether rows have publishers, flags or properties of their own."""
    for call in calls:
        first = calls[0].batch
        batch = call.batch
        if batch.publishers or batch.properties or batch.publisher != first.publisher:
            return True
        if batch.shared_flags < 0 or batch.shared_flags != first.shared_flags:
            return True
    return False


def _publisher_names(calls: list[Call]) -> dict[bytes, int]:
    """Number the publishers of all calls; return an empty dictionary if all are unknown."""
    names: dict[bytes, int] = {}
    for call in calls:
        publisher = call.batch.publisher
        publishers = call.batch.publishers
        if not publishers:
            if publisher not in names:
                names[publisher] = len(names)
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
        flags = call.batch.shared_flags
        if flags < 0 or (shared >= 0 and flags != shared):
            return -1
        shared = flags
    return shared


def _place_rows(
    streams: list[StreamRows], call: Call, places: list[int], timestamp_us: int
) -> None:
    """Add the time, topic and value of each row to its stream."""
    values = call.batch.values
    timestamp: i64 = timestamp_us
    for i in range(len(places)):
        place: i64 = places[i]
        streams[place >> 32].add(timestamp, i32(place & _TOPIC_MASK), values[i])
        timestamp += 1


def _place_publishers(
    streams: list[StreamRows], call: Call, places: list[int], names: dict[bytes, int]
) -> None:
    publishers = call.batch.publishers
    number = 0 if publishers else names[call.batch.publisher]
    for i in range(len(places)):
        if publishers:
            number = names[publishers[i]]
        place: i64 = places[i]
        streams[place >> 32].publishers.append(number)


def _place_flags(streams: list[StreamRows], call: Call, places: list[int]) -> None:
    flags = call.batch.shared_flags
    is_shared = flags >= 0
    for i in range(len(places)):
        if not is_shared:
            flags = call.batch.flags[i]
        place: i64 = places[i]
        streams[place >> 32].flags.append(flags)


def _place_properties(streams: list[StreamRows], call: Call, places: list[int]) -> None:
    properties = call.batch.properties
    item = b""
    for i in range(len(places)):
        if properties:
            item = properties[i]
        place: i64 = places[i]
        streams[place >> 32].properties.append(item)


def _producers(calls: list[Call]) -> bytes:
    return b"".join(
        [PRODUCER.pack(call.producer, call.sequence) for call in calls if call.producer]
    )
