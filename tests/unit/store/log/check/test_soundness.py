from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest

from siltstone.store.log.check.soundness import TopicRules, UnsoundError, open_sound_frame
from siltstone.store.segment.frame import (
    DIRECTORY,
    EDGES,
    FLAGS,
    HOLE,
    PRODUCERS,
    PROPERTIES,
    PROPERTY_OFFSETS,
    PUBLISHER_INDEX,
    PUBLISHER_OFFSETS,
    PUBLISHERS,
    ROWS,
    SECTION,
    STATE,
    STREAMS,
    TIMESTAMPS,
    TOPIC_INDEX,
    TOPIC_OFFSETS,
    TOPICS,
    VALUE_OFFSETS,
    VALUES,
    ZSTD,
    FrameHeader,
)
from siltstone.store.segment.view import FrameView, compress
from siltstone.topic.structure import NEVER, Structure
from tests.support.frames import NOW_US, new_segment, rows_frame, slab_fs, store

Sections = dict[int, tuple[int, bytes]]


def numbers(code: str, *values: int) -> bytes:
    return struct.pack(f"<{len(values)}{code}", *values)


def sound_sections() -> Sections:
    """Return three rows: two of a stream with two topics, one of another."""
    return {
        STREAMS: (24, DIRECTORY.pack(5, 0, 2, 0, 2) + DIRECTORY.pack(9, 2, 1, 2, 1)),
        EDGES: (1, b"edges"),
        PRODUCERS: (24, bytes(24)),
        TIMESTAMPS: (8, numbers("q", NOW_US, NOW_US + 2, NOW_US + 1)),
        TOPIC_OFFSETS: (4, numbers("i", 0, 1, 3, 4)),
        TOPICS: (1, b"abbc"),
        VALUE_OFFSETS: (4, numbers("i", 0, 1, 1, 2)),
        VALUES: (1, b"vw"),
        PUBLISHER_OFFSETS: (4, numbers("i", 0, 1, 2)),
        PUBLISHERS: (1, b"pq"),
        PUBLISHER_INDEX: (1, bytes([0, 1, 1])),
        FLAGS: (1, bytes([0, 1, 2])),
        PROPERTY_OFFSETS: (4, numbers("i", 0, 0, 0, 3)),
        PROPERTIES: (1, b"prp"),
        TOPIC_INDEX: (1, bytes([0, 1, 2])),
    }


def body_of(sections: Mapping[int, tuple[int, bytes]]) -> bytes:
    table = b"".join(
        SECTION.pack(number, width, len(data)) for number, (width, data) in sections.items()
    )
    return table + b"".join(data + bytes(-len(data) % 8) for _, data in sections.values())


def opened(body: bytes, sections: int, **fields: int) -> FrameView:
    """Write a frame with these fields into a segment and open it."""
    values = {
        "kind": ROWS,
        "compression": 0,
        "row_count": 3,
        "stream_count": 2,
        "first_timestamp_us": NOW_US,
        "last_timestamp_us": NOW_US + 2,
        "body_bytes": len(body),
    } | fields
    stored = compress(body, values["compression"])
    header = FrameHeader(
        kind=values["kind"],
        compression=values["compression"],
        section_count=sections,
        first_serial=0,
        row_count=values["row_count"],
        stream_count=values["stream_count"],
        first_timestamp_us=values["first_timestamp_us"],
        last_timestamp_us=values["last_timestamp_us"],
        body_bytes=values["body_bytes"],
    )
    writer = new_segment(slab_fs())
    position = writer.end_position
    writer.write(header, stored, [])
    return open_sound_frame(writer.segment, position, header)


def problem_of(sections: Sections, **fields: int) -> str:
    with pytest.raises(UnsoundError) as caught:
        opened(body_of(sections), len(sections), **fields)
    return str(caught.value)


@pytest.mark.parametrize("compression", [0, ZSTD])
def test_a_frame_that_keeps_every_rule_is_opened(compression: int) -> None:
    sections = sound_sections()
    frame = opened(body_of(sections), len(sections), compression=compression)
    assert frame.directory() == [(5, 0, 2, 0, 2), (9, 2, 1, 2, 1)]


def test_a_head_that_is_not_what_its_checksum_says_is_a_fault() -> None:
    fs = slab_fs()
    writer = new_segment(fs)
    frame = rows_frame({1: [b"a"]})
    position = store(writer, frame)
    frame.header.head_crc ^= 1
    with pytest.raises(UnsoundError, match="the head does not match its checksum"):
        open_sound_frame(writer.segment, position, frame.header)


@pytest.mark.parametrize("kind", [STATE, HOLE])
def test_a_state_or_hole_may_have_zeros_behind_its_sections(kind: int) -> None:
    body = body_of({EDGES: (1, b"edges")}) + bytes(40)
    frame = opened(body, 1, kind=kind, row_count=0, stream_count=0)
    assert bytes(frame.section(EDGES) or b"") == b"edges"


