from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from pathlib import PurePath
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.errors import CorruptionError, UsageError
from siltstone.store.log.iterator import StreamIterator, StreamRef
from siltstone.store.log.read.pieces import SCHEMA, Batch, Piece, Row
from siltstone.store.log.write.frame_builder import BuiltFrame, Call, FrameBuilder
from siltstone.store.segment.body import StreamRows, encode_rows
from siltstone.store.segment.frame import (
    EDGES,
    LZ4,
    PACKED,
    PLAIN,
    PRODUCERS,
    ROWS,
    ZSTD,
    FrameHeader,
    crc_matches,
    decode_header,
)
from siltstone.store.segment.index import SegmentIndex, decode_index, encode_index
from siltstone.store.slab.manifest import Manifest, SlabId, SlabRecord, SlabState
from siltstone.store.slab.settings import COMPRESSIONS, SHARD_KEYS, DatabaseSettings
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Stream, Structure
from tests.support.frames import (
    NOW_US,
    SEED,
    StoredRow,
    built_frame,
    frame_bytes,
    packed_frame,
    rows_in,
    view_of,
)
from tests.support.row_batches import row_batch

PATH = PurePath("/file")
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
# Arrow's buffers and our padding meet their edges around multiples of eight.
PAYLOADS = st.binary(max_size=20) | st.integers(0, 300).map(bytes)
WORDS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0+#/"), max_size=5
) | st.sampled_from(["a", "b", "$x", "größe", "温度", "😀", ""])
TOPICS = st.lists(WORDS, min_size=1, max_size=4).map("/".join).filter(bool)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
COMPRESSED = st.sampled_from([PLAIN, ZSTD, LZ4])
THRESHOLDS = st.lists(st.sampled_from([-1, 0, 1, 2]), min_size=1, max_size=3)


class Sent(NamedTuple):
    """A row as its publisher sent it."""

    topic: str
    value: bytes
    publisher: str
    flags: int
    properties: bytes


@st.composite
def calls(draw: st.DrawFn) -> tuple[Call, list[Sent]]:
    """Draw a call with its columns shared, given by row or absent, and the rows that it means."""
    topics = draw(st.lists(TOPICS, min_size=1, max_size=12))
    count = len(topics)
    values = draw(st.lists(PAYLOADS, min_size=count, max_size=count))
    publisher = draw(NAMES)
    batch = row_batch([topic.encode() for topic in topics], values, publisher.encode())
    call = Call(batch)
    publishers = [publisher] * count
    if draw(st.booleans()):
        publishers = draw(st.lists(NAMES, min_size=count, max_size=count))
        batch.publishers = [name.encode() for name in publishers]
    batch.shared_flags = draw(st.sampled_from([0, 1, 6, 255]))
    flags = [batch.shared_flags] * count
    if draw(st.booleans()):
        flags = batch.flags = draw(st.lists(st.integers(0, 255), min_size=count, max_size=count))
        batch.shared_flags = -1
    properties = [b""] * count
    if draw(st.booleans()):
        properties = batch.properties = draw(st.lists(PAYLOADS, min_size=count, max_size=count))
    # Checked batches are grouped in one walk, others in two.
    batch.checked = draw(st.booleans())
    if draw(st.booleans()):
        call.producer, call.sequence = draw(st.binary(min_size=16, max_size=16)), draw(U64)
    sent = [Sent(*row) for row in zip(topics, values, publishers, flags, properties, strict=True)]
    return call, sent


FLUSHES = st.lists(calls(), min_size=1, max_size=4)


def sent_rows(flush: list[tuple[Call, list[Sent]]]) -> list[Sent]:
    return [row for _, rows in flush for row in rows]


def in_order_of_arrival(rows: list[StoredRow]) -> list[Sent]:
    arrived = sorted(rows, key=lambda row: row.timestamp_us)
    return [Sent(row.topic, row.value, row.publisher, row.flags, row.properties) for row in arrived]


