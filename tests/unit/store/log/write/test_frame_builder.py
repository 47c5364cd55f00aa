from __future__ import annotations

import struct

import pytest

from siltstone.errors import InvalidTopicError, UsageError
from siltstone.store.log.write.frame_builder import BuiltFrame, Call, FrameBuilder, measure_column
from siltstone.topic.structure import Structure
from tests.support.frames import (
    NOW_US,
    StoredRow,
    built_frame,
    frame_bytes,
    rows_in,
    view_of,
)
from tests.support.row_batches import row_batch


def new_builder(*thresholds: int, topics_max: int = 1000) -> FrameBuilder:
    return FrameBuilder(Structure(list(thresholds or (100, 10))), topics_max)


def call_of(*topics: str, publisher: str = "", flags: int = 0) -> Call:
    """Return a call whose values are the topics, so that a row tells where it belongs."""
    encoded = [topic.encode() for topic in topics]
    batch = row_batch(encoded, [topic.upper() for topic in encoded], publisher.encode())
    batch.shared_flags = flags
    return Call(batch)


def stored(built: BuiltFrame) -> list[StoredRow]:
    """Return the rows as a reader finds them, in order of arrival."""
    rows = rows_in(view_of(frame_bytes(built_frame(built))))
    return sorted(rows, key=lambda row: row.timestamp_us)


def topics(built: BuiltFrame) -> list[str]:
    return [row.topic for row in stored(built)]


def patterns(builder: FrameBuilder) -> list[bytes]:
    return [stream.pattern for stream in builder.structure.streams()]


def stream_id(builder: FrameBuilder, topic: bytes) -> int:
    placement = builder.structure.lookup(topic)
    assert placement is not None
    return placement.stream.id


class TestRows:
    def test_each_row_gets_the_next_microsecond_in_order_of_arrival(self) -> None:
        built = new_builder().build([call_of("b", "a"), call_of("b")], NOW_US)
        assert [(row.timestamp_us, row.topic) for row in stored(built)] == [
            (NOW_US, "b"),
            (NOW_US + 1, "a"),
            (NOW_US + 2, "b"),
        ]
        assert (built.timestamp_us, built.row_count) == (NOW_US, 3)

    def test_rows_of_a_stream_stand_together_streams_in_order_of_their_ids(self) -> None:
        builder = new_builder()
        built = builder.build([call_of("a", "b", "a", "c", "b")], NOW_US)
        ids = sorted(stream_id(builder, topic) for topic in (b"a", b"b", b"c"))
        assert [rows.stream_id for rows in built.streams] == ids
        in_frame = rows_in(view_of(frame_bytes(built_frame(built))))
        grouped = sorted(in_frame, key=lambda row: (row.stream_id, row.timestamp_us))
        assert in_frame == grouped

    def test_every_row_keeps_its_value(self) -> None:
        built = new_builder().build([call_of("a", "b"), call_of("a")], NOW_US)
        assert [row.value for row in stored(built)] == [b"A", b"B", b"A"]

    def test_topics_of_one_structure_share_a_stream(self) -> None:
        builder = new_builder(100, 1)
        built = builder.build([call_of("m/a", "m/b", "m/c", "m/b")], NOW_US)
        assert patterns(builder) == [b"m/a", b"m/+"]
        assert {row.topic: row.stream_id for row in stored(built)} == {
            "m/a": stream_id(builder, b"m/a"),
            "m/b": stream_id(builder, b"m/b"),
            "m/c": stream_id(builder, b"m/b"),
        }

    def test_topics_of_any_unicode_are_kept(self) -> None:
        names = ["größe/ß", "日本/温度", "a//", "/", "$SYS/x", "😀"]
        assert topics(new_builder(0).build([call_of(*names)], NOW_US)) == names

    def test_a_frame_has_only_its_own_rows(self) -> None:
        builder = new_builder()
        builder.build([call_of("a", "b")], NOW_US)
        second = builder.build([call_of("b", "c")], NOW_US + 2)
        assert [(row.timestamp_us, row.topic) for row in stored(second)] == [
            (NOW_US + 2, "b"),
            (NOW_US + 3, "c"),
        ]

    def test_every_frame_names_each_of_its_topics_once(self) -> None:
        builder = new_builder(100, 1)
        named = []
        for _ in range(2):
            built = builder.build([call_of("m/a", "m/b", "m/a"), call_of("m/b", "m/c")], NOW_US)
            frame = view_of(frame_bytes(built_frame(built)))
            named.append(sorted(frame.all_topics().to_pylist()))
        assert named == [["m/a", "m/b", "m/c"]] * 2

    def test_no_calls_make_no_rows(self) -> None:
        built = new_builder().build([], NOW_US)
        assert (built.row_count, built.streams, built.edges, built.producers) == (
            0,
            [],
            b"",
            b"",
        )

    @pytest.mark.parametrize("topics_max", [1, 2, 3, 4, 10])
    def test_a_builder_that_forgets_topics_places_them_as_before(self, topics_max: int) -> None:
        builder = new_builder(100, 2, topics_max=topics_max)
        names = [f"m/{number % 7}/x" for number in range(60)]
        placed: dict[str, set[int]] = {}
        for start in range(0, 60, 6):
            built = builder.build([call_of(*names[start : start + 6], names[start])], NOW_US)
            rows = stored(built)
            assert [row.topic for row in rows] == [*names[start : start + 6], names[start]]
            for row in rows:
                placed.setdefault(row.topic, set()).add(row.stream_id)
        assert placed == {
            f"m/{number}/x": {stream_id(builder, b"m/%d/x" % number)} for number in range(7)
        }

    @pytest.mark.parametrize("topics_max", [2, 50, 400, 10_000])
    def test_topics_that_hardly_return_are_placed_like_those_that_do(self, topics_max: int) -> None:
        builder = new_builder(100, 2, topics_max=topics_max)
        for frame in range(60):
            step = 1 if frame < 40 else 0
            names = [f"m/{(frame * step * 300 + k * 7) % 5000}/x" for k in range(300)]
            built = builder.build([call_of(*names[:150]), call_of(*names[100:])], NOW_US)
            assert [row.topic for row in stored(built)] == names[:150] + names[100:]
            assert {(row.topic, row.stream_id) for row in stored(built)} == {
                (name, stream_id(builder, name.encode())) for name in names
            }