def test_sections_that_are_absent_are_no_fault() -> None:
    sections = sound_sections()
    for number in (
        *(EDGES, PRODUCERS, FLAGS, VALUE_OFFSETS, VALUES, PROPERTY_OFFSETS, PROPERTIES),
        *(PUBLISHER_OFFSETS, PUBLISHERS, PUBLISHER_INDEX),
    ):
        del sections[number]
    assert opened(body_of(sections), len(sections)).publisher() == ""


@pytest.mark.parametrize(
    ("number", "width", "data", "problem"),
    [
        (EDGES, 2, b"edge", "section 2 has items of 2 bytes"),
        (EDGES, 1, b"", "section 2 is empty"),
        (PRODUCERS, 24, bytes(25), "section 3 ends within an item"),
        (
            STREAMS,
            24,
            DIRECTORY.pack(5, 0, 3, 0, 3),
            "the number of streams does not match the header",
        ),
        (
            STREAMS,
            24,
            DIRECTORY.pack(9, 0, 2, 0, 2) + DIRECTORY.pack(5, 2, 1, 2, 1),
            "the streams are not sorted by id",
        ),
        (
            STREAMS,
            24,
            DIRECTORY.pack(5, 0, 2, 0, 2) + DIRECTORY.pack(9, 1, 2, 2, 1),
            "the directory does not cover the rows in order",
        ),
        (
            STREAMS,
            24,
            DIRECTORY.pack(5, 0, 2, 0, 2) + DIRECTORY.pack(9, 2, 1, 1, 1),
            "the directory does not cover the rows in order",
        ),
        (
            STREAMS,
            24,
            DIRECTORY.pack(5, 0, 3, 0, 3) + DIRECTORY.pack(9, 3, 0, 3, 0),
            "a stream must have rows and topics: stream=9",
        ),
        (
            STREAMS,
            24,
            DIRECTORY.pack(5, 0, 2, 0, 2) + DIRECTORY.pack(9, 2, 2, 2, 1),
            "the directory does not cover all rows",
        ),
        (TOPIC_OFFSETS, 4, numbers("i", 0, 1, 4), "section 5 must have one offset for each item"),
        (
            TOPIC_OFFSETS,
            4,
            numbers("i", 0, 3, 1, 4),
            "the offsets in section 5 must increase from 0 to the end of the data",
        ),
        (
            VALUE_OFFSETS,
            4,
            numbers("i", 1, 1, 1, 2),
            "the offsets in section 7 must increase from 0 to the end of the data",
        ),
        (
            PROPERTY_OFFSETS,
            4,
            numbers("i", 0, 0, 0, 99),
            "the offsets in section 13 must increase from 0 to the end of the data",
        ),
        (TOPIC_INDEX, 1, bytes(2), "section 15 must have one number for each row"),
        (TOPIC_INDEX, 1, bytes([0, 2, 2]), "a row has a topic of another stream: stream=5"),
        (TOPIC_INDEX, 1, bytes([0, 1, 9]), "a row has a topic of another stream: stream=9"),
        (PUBLISHER_INDEX, 1, bytes([0, 1, 2]), "a row has a publisher out of range"),
        (PUBLISHER_INDEX, 1, bytes([0, 255, 1]), "a row has a publisher out of range"),
        (PUBLISHER_INDEX, 2, bytes(8), "section 11 must have one number for each row"),
        (PUBLISHERS, 1, b"p\xff", "a publisher is not valid UTF-8"),
        (FLAGS, 1, bytes(2), "the number of flags does not match the rows"),
        (TIMESTAMPS, 8, numbers("q", NOW_US), "the number of timestamps does not match the rows"),
        (
            TIMESTAMPS,
            8,
            numbers("q", NOW_US + 1, NOW_US + 2, NOW_US + 1),
            "the first or last timestamp does not match the header",
        ),
        (
            TIMESTAMPS,
            8,
            numbers("q", NOW_US, NOW_US, NOW_US + 2),
            "the timestamps of a stream must increase",
        ),
    ],
)
def test_a_section_that_breaks_a_rule_is_told(
    number: int, width: int, data: bytes, problem: str
) -> None:
    assert problem_of(sound_sections() | {number: (width, data)}) == problem


@pytest.mark.parametrize(
    ("absent", "problem"),
    [
        ((TOPIC_OFFSETS,), "sections 5 and 6 must exist together"),
        ((VALUES,), "sections 7 and 8 must exist together"),
        ((TOPIC_OFFSETS, TOPICS), "the topics are missing"),
        ((TOPIC_INDEX,), "section 15 must have one number for each row"),
        ((PUBLISHER_OFFSETS,), "publishers are numbered but not listed"),
        ((PUBLISHERS,), "sections 9 and 10 must exist together"),
        ((TIMESTAMPS,), "the number of timestamps does not match the rows"),
        ((STREAMS,), "the number of streams does not match the header"),
    ],
)
def test_a_section_that_others_need_must_be_there(absent: tuple[int, ...], problem: str) -> None:
    sections = sound_sections()
    for number in absent:
        del sections[number]
    assert problem_of(sections) == problem