class TestRows:
    @given(st.lists(FLUSHES, min_size=1, max_size=3), THRESHOLDS, st.integers(2, 20))
    def test_checked_rows_make_the_same_frames_as_rows_to_check(
        self,
        flushes: list[list[tuple[Call, list[Sent]]]],
        thresholds: list[int],
        topics_max: int,
    ) -> None:
        frames: dict[bool, list[bytes]] = {True: [], False: []}
        for is_checked, made in frames.items():
            builder = FrameBuilder(Structure(thresholds), topics_max)
            for flush in flushes:
                for call, _ in flush:
                    call.batch.checked = is_checked
                built = builder.build([call for call, _ in flush], NOW_US)
                made.append(frame_bytes(built_frame(built)))
        assert frames[True] == frames[False]

    @given(st.lists(FLUSHES, min_size=1, max_size=3), THRESHOLDS, COMPRESSED, st.integers(2, 20))
    def test_rows_come_back_from_their_frames_as_they_were_sent(
        self,
        flushes: list[list[tuple[Call, list[Sent]]]],
        thresholds: list[int],
        compression: int,
        topics_max: int,
    ) -> None:
        builder = FrameBuilder(Structure(thresholds), topics_max)
        for number, flush in enumerate(flushes):
            timestamp_us = NOW_US + 1000 * number
            built = builder.build([call for call, _ in flush], timestamp_us)
            frame = view_of(frame_bytes(built_frame(built, serial=2**63, compression=compression)))
            rows = rows_in(frame)
            expected = sent_rows(flush)
            assert in_order_of_arrival(rows) == expected
            assert sorted(row.timestamp_us for row in rows) == list(
                range(timestamp_us, timestamp_us + len(expected))
            )
            assert [row.serial for row in rows] == list(range(2**63, 2**63 + len(expected)))

    @given(FLUSHES, THRESHOLDS, COMPRESSED)
    def test_rows_of_a_stream_stand_together_in_order_of_arrival(
        self, flush: list[tuple[Call, list[Sent]]], thresholds: list[int], compression: int
    ) -> None:
        structure = Structure(thresholds)
        built = FrameBuilder(structure, 10).build([call for call, _ in flush], NOW_US)
        rows = rows_in(view_of(frame_bytes(built_frame(built, compression=compression))))
        assert rows == sorted(rows, key=lambda row: (row.stream_id, row.timestamp_us))
        placements = {row.topic: structure.lookup(row.topic.encode()) for row in rows}
        assert {row.topic: row.stream_id for row in rows} == {
            topic: placement.stream.id
            for topic, placement in placements.items()
            if placement is not None
        }

    @given(FLUSHES, THRESHOLDS, COMPRESSED)
    def test_the_edges_of_a_frame_name_the_streams_of_its_rows(
        self, flush: list[tuple[Call, list[Sent]]], thresholds: list[int], compression: int
    ) -> None:
        built = FrameBuilder(Structure(thresholds), 10).build([call for call, _ in flush], NOW_US)
        frame = view_of(frame_bytes(built_frame(built, compression=compression)))
        reader = Structure([-1])
        streams = reader.apply(frame.section(EDGES) or b"")
        assert {stream.id for stream in streams} == {entry[0] for entry in frame.directory()}

    @given(FLUSHES, COMPRESSED)
    def test_the_producers_of_a_frame_come_back(
        self, flush: list[tuple[Call, list[Sent]]], compression: int
    ) -> None:
        built = FrameBuilder(Structure([5]), 10).build([call for call, _ in flush], NOW_US)
        frame = view_of(frame_bytes(built_frame(built, compression=compression)))
        expected = b"".join(
            call.producer + call.sequence.to_bytes(8, "little")
            for call, _ in flush
            if call.producer
        )
        assert bytes(frame.section(PRODUCERS) or b"") == expected

    @given(FLUSHES, THRESHOLDS, COMPRESSED)
    def test_all_columns_of_arrow_say_what_was_sent(
        self, flush: list[tuple[Call, list[Sent]]], thresholds: list[int], compression: int
    ) -> None:
        structure = Structure(thresholds)
        built = FrameBuilder(structure, 10).build([call for call, _ in flush], NOW_US)
        frame = view_of(frame_bytes(built_frame(built, serial=2**40, compression=compression)))
        pieces = []
        for stream_id, first, count, _, _ in frame.directory():
            stream = structure.stream(stream_id)
            assert stream is not None
            pieces.append(
                Piece(
                    slab=SlabId(3, 7), stream=stream, frame=frame, start=first, stop=first + count
                )
            )
        batch = Batch(pieces, built.row_count)
        table = batch.arrow()
        assert table.schema == SCHEMA
        table.validate(full=True)
        expected = [
            Row(
                topic=row.topic,
                value=row.value,
                publisher=row.publisher,
                qos=row.flags & 3,
                retain=bool(row.flags & 4),
                properties=row.properties,
                timestamp_us=row.timestamp_us,
                shard=3,
                generation=7,
                stream=row.stream_id,
                serial=row.serial,
            )
            for row in rows_in(frame)
        ]
        assert batch.rows() == expected
        times = table.column("timestamp").view(pa.int64()).to_pylist()
        assert times == [row.timestamp_us for row in expected]
        columns = table.drop_columns("timestamp").to_pydict()
        assert columns == {
            name: [getattr(row, name) for row in expected]
            for name in SCHEMA.names
            if name != "timestamp"
        }

    @pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 1000, 32_768, 32_769])
    def test_any_number_of_publishers_and_topics_comes_back(self, count: int) -> None:
        sent = [
            Sent(f"t/{number}", b"", f"device-{number % count}", 0, b"")
            for number in (*range(count), 0)
        ]
        call = Call(row_batch([row.topic.encode() for row in sent], [b""] * len(sent), b""))
        call.batch.publishers = [row.publisher.encode() for row in sent]
        built = FrameBuilder(Structure([100, 10]), 100).build([call], NOW_US)
        assert in_order_of_arrival(rows_in(view_of(frame_bytes(built_frame(built))))) == sent

    @given(st.lists(U64, min_size=1, max_size=5, unique=True), COMPRESSED)
    def test_a_stream_may_have_any_id_of_64_bits(self, ids: list[int], compression: int) -> None:
        built = BuiltFrame(NOW_US)
        for number, stream_id in enumerate(sorted(ids)):
            rows = StreamRows(stream_id)
            rows.topics.append(b"t")
            rows.add(NOW_US + number, 0, b"%d" % stream_id)
            built.streams.append(rows)
            built.row_count += 1
        frame = view_of(frame_bytes(built_frame(built, compression=compression)))
        found = {row.stream_id: row.value for row in rows_in(frame)}
        assert found == {stream_id: b"%d" % stream_id for stream_id in ids}
        pieces = [
            Piece(
                slab=SlabId(0, 0),
                stream=Stream(entry[0], [b"t"], special=False),
                frame=frame,
                start=entry[1],
                stop=entry[1] + entry[2],
            )
            for entry in frame.directory()
        ]
        batch = Batch(pieces, len(pieces)).arrow(("stream",))
        assert batch.column("stream").to_pylist() == sorted(ids)