class TestBadTopics:
    def test_a_bad_topic_fails_its_own_call_and_not_its_neighbours(self) -> None:
        calls = [call_of("a"), call_of("b", "c/+", "d"), call_of("e")]
        built = new_builder().build(calls, NOW_US)
        assert [(row.timestamp_us, row.topic) for row in stored(built)] == [
            (NOW_US, "a"),
            (NOW_US + 1, "e"),
        ]
        assert [type(call.error) for call in calls] == [type(None), InvalidTopicError, type(None)]

    def test_the_error_names_the_row(self) -> None:
        call = call_of("a", "b", "c/+")
        new_builder().build([call], NOW_US)
        assert str(call.error) == ("topic must not have the wildcards + and #: topic='c/+': row=2")

    @pytest.mark.parametrize(
        "topic", [b"", b"a/#", b"+", b"a\0b", b"\xff", b"\xed\xa0\x80", b"x" * 65_536]
    )
    def test_what_is_no_topic_is_refused(self, topic: bytes) -> None:
        call = Call(row_batch([topic], [b""], b""))
        built = new_builder().build([call], NOW_US)
        assert (built.row_count, type(call.error)) == (0, InvalidTopicError)

    def test_the_topics_of_a_checked_batch_are_not_checked_again(self) -> None:
        call = Call(row_batch([b"a\x01\xff"], [b""], b""))
        call.batch.checked = True
        assert (new_builder().build([call], NOW_US).row_count, call.error) == (1, None)

    def test_a_topic_of_the_greatest_length_is_sound(self) -> None:
        assert topics(new_builder().build([call_of("x" * 65_535)], NOW_US)) == ["x" * 65_535]

    def test_a_refused_call_teaches_nothing(self) -> None:
        builder = new_builder()
        built = builder.build([call_of("a", "b/c", "bad/+")], NOW_US)
        assert (patterns(builder), built.edges) == ([], b"")

    def test_a_refused_call_leaves_no_topic_in_the_frame(self) -> None:
        builder = new_builder()
        builder.build([call_of("a", "known")], NOW_US)
        built = builder.build([call_of("known", "new", "bad/+"), call_of("a")], NOW_US + 2)
        assert [rows.topics for rows in built.streams] == [[b"a"]]

    def test_a_refused_call_leaves_neither_publisher_nor_producer(self) -> None:
        call = call_of("bad/+", publisher="eve", flags=2)
        call.producer, call.sequence = b"p" * 16, 1
        built = new_builder().build([call, call_of("a")], NOW_US)
        assert [(row.publisher, row.flags) for row in stored(built)] == [("", 0)]
        assert built.producers == b""


class TestEdges:
    def test_new_edges_come_with_the_frame_that_first_uses_them(self) -> None:
        builder = new_builder()
        edges = []
        for topic in ("a", "a", "b/c"):
            built = builder.build([call_of(topic)], NOW_US)
            edges.append(built.edges)
        reader = Structure([100, 10])
        assert edges[1] == b""
        assert [[stream.pattern for stream in reader.apply(edges[n])] for n in (0, 2)] == [
            [b"a"],
            [b"b/c"],
        ]

    def test_what_the_structure_knew_before_is_not_learned_again(self) -> None:
        structure = Structure([100, 10])
        structure.learn(b"a")
        structure.take_pending()
        assert FrameBuilder(structure, 10).build([call_of("a")], NOW_US).edges == b""