def test_a_single_publisher_must_be_text() -> None:
    sections = sound_sections() | {PUBLISHERS: (1, b"\xff")}
    del sections[PUBLISHER_OFFSETS], sections[PUBLISHER_INDEX]
    assert problem_of(sections) == "the publisher is not valid UTF-8"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"body_bytes": 1}, "the length of the body does not match the header"),
        ({"row_count": 0}, "a frame of rows must have at least one row"),
        ({"kind": STATE}, "a frame without rows must not have columns"),
        ({"compression": 0, "stream_count": 1}, "the number of streams does not match the header"),
    ],
)
def test_a_header_that_breaks_a_rule_is_told(fields: dict[str, int], problem: str) -> None:
    assert problem_of(sound_sections(), **fields).startswith(problem)


def test_a_frame_without_rows_names_no_streams() -> None:
    with pytest.raises(UnsoundError, match="a frame without rows must not have streams"):
        opened(b"", 0, kind=HOLE, row_count=4, stream_count=1)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (SECTION.pack(0, 1, 8), "unknown section 0"),
        (SECTION.pack(18, 1, 8), "unknown section 18"),
        (SECTION.pack(EDGES, 1, 8) * 2, "section 2 is repeated"),
        (SECTION.pack(EDGES, 1, 1 << 20), "the sections are longer than the body"),
    ],
)
def test_a_table_of_sections_that_makes_no_sense_is_told(table: bytes, problem: str) -> None:
    with pytest.raises(UnsoundError, match=problem):
        opened(table + bytes(16), len(table) // SECTION.size)


def test_a_table_of_sections_longer_than_the_body_is_told() -> None:
    with pytest.raises(UnsoundError):
        opened(bytes(16), 100)


@pytest.mark.parametrize("kind", [ROWS, STATE])
def test_bytes_behind_the_last_section_are_told(kind: int) -> None:
    sections = sound_sections() if kind == ROWS else {EDGES: (1, b"edges")}
    counts = {} if kind == ROWS else {"row_count": 0, "stream_count": 0}
    with pytest.raises(UnsoundError, match="bytes follow the last section"):
        opened(body_of(sections) + b"12345678", len(sections), kind=kind, **counts)


class TestTopics:
    def frame(self, topics: Mapping[bytes, int]) -> FrameView:
        """Return a frame with a row for each topic, in the stream that is given."""
        ordered = sorted(topics.items(), key=lambda item: item[1])
        offsets = [0]
        for topic, _ in ordered:
            offsets.append(offsets[-1] + len(topic))
        count = len(ordered)
        directory = [DIRECTORY.pack(item[1], n, 1, n, 1) for n, item in enumerate(ordered)]
        sections = {
            STREAMS: (24, b"".join(directory)),
            TIMESTAMPS: (8, numbers("q", *range(NOW_US, NOW_US + count))),
            TOPIC_OFFSETS: (4, numbers("i", *offsets)),
            TOPICS: (1, b"".join(topic for topic, _ in ordered)),
            TOPIC_INDEX: (1, bytes(range(count))),
        }
        return opened(
            body_of(sections),
            len(sections),
            row_count=count,
            stream_count=count,
            last_timestamp_us=NOW_US + count - 1,
        )

    def test_topics_of_their_own_streams_are_no_strangers(self) -> None:
        structure = Structure([NEVER])
        topics = {topic: structure.learn(topic).stream.id for topic in (b"a", b"b/c", b"$x")}
        assert TopicRules().strangers(self.frame(topics), structure) == []

    def test_streams_that_were_never_learned_are_strangers(self) -> None:
        structure = Structure([NEVER])
        topics = {b"a": structure.learn(b"a").stream.id, b"b": 7}
        assert TopicRules().strangers(self.frame(topics), structure) == [7]

    def test_a_topic_in_the_stream_of_another_is_told(self) -> None:
        structure = Structure([NEVER])
        structure.learn(b"b")
        topics = {b"b": structure.learn(b"a").stream.id}
        with pytest.raises(UnsoundError, match="a topic does not belong to its stream"):
            TopicRules().strangers(self.frame(topics), structure)

    @pytest.mark.parametrize("topic", [b"a/+", b"a\0", b"a\xff"])
    def test_what_is_no_topic_is_told(self, topic: bytes) -> None:
        structure = Structure([NEVER])
        topics = {topic: structure.learn(b"a").stream.id}
        with pytest.raises(UnsoundError):
            TopicRules().strangers(self.frame(topics), structure)

    def test_a_topic_that_was_checked_is_still_told_in_another_stream(self) -> None:
        structure = Structure([NEVER])
        rules = TopicRules()
        first, second = (structure.learn(topic).stream.id for topic in (b"a", b"b"))
        assert rules.strangers(self.frame({b"a": first}), structure) == []
        with pytest.raises(UnsoundError, match="a topic does not belong to its stream"):
            rules.strangers(self.frame({b"a": second}), structure)