class TestPacked:
    @given(FLUSHES, THRESHOLDS, U64)
    def test_a_packed_frame_means_what_the_frame_with_sections_means(
        self, flush: list[tuple[Call, list[Sent]]], thresholds: list[int], serial: int
    ) -> None:
        built = FrameBuilder(Structure(thresholds), 10).build([call for call, _ in flush], NOW_US)
        packed = frame_bytes(packed_frame(built, serial=serial))
        frame = view_of(packed)
        plain, _ = encode_rows(
            built.streams, built.publishers, built.flags, built.edges, built.producers
        )
        assert bytes(frame.view) == plain
        assert rows_in(frame) == rows_in(view_of(frame_bytes(built_frame(built, serial=serial))))
        assert len(packed) < 64 + len(plain)


class TestFrame:
    @given(FLUSHES, st.sampled_from([PLAIN, ZSTD, LZ4, PACKED]), st.data())
    def test_no_flipped_bit_of_a_frame_goes_unnoticed(
        self, flush: list[tuple[Call, list[Sent]]], compression: int, data: st.DataObject
    ) -> None:
        built = FrameBuilder(Structure([5]), 10).build([call for call, _ in flush], NOW_US)
        if compression == PACKED:
            stored = bytearray(frame_bytes(packed_frame(built)))
        else:
            stored = bytearray(frame_bytes(built_frame(built, compression=compression)))
        # A changed magic or length is found by decoding: here it is the checksum that must tell.
        bit = data.draw(st.integers(12 * 8, len(stored) * 8 - 1))
        length = len(stored)
        header = decode_header(memoryview(bytes(stored)), 0, length)
        assert header is not None
        assert crc_matches(memoryview(bytes(stored)), 0, header, SEED)
        stored[bit // 8] ^= 1 << bit % 8
        assert not crc_matches(memoryview(stored), 0, header, SEED)


class TestIndex:
    @given(
        st.lists(
            st.tuples(
                st.integers(64, 2**20),
                st.dictionaries(U64, st.integers(1, 9), max_size=4),
                st.integers(0, 1000),
            ),
            max_size=8,
        ),
        U32,
        st.binary(max_size=30),
        st.binary(max_size=30),
    )
    def test_an_index_comes_back_from_its_side_file(
        self,
        frames: list[tuple[int, dict[int, int], int]],
        first_serial: int,
        structure: bytes,
        producers: bytes,
    ) -> None:
        index = SegmentIndex(first_serial=first_serial, end_position=4096)
        now_us = NOW_US
        for length, streams, pause_us in frames:
            rows = sum(streams.values())
            now_us += pause_us
            header = FrameHeader(
                length=length,
                kind=ROWS,
                compression=PLAIN,
                section_count=0,
                first_serial=index.next_serial,
                row_count=rows,
                stream_count=0,
                first_timestamp_us=now_us,
                last_timestamp_us=now_us + rows,
                body_bytes=0,
            )
            directory = [(stream, 0, count, 0, 1) for stream, count in sorted(streams.items())]
            index.add(index.end_position, header, directory)
        data = encode_index(index, structure=structure, producers=producers)
        sealed = decode_index(memoryview(data), PATH)
        found = sealed.index
        assert (bytes(sealed.structure), bytes(sealed.producers)) == (structure, producers)
        assert found.summary() == index.summary()
        assert found.stream_rows == index.stream_rows
        assert {stream: list(found.frames_of(stream)) for stream in found.stream_rows} == {
            stream: list(index.frames_of(stream)) for stream in index.stream_rows
        }
        for name in ("positions", "serials", "first_times", "last_times", "row_counts"):
            assert list(getattr(found, name)) == list(getattr(index, name))
        assert encode_index(found, structure=structure, producers=producers) == data


FILTERS = (
    st.tuples(st.lists(WORDS | st.just("+"), max_size=4), st.sampled_from([[], ["#"]]))
    .map(lambda parts: "/".join(parts[0] + parts[1]))
    .filter(lambda text: bool(text) and not text.startswith("$share"))
    .map(TopicFilter.parse)
)
SLABS = st.builds(SlabId, U32, U32)
STREAMS = st.builds(
    StreamRef, database=NAMES, slab=SLABS, stream_id=U64, pattern=NAMES, identity=NAMES
)
ITERATORS = st.builds(
    StreamIterator,
    database=NAMES,
    slab=SLABS,
    stream_id=U64,
    next_serial=U64,
    since_us=I64,
    filter=FILTERS,
    identity=NAMES,
)


class TestSaved:
    @given(STREAMS)
    def test_a_stream_comes_back_from_its_bytes(self, stream: StreamRef) -> None:
        assert StreamRef.from_bytes(stream.to_bytes()) == stream

    @given(ITERATORS)
    def test_an_iterator_comes_back_from_its_bytes(self, iterator: StreamIterator) -> None:
        assert StreamIterator.from_bytes(iterator.to_bytes()) == iterator

    @given(STREAMS)
    def test_every_truncation_of_a_stream_is_refused(self, stream: StreamRef) -> None:
        data = stream.to_bytes()
        for length in range(len(data)):
            with pytest.raises(UsageError):
                StreamRef.from_bytes(data[:length])

    @given(ITERATORS)
    def test_every_truncation_of_an_iterator_is_refused(self, iterator: StreamIterator) -> None:
        data = iterator.to_bytes()
        for length in range(len(data)):
            with pytest.raises(UsageError):
                StreamIterator.from_bytes(data[:length])

    @given(st.binary(max_size=80))
    def test_any_other_bytes_are_refused_as_a_mistake_of_the_caller(self, data: bytes) -> None:
        for noun in (StreamRef, StreamIterator):
            for prefix in (b"", b"SS\1", b"SI\1", b"SS\2", b"SI\2"):
                try:
                    found = noun.from_bytes(prefix + data)
                except UsageError:
                    continue
                assert found.to_bytes() == prefix + data


SECONDS = st.none() | st.floats(0.001, 1e9)
SIZES = st.none() | st.integers(1, 2**60)
SETTINGS = st.builds(
    DatabaseSettings,
    shards=st.integers(1, 4096),
    shard_by=st.sampled_from(SHARD_KEYS),
    thresholds=st.lists(st.integers(-1, 1000), min_size=1, max_size=4).map(tuple),
    segment_bytes=st.integers(16, 1 << 20).map(lambda pages: pages * 4096),
    compression=st.sampled_from(COMPRESSIONS),
    flush_interval=st.floats(0, 3600),
    rotate_seconds=SECONDS,
    rotate_bytes=SIZES,
    retain_seconds=SECONDS,
    retain_bytes=SIZES,
    quota_bytes=SIZES,
)
RECORDS = st.builds(
    SlabRecord,
    shard=U32,
    generation=U32,
    state=st.sampled_from(SlabState),
    since_us=I64,
    until_us=st.none() | I64,
    created_us=I64,
)
ID_OF = attrgetter("id")
MANIFESTS = st.builds(
    Manifest,
    database=NAMES,
    salt=st.integers(0, 2**63 - 1),
    settings=SETTINGS,
    slabs=st.lists(RECORDS, max_size=4, unique_by=ID_OF).map(
        lambda slabs: tuple(sorted(slabs, key=ID_OF))
    ),
    dropping=st.lists(SLABS, max_size=2).map(tuple),
)


class TestManifest:
    @given(MANIFESTS)
    def test_a_manifest_comes_back_from_its_file(self, manifest: Manifest) -> None:
        assert Manifest.decode(manifest.encode(), PATH) == manifest

    @given(MANIFESTS, st.data())
    def test_a_changed_byte_is_refused(self, manifest: Manifest, data: st.DataObject) -> None:
        changed = bytearray(manifest.encode())
        offset = data.draw(st.integers(0, len(changed) - 1))
        changed[offset] ^= data.draw(st.integers(1, 255))
        with pytest.raises(CorruptionError):
            Manifest.decode(bytes(changed), PATH)

    @given(MANIFESTS, RECORDS)
    def test_a_slab_is_in_the_manifest_once_as_given(
        self, manifest: Manifest, record: SlabRecord
    ) -> None:
        changed = manifest.with_slab(record)
        assert [slab for slab in changed.slabs if slab.id == record.id] == [record]
        assert replace(changed, slabs=manifest.slabs) == manifest