class TestPublishers:
    def test_unknown_publishers_are_empty(self) -> None:
        built = new_builder().build([call_of("a"), call_of("b")], NOW_US)
        assert [row.publisher for row in stored(built)] == ["", ""]
        assert built.publishers == []

    def test_one_publisher_holds_for_all_rows(self) -> None:
        calls = [call_of("a", publisher="ann"), call_of("b", publisher="ann")]
        built = new_builder().build(calls, NOW_US)
        assert [row.publisher for row in stored(built)] == ["ann", "ann"]
        assert built.publishers == [b"ann"]

    def test_publishers_of_calls_and_of_rows_mix(self) -> None:
        by_row = call_of("b", "a", "b")
        by_row.batch.publishers = [b"bo", b"", b"ann"]
        calls = [call_of("a", publisher="ann"), by_row, call_of("c", publisher="cy"), call_of("a")]
        built = new_builder().build(calls, NOW_US)
        names = ["ann", "bo", "", "ann", "cy", ""]
        assert [row.publisher for row in stored(built)] == names
        assert sorted(built.publishers) == [b"", b"ann", b"bo", b"cy"]

    @pytest.mark.parametrize("count", [127, 128, 129, 300])
    def test_any_number_of_publishers_comes_back(self, count: int) -> None:
        names = [f"device-{number}" for number in range(count)]
        calls = [call_of("a", publisher=name) for name in names]
        built = new_builder().build(calls, NOW_US)
        assert [row.publisher for row in stored(built)] == names


class TestFlags:
    def test_flags_that_all_calls_share_are_one_number(self) -> None:
        built = new_builder().build([call_of("a", flags=5), call_of("b", flags=5)], NOW_US)
        assert [row.flags for row in stored(built)] == [5, 5]
        assert built.flags == 5

    def test_flags_of_calls_and_of_rows_mix(self) -> None:
        by_row = call_of("b", "a")
        by_row.batch.flags = [255, 0]
        by_row.batch.shared_flags = -1
        calls = [call_of("a", "b", flags=1), by_row, call_of("c", flags=6)]
        built = new_builder().build(calls, NOW_US)
        assert [row.flags for row in stored(built)] == [1, 1, 255, 0, 6]

    def test_flags_that_differ_from_call_to_call_are_kept_by_row(self) -> None:
        calls = [call_of("a"), call_of("b", flags=1), call_of("a", flags=2)]
        assert [row.flags for row in stored(new_builder().build(calls, NOW_US))] == [0, 1, 2]


class TestProperties:
    def test_rows_without_properties_have_empty_ones_beside_those_that_have(self) -> None:
        with_properties = call_of("b", "a")
        with_properties.batch.properties = [b"\1", b""]
        calls = [call_of("a"), with_properties, call_of("c")]
        built = new_builder().build(calls, NOW_US)
        assert [row.properties for row in stored(built)] == [b"", b"\1", b"", b""]


class TestProducers:
    def test_a_frame_says_what_its_producers_have_reached(self) -> None:
        calls = [call_of("a"), call_of("b"), call_of("c")]
        calls[0].producer, calls[0].sequence = b"p" * 16, 7
        calls[2].producer, calls[2].sequence = b"q" * 16, 2**64 - 1
        built = new_builder().build(calls, NOW_US)
        assert built.producers == struct.pack("<16sQ16sQ", b"p" * 16, 7, b"q" * 16, 2**64 - 1)


class TestMeasure:
    def test_columns_of_different_length_are_refused(self) -> None:
        with pytest.raises(UsageError) as caught:
            measure_column([b""], "values", 2, 5)
        assert str(caught.value) == "columns must have the same length: topics=2 values=1"

    def test_an_item_of_the_greatest_size_passes(self) -> None:
        assert measure_column([b"", b"12345"], "values", 2, 5) == 5

    def test_too_large_an_item_is_refused_by_row(self) -> None:
        with pytest.raises(UsageError) as caught:
            measure_column([b"12345", b"123456"], "values", 2, 5)
        assert str(caught.value) == "values is too large: row=1 size_bytes=6 max=5"

    def test_an_item_that_is_not_bytes_is_refused_by_row(self) -> None:
        with pytest.raises(UsageError) as caught:
            measure_column([b"a", "b"], "topics", 2, 5)
        assert str(caught.value) == "topics must be bytes: row=1 type=str"
